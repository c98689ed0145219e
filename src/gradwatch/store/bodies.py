"""Bodies of records, packed and unpacked. Files are not trusted (docs/format.md)."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.event import Event, EventKind
from gradwatch.run.histogram import Histogram
from gradwatch.store.records import BODY_LIMIT, JSON_LIMIT, padded

STEP_HEAD = struct.Struct("<II")
"""Number of subjects, bytes of one row."""
SCALAR_ROW = np.dtype([("step", "<i8"), ("name", "<u4"), ("zero", "<u4"), ("value", "<f8")])
HIST_HEAD = struct.Struct("<IiIIQQQQ")
DEPTH_LIMIT = 32
BINS_LIMIT = 4096
"""More than any floating-point type has exponents."""


class BadBody(ValueError):
    """A body whose checksum holds but whose content makes no sense."""


def to_json(value: Any) -> bytes:
    """Strict JSON in ASCII; anything JSON has no word for becomes text."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError):
        return json.dumps(_plain(value, 0), separators=(",", ":")).encode()


def _plain(value: Any, depth: int) -> Any:
    if depth > DEPTH_LIMIT - 2:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def from_json(body: bytes | memoryview) -> Any:
    """Parsed, bounded in size and depth."""
    if len(body) > JSON_LIMIT:
        raise BadBody("JSON too long")
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise BadBody(str(error)) from None
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise BadBody("JSON too deep")


def pack_event(event: Event) -> bytes:
    return to_json(
        {
            "kind": str(event.kind),
            "text": event.text,
            "subject": event.subject,
            "data": dict(event.data),
            "wall": event.wall,
        }
    )


def unpack_event(body: memoryview, step: int, rank: int) -> Event:
    data = from_json(body)
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
        raise BadBody(str(error)) from None


def pack_scalars(rows: Sequence[tuple[int, str, float]]) -> bytes:
    """Names as JSON (with its length before it), then fixed rows."""
    index: dict[str, int] = {}
    table = np.zeros(len(rows), SCALAR_ROW)
    for number, (step, name, value) in enumerate(rows):
        table[number] = (step, index.setdefault(name, len(index)), 0, value)
    names = to_json(list(index))
    front = len(names).to_bytes(4, "little") + names
    return front + bytes(padded(len(front)) - len(front)) + table.tobytes()


def unpack_scalars(body: memoryview) -> tuple[list[str], NDArray[np.void]]:
    """Names, and rows whose `name` is an index into them."""
    length = int.from_bytes(body[:4], "little")
    if 4 + length > len(body):
        raise BadBody("names longer than the record")
    names = _scalar_names(bytes(body[4 : 4 + length]))
    rest = body[padded(4 + length) :]
    if len(rest) % SCALAR_ROW.itemsize:
        raise BadBody("scalars of an unknown shape")
    rows = np.frombuffer(rest, SCALAR_ROW)
    if len(rows) and int(rows["name"].max()) >= len(names):
        raise BadBody("a scalar without a name")
    return list(names), rows


@lru_cache(maxsize=64)
def _scalar_names(raw: bytes) -> tuple[str, ...]:
    """The same names stand in thousands of records."""
    names = from_json(raw)
    if not isinstance(names, list):
        raise BadBody("scalars of an unknown shape")
    return tuple(str(name) for name in names)


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


def pack_histogram(subject: int, histogram: Histogram) -> bytes:
    head = HIST_HEAD.pack(
        subject,
        histogram.first_exponent,
        len(histogram.negative),
        0,
        histogram.zeros,
        histogram.nan,
        histogram.positive_inf,
        histogram.negative_inf,
    )
    negative = np.ascontiguousarray(histogram.negative, "<u8").tobytes()
    return head + negative + np.ascontiguousarray(histogram.positive, "<u8").tobytes()


def unpack_histograms(body: memoryview) -> dict[int, Histogram]:
    """By subject id."""
    found: dict[int, Histogram] = {}
    at = 0
    while at < len(body):
        if at + HIST_HEAD.size > len(body):
            raise BadBody("a histogram cut short")
        subject, exponent, bins, _, zeros, nan, above, below = HIST_HEAD.unpack_from(body, at)
        at += HIST_HEAD.size
        end = at + 16 * bins
        if end > len(body) or bins > BINS_LIMIT or abs(exponent) > BINS_LIMIT:
            raise BadBody("a histogram with impossible bins")
        counts = np.frombuffer(body[at:end], "<u8").astype(np.uint64).reshape(2, bins)
        found[subject] = Histogram(exponent, counts[0], counts[1], zeros, nan, above, below)
        at = end
    return found


def inflate(body: memoryview) -> memoryview:
    """A packed body: its inflated length is declared, checked against the limit, and held to."""
    import zlib

    declared = int.from_bytes(body[:4], "little")
    if declared > BODY_LIMIT:
        raise BadBody("inflates beyond the limit")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(body[4:], max(declared, 1))
    except zlib.error as error:
        raise BadBody(str(error)) from None
    if len(data) != declared or unpacker.unconsumed_tail:
        raise BadBody("inflates to another length than declared")
    return memoryview(data)
