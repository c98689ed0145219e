"""Records and their payloads: the bytes every file of a run folder is made of (docs/format.md).

A record is a 40-byte head, a payload, and zeros up to a multiple of eight. The head carries its own
checksum, so that its length can be trusted even where the payload is bad. Files are not trusted:
every length and offset is checked before anything of that size is made.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.jsonio import dumps, parsed, unspelled
from gradwatch.run.subject import Event, EventKind, Histogram, HistogramTable
from gradwatch.stats import Family

FORMAT = 3
MAGIC = b"GWR1"
HEAD = struct.Struct("<4sBBBBQqIIII")
HEAD_BYTES = HEAD.size
PAYLOAD_LIMIT = 64 << 20
JSON_LIMIT = 16 << 20
NO_SEQ = (1 << 64) - 1
"""Sequence number of records that are not missed when gone: SCHEMA."""


class Type(IntEnum):
    """What a record's payload is."""

    SUBJECTS = 1
    SCHEMA = 2
    STEP = 3
    HIST = 4
    EVENT = 5
    GRAPH = 6
    SCALARS = 7
    CLOSE = 8
    NOTE = 9


FAMILY_CODES = {family: code for code, family in enumerate(Family, start=1)}
FAMILIES = {code: family for family, code in FAMILY_CODES.items()}


class Head(NamedTuple):
    """A record's head without magic and checksums."""

    type: int
    family: int
    level: int
    flags: int
    seq: int
    step: int
    length: int
    rows: int


class StoredRecord(NamedTuple):
    """A record in a buffer: its head, where it begins, its payload; None where that is bad."""

    head: Head
    offset: int
    payload: memoryview | None


