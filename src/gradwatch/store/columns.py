"""Column files: blocks of rows turned on their side, one record per block and one per column."""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat, entry
from gradwatch.store import planes
from gradwatch.store.block import narrowed
from gradwatch.store.bodies import BadBody, from_json, to_json
from gradwatch.store.records import FAMILY_CODES, NO_SEQ, WIDE, Head, Type, pack, pack_head, padded

STATE = "state"
BLOCK_HEAD = struct.Struct("<IIIIQ")
"""Steps, subjects, buckets (0 on level 0), columns that follow, and their bytes (levels only)."""
COLUMN_HEAD = struct.Struct("<HBB")
"""Length of the name, part, zero."""
ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("key", "<u8"),
        ("first", "<i8"),
        ("last", "<i8"),
        ("length", "<u4"),
        ("name", "<u2"),
        ("type", "u1"),
        ("family", "u1"),
        ("part", "u1"),
        ("level", "u1"),
        ("zero", "<u2"),
    ]
)
TAIL = struct.Struct("<QI4s")
TAIL_MAGIC = b"GWE1"


class Part(IntEnum):
    """What a column holds: the values themselves, or one side of a roll-up."""

    VALUE = 0
    LOW = 1
    HIGH = 2
    LAST = 3
    SUM = 4
    COUNT = 5
    LOW_AT = 6
    HIGH_AT = 7


class BlockHead(NamedTuple):
    """Which steps and subjects a block's columns are about; `sizes` are the buckets of a level."""

    steps: NDArray[np.int64]
    seqs: NDArray[np.uint64]
    ids: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    columns: int = 0
    span: int = 0


class Column(NamedTuple):
    """One column: [step or bucket, subject(, width)]."""

    name: str
    part: Part
    values: NDArray[Any]


def block_record(family: Family, level: int, head: BlockHead, columns: int, span: int = 0) -> bytes:
    """The BLOCK record; its sequence number (that of its first row) is the key of its columns."""
    body = BLOCK_HEAD.pack(len(head.steps), len(head.ids), len(head.sizes), columns, span)
    for array in (head.steps, head.seqs, head.ids, head.sizes):
        body += planes.encode(array)
    return pack(_head(Type.BLOCK, family, level, 0, head, len(body)), body)


def column_record(
    family: Family, level: int, head: BlockHead, column: Column, wide: bool
) -> list[planes.Buffer]:
    """A COLUMN record in pieces: subject after subject, so that a series is contiguous."""
    values = np.ascontiguousarray(np.swapaxes(column.values, 0, 1))
    brain = False
    if values.dtype == np.float64 and not wide:
        values = _shortest(values)
    elif values.dtype == np.float32 and values.ndim > 2 and not wide:
        brain = True
    name = column.name.encode("ascii")
    front = COLUMN_HEAD.pack(len(name), column.part, 0) + name
    front += bytes(padded(len(front)) - len(front))
    body = [front, *planes.encode_parts(values, brain=brain)]
    length, crc = sum(len(part) for part in body), 0
    for part in body:
        crc = zlib.crc32(part, crc)
    record_head = _head(Type.COLUMN, family, level, WIDE if wide else 0, head, length)
    return [pack_head(record_head, crc), *body, bytes(padded(length) - length)]


def unpack_block(body: memoryview) -> BlockHead:
    if len(body) < BLOCK_HEAD.size:
        raise BadBody("a block cut short")
    steps, subjects, buckets, columns, span = BLOCK_HEAD.unpack_from(body)
    at = BLOCK_HEAD.size
    arrays = []
    for dtype, count in (("<i8", steps), ("<u8", steps), ("<u4", subjects), ("<u4", buckets)):
        array, at = planes.decode(body, at)
        if array.dtype != np.dtype(dtype) or len(array) != count:
            raise BadBody("a block whose lists do not fit its head")
        arrays.append(array)
    own_steps, seqs, ids, sizes = arrays
    head = BlockHead(own_steps, seqs, ids, sizes, columns, span)
    if not steps or (buckets and int(head.sizes.sum(dtype=np.uint64)) != steps):
        raise BadBody("a block whose buckets do not fit its steps")
    return head


def unpack_column(body: memoryview) -> tuple[str, int, NDArray[Any]]:
    """Name, part, flat values (subject after subject)."""
    name, part, at = column_name(body)
    values, _ = planes.decode(body, at)
    return name, part, values


def column_name(body: memoryview) -> tuple[str, int, int]:
    """Name, part, and where the values begin."""
    if len(body) < COLUMN_HEAD.size:
        raise BadBody("a column cut short")
    length, part, _ = COLUMN_HEAD.unpack_from(body)
    name = bytes(body[COLUMN_HEAD.size : COLUMN_HEAD.size + length]).decode("ascii", "replace")
    return name, part, padded(COLUMN_HEAD.size + length)


def directory_record(entries: NDArray[np.void], names: list[str], offset: int) -> bytes:
    """The directory and the file's last 16 bytes, which say where it begins."""
    raw = to_json(names)
    front = len(raw).to_bytes(4, "little") + raw
    body = front + bytes(padded(len(front)) - len(front)) + entries.tobytes()
    head = Head(Type.DIRECTORY, 0, 0, 0, NO_SEQ, 0, len(body), len(entries))
    tail = offset.to_bytes(8, "little")
    return pack(head, body) + TAIL.pack(offset, zlib.crc32(tail), TAIL_MAGIC)


def unpack_tail(raw: bytes) -> int | None:
    """Where the directory begins, or None where these 16 bytes are no sound tail."""
    if len(raw) != TAIL.size:
        return None
    offset, crc, magic = TAIL.unpack(raw)
    return int(offset) if magic == TAIL_MAGIC and crc == zlib.crc32(raw[:8]) else None


def unpack_directory(body: memoryview) -> tuple[NDArray[np.void], list[str]]:
    length = int.from_bytes(body[:4], "little")
    names = from_json(body[4 : 4 + length])
    rest = body[padded(4 + length) :]
    if not isinstance(names, list) or len(rest) % ENTRY.itemsize:
        raise BadBody("a directory of an unknown shape")
    entries = np.frombuffer(rest, ENTRY)
    if len(entries) and int(entries["name"].max()) >= max(len(names), 1):
        raise BadBody("a directory that names what it does not list")
    return entries, [str(name) for name in names]


def row_columns(rows: NDArray[np.void], states: NDArray[np.uint8]) -> Iterator[Column]:
    """The columns of rows [step, subject] as they were put."""
    yield Column(STATE, Part.VALUE, states)
    for name in rows.dtype.names or ():
        yield Column(name, Part.VALUE, rows[name])


def shape_of(stat: Stat | None, head: BlockHead) -> tuple[int, ...]:
    """How a column's flat values are laid out on disk: [subject, step or bucket(, width)]."""
    length = len(head.sizes) or len(head.steps)
    width = entry(stat).width if stat else 1
    return (len(head.ids), length) if width == 1 else (len(head.ids), length, width)


def _shortest(values: NDArray[np.float64]) -> NDArray[Any]:
    """32 bits where all values are in their normal range; else 64, of the same rounded values."""
    kept = narrowed(values)
    with np.errstate(over="ignore", under="ignore"):
        short = kept.astype(np.float32)
    same = (short == kept) | np.isnan(kept)
    return short if same.all() else kept


def _head(
    type_: Type, family: Family, level: int, flags: int, head: BlockHead, length: int
) -> Head:
    key, first = int(head.seqs[0]), int(head.steps[0])
    rows = len(head.sizes) or len(head.steps)
    return Head(type_, FAMILY_CODES[family], level, flags, key, first, length, rows)
