"""Records: the one unit every file of a run folder is made of (docs/format.md, "Record").

A record is a 40-byte head, a body, and zeros up to a multiple of eight. The head carries its own
checksum, so that its length can be trusted even where the body is bad.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from gradwatch.stats import Family

FORMAT = 1
MAGIC = b"GWR1"
HEAD = struct.Struct("<4sBBBBQqIIII")
HEAD_BYTES = HEAD.size
BODY_LIMIT = 64 << 20
JSON_LIMIT = 16 << 20
NO_SEQ = (1 << 64) - 1
"""Sequence number of records that are not missed when gone: SCHEMA, COLUMN and so on."""

WIDE = 1
"""Flag of STEP and COLUMN: real numbers are kept in full, not rounded to 32 bits."""
PACKED = 2
"""Flag of HIST: the body is its inflated length (u32) and a zlib stream."""


class Type(IntEnum):
    """What a record's body is."""

    SUBJECTS = 1
    SCHEMA = 2
    STEP = 3
    HIST = 4
    EVENT = 5
    GRAPH = 6
    SCALARS = 7
    CLOSE = 8
    NOTE = 9
    BLOCK = 16
    COLUMN = 17
    DIRECTORY = 18


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


class Found(NamedTuple):
    """A record in a buffer: its head, where it begins, its body; None where the body is bad."""

    head: Head
    offset: int
    body: memoryview | None


def padded(length: int) -> int:
    """The next multiple of eight."""
    return -(-length // 8) * 8


def pack_head(head: Head, body_crc: int) -> bytes:
    """The 40 bytes before a body."""
    return seal_head(
        HEAD.pack(
            MAGIC,
            head.type,
            head.family,
            head.level,
            head.flags,
            head.seq,
            head.step,
            head.length,
            head.rows,
            body_crc,
            0,
        )
    )


def seal_head(raw: bytes) -> bytes:
    """Put the head's own checksum into its last four bytes."""
    return raw[:36] + zlib.crc32(raw[:36]).to_bytes(4, "little")


def pack(head: Head, body: bytes) -> bytes:
    """A whole record, padded."""
    record = pack_head(head, zlib.crc32(body)) + body
    return record + bytes(padded(len(record)) - len(record))


def unpack_head(raw: bytes | memoryview) -> tuple[Head, int] | None:
    """The head and the body's checksum, or None where these 40 bytes are no sound head."""
    if len(raw) < HEAD_BYTES or raw[:4] != MAGIC:
        return None
    _, *fields, body_crc, head_crc = HEAD.unpack(raw[:HEAD_BYTES])
    if zlib.crc32(raw[:36]) != head_crc or fields[6] > BODY_LIMIT:
        return None
    return Head(*fields), body_crc


class Scan:
    """Walks through the records of a buffer, past damage, and remembers what was not sound."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self.end = 0
        """Where reading goes on: the first record that is not whole yet, or the end (padded)."""
        self.bad: list[tuple[int, int]] = []
        """Stretches of bytes that are no records."""

    def __iter__(self) -> Iterator[Found]:
        at, size = 0, len(self._buffer)
        while at + HEAD_BYTES <= size:
            parsed = unpack_head(self._view[at : at + HEAD_BYTES])
            if parsed is None:
                at = self._resync(at)
                continue
            head, body_crc = parsed
            begin = at + HEAD_BYTES
            if begin + head.length > size:
                break
            body = self._view[begin : begin + head.length]
            yield Found(head, at, body if zlib.crc32(body) == body_crc else None)
            at = begin + padded(head.length)
            self.end = at

    def _resync(self, at: int) -> int:
        """The next place that has a sound head, or the last place where one could still begin."""
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