def padded(length: int) -> int:
    """The next multiple of eight."""
    return -(-length // 8) * 8


def pack_head(head: Head, payload_crc: int) -> bytes:
    """The 40 bytes before a payload; the last four are the head's own checksum."""
    raw = HEAD.pack(MAGIC, *head, payload_crc, 0)[:36]
    return raw + zlib.crc32(raw).to_bytes(4, "little")


def pack(head: Head, payload: bytes) -> bytes:
    """A whole record, padded."""
    record = pack_head(head, zlib.crc32(payload)) + payload
    return record + bytes(padded(len(record)) - len(record))


def unpack_head(raw: bytes | memoryview) -> tuple[Head, int] | None:
    """The head and the payload's checksum, or None where these 40 bytes are no sound head."""
    if len(raw) < HEAD_BYTES or raw[:4] != MAGIC:
        return None
    _, *fields, payload_crc, head_crc = HEAD.unpack(raw[:HEAD_BYTES])
    if zlib.crc32(raw[:36]) != head_crc or fields[6] > PAYLOAD_LIMIT:
        return None
    return Head(*fields), payload_crc


class RecordScanner:
    """Walks through the records of a buffer, past damage, and remembers what was not sound."""

    def __init__(self, buffer: bytes | bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self.end = 0
        """Where reading goes on: the first record that is not whole yet, or the end (padded)."""
        self.bad: list[tuple[int, int]] = []
        """Stretches of bytes that are no records."""

    def __iter__(self) -> Iterator[StoredRecord]:
        at, size = 0, len(self._buffer)
        while at + HEAD_BYTES <= size:
            parsed = unpack_head(self._view[at : at + HEAD_BYTES])
            if parsed is None:
                at = self._resync(at)
                continue
            head, payload_crc = parsed
            begin = at + HEAD_BYTES
            if begin + head.length > size:
                break  # no damage: its writer is in the middle of it, or was killed there
            payload = self._view[begin : begin + head.length]
            yield StoredRecord(head, at, payload if zlib.crc32(payload) == payload_crc else None)
            at = begin + padded(head.length)
            self.end = at

    def _resync(self, at: int) -> int:
        """The next place that has a sound head, or the last place where one could still begin.

        A head cut off by the end of the buffer may become sound when more is read, so the search
        stops before it.
        """
        start = at
        while True:
            at = self._buffer.find(MAGIC, at + 1)
            if at < 0:
                at = max(start, len(self._buffer) - HEAD_BYTES + 1)
                break
            if len(self._buffer) - at < HEAD_BYTES or unpack_head(self._view[at : at + HEAD_BYTES]):
                break
        self.bad.append((start, at))
        self.end = at
        return at


STEP_HEAD = struct.Struct("<II")
"""Number of subjects, bytes of one row."""
SCALAR_ROW = np.dtype([("step", "<i8"), ("name", "<u4"), ("zero", "<u4"), ("value", "<f8")])
HIST_HEAD = struct.Struct("<IiIIQQQQ")
HIST_HEAD_DTYPE = np.dtype(
    [
        ("subject", "<u4"),
        ("first_exponent", "<i4"),
        ("bins", "<u4"),
        ("zero", "<u4"),
        ("others", "<u8", 4),
    ]
)
DEPTH_LIMIT = 32
BINS_LIMIT = 4096
"""More than any floating-point type has exponents."""


class BadPayload(ValueError):
    """A payload whose checksum holds but whose content makes no sense."""


def to_json(value: Any) -> bytes:
    """Strict JSON in ASCII."""
    return dumps(value, ascii_only=True).encode()


def from_json(payload: bytes | memoryview) -> Any:
    """Parsed, bounded in size and depth: a hostile file must not exhaust memory or the stack."""
    if len(payload) > JSON_LIMIT:
        raise BadPayload("JSON too long")
    raw = bytes(payload)
    try:
        value = parsed(raw)
    except (ValueError, RecursionError) as error:
        raise BadPayload(str(error)) from None
    # Level by level, not by recursion, which a deep document would exhaust.
    layer = [value]
    for _ in range(DEPTH_LIMIT):
        layer = [
            item
            for outer in layer
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            # Few documents hold a surrogate or a spelled NaN: looking for its bytes spares walking
            # the others.
            value = _utf8(value) if b"\\ud" in raw.lower() else value
            spelled = b'NaN"' in raw or b'Infinity"' in raw
            return unspelled(value) if spelled else value
    raise BadPayload("JSON too deep")


def _utf8(value: Any) -> Any:
    """Texts as UTF-8, and so Parquet, can hold them: half a surrogate pair becomes an escape."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_utf8(item) for item in value]
        case dict():
            return {_utf8(key): _utf8(item) for key, item in value.items()}
    return value


def pack_event(event: Event) -> bytes:
    """An event's payload; its step stands in the record's head."""
    return to_json(
        {
            "kind": str(event.kind),
            "text": event.text,
            "subject": event.subject,
            "data": dict(event.data),
            "wall": event.wall,
        }
    )


def unpack_event(payload: memoryview, step: int, rank: int) -> Event:
    """The event of a payload; BadPayload where a field is missing or of the wrong type."""
    data = from_json(payload)
    try:
        inner = data.get("data") or {}
        wall = float(data.get("wall") or 0.0)
        return Event(
            step,
            EventKind(data["kind"]),
            str(data["text"]),
            str(data.get("subject", "")),
            inner if isinstance(inner, dict) else {},
            wall if math.isfinite(wall) else 0.0,
            rank,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise BadPayload(str(error)) from None


def pack_names(names: Sequence[str]) -> bytes:
    """A JSON list with its length before it, padded: what follows is aligned."""
    raw = to_json(list(names))
    front = len(raw).to_bytes(4, "little") + raw
    return front + bytes(padded(len(front)) - len(front))


def unpack_names(payload: memoryview) -> tuple[tuple[str, ...], memoryview]:
    """The names, and what follows them."""
    length = int.from_bytes(payload[:4], "little")
    if 4 + length > len(payload):
        raise BadPayload("names longer than the record")
    return _names(bytes(payload[4 : 4 + length])), payload[padded(4 + length) :]


@lru_cache(maxsize=64)
def _names(raw: bytes) -> tuple[str, ...]:
    """The same names stand in thousands of records."""
    names = from_json(raw)
    if not isinstance(names, list):
        raise BadPayload("names that are no list")
    return tuple(str(name) for name in names)


def pack_scalars(rows: Sequence[tuple[int, str, float]]) -> bytes:
    """The names, then fixed rows."""
    index: dict[str, int] = {}
    table = np.zeros(len(rows), SCALAR_ROW)
    for number, (step, name, value) in enumerate(rows):
        table[number] = (step, index.setdefault(name, len(index)), 0, value)
    return pack_names(list(index)) + table.tobytes()


def unpack_scalars(payload: memoryview) -> tuple[tuple[str, ...], NDArray[np.void]]:
    """Names, and rows whose `name` is an index into them."""
    names, rest = unpack_names(payload)
    if len(rest) % SCALAR_ROW.itemsize:
        raise BadPayload("scalars of an unknown shape")
    rows = np.frombuffer(rest, SCALAR_ROW)
    if len(rows) and int(rows["name"].max()) >= len(names):
        raise BadPayload("a scalar without a name")
    return names, rows


def joined_scalars(
    parts: Sequence[tuple[Sequence[str], NDArray[np.void]]],
) -> tuple[list[str], NDArray[np.void]]:
    """The records of a whole run as one, in the order in which they were written."""
    index: dict[str, int] = {}
    joined = np.frombuffer(bytearray().join(rows.data for _, rows in parts), SCALAR_ROW)
    at = 0
    for names, rows in parts:
        numbers = [index.setdefault(name, len(index)) for name in names]
        if numbers != list(range(len(names))):
            joined["name"][at : at + len(rows)] = np.array(numbers, np.uint32)[rows["name"]]
        at += len(rows)
    return list(index), joined


def pack_histograms(subjects: NDArray[np.uint32], table: HistogramTable) -> bytes:
    """Histograms one after another, as `unpack_histograms` reads them."""
    heads = np.zeros(len(table), HIST_HEAD_DTYPE)
    heads["subject"], heads["first_exponent"] = subjects, table.first_exponents
    heads["bins"], heads["others"] = table.sizes, table.others
    width = HIST_HEAD.size // 8
    behind = np.cumsum(2 * table.sizes)  # words of bins up to the end of each
    places = (np.arange(len(table)) * width + behind - 2 * table.sizes)[:, None] + np.arange(width)
    words = np.empty(len(table) * width + len(table.counts), "<u8")
    is_bin = np.ones(len(words), bool)
    is_bin[places] = False
    words[places] = heads.view("<u8").reshape(-1, width)
    words[is_bin] = table.counts
    return words.tobytes()


def unpack_histograms(payload: memoryview) -> dict[int, Histogram]:
    """By subject id."""
    histograms: dict[int, Histogram] = {}
    at = 0
    while at < len(payload):
        if at + HIST_HEAD.size > len(payload):
            raise BadPayload("a histogram cut short")
        subject, exponent, bins, _, zeros, nan, above, below = HIST_HEAD.unpack_from(payload, at)
        at += HIST_HEAD.size
        end = at + 16 * bins
        if end > len(payload) or bins > BINS_LIMIT or abs(exponent) > BINS_LIMIT:
            raise BadPayload("a histogram with impossible bins")
        counts = np.frombuffer(payload[at:end], "<u8").astype(np.uint64).reshape(2, bins)
        histograms[subject] = Histogram(exponent, counts[0], counts[1], zeros, nan, above, below)
        at = end
    return histograms
