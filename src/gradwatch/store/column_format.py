"""Column files: chunks of rows turned on their side, one record per chunk and one per column.

Arrays are byte-shuffled: all first bytes, all second bytes, and so on, each of these planes packed
by what suits it. Neighbouring values share their high bytes, so those planes shrink to little; the
low bytes are noise and are kept as they are.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat
from gradwatch.store.chunks import narrowed
from gradwatch.store.format import (
    FAMILY_CODES,
    NO_SEQ,
    PAYLOAD_LIMIT,
    BadPayload,
    Head,
    Type,
    pack,
    pack_head,
    pack_names,
    padded,
    unpack_names,
)

ARRAY_HEAD = struct.Struct("<BBHI")
"""Code of the type, number of planes, zero, number of elements."""
DTYPES = {1: "<f4", 2: "<f8", 3: "<u8", 4: "<i8", 5: "<u4", 6: "<u2", 7: "u1", 8: "<u2"}
CODES = {np.dtype(name): code for code, name in DTYPES.items() if code != 8}
BFLOAT16 = 8
"""The upper half of a 32-bit float."""
RAW, ZLIB, CONSTANT = 0, 1, 2
_KIND_SHIFT = 30
_SAMPLE = 4096
_SIZE_MASK = (1 << _KIND_SHIFT) - 1

Buffer = bytes | memoryview


def encode(array: NDArray[Any]) -> bytes:
    """The array's elements in C order; shape is the reader's business."""
    return b"".join(encode_parts(array))


def encode_parts(array: NDArray[Any], *, bfloat16: bool = False) -> list[Buffer]:
    """The same in parts: joining megabytes would hold the interpreter for too long."""
    flat = np.ascontiguousarray(array).reshape(-1)
    code = CODES[flat.dtype.newbyteorder("<")]
    if bfloat16:
        flat, code = to_bfloat16(flat), BFLOAT16
    size = flat.dtype.itemsize
    planes = flat.view(np.uint8).reshape(-1, size)
    marks: list[int] = []
    parts: list[Buffer] = []
    for number in range(size):
        kind, data = _pack(np.ascontiguousarray(planes[:, number]))
        marks.append(kind << _KIND_SHIFT | len(data))
        parts.append(data)
    front = ARRAY_HEAD.pack(code, size, 0, len(flat)) + struct.pack(f"<{size}I", *marks)
    return [front, *parts]


def decode(payload: memoryview, at: int = 0) -> tuple[NDArray[Any], int]:
    """A flat array and where it ended.

    Sizes are checked before anything is made: a few forged bytes could ask for gigabytes.
    """
    if at + ARRAY_HEAD.size > len(payload):
        raise BadPayload("an array cut short")
    code, size, _, count = ARRAY_HEAD.unpack_from(payload, at)
    dtype = np.dtype(DTYPES.get(code, "u1"))
    if code not in DTYPES or size != dtype.itemsize or count * size > PAYLOAD_LIMIT:
        raise BadPayload("an array of an unknown type or size")
    at += ARRAY_HEAD.size
    if at + 4 * size > len(payload):
        raise BadPayload("an array cut short")
    marks = struct.unpack_from(f"<{size}I", payload, at)
    at += 4 * size
    out = np.empty((count, size), np.uint8)
    for number, mark in enumerate(marks):
        length = mark & _SIZE_MASK
        if at + length > len(payload):
            raise BadPayload("a plane cut short")
        out[:, number] = _unpack(mark >> _KIND_SHIFT, payload[at : at + length], count)
        at += length
    flat = out.reshape(-1).view(dtype)
    return (from_bfloat16(flat) if code == BFLOAT16 else flat), at


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the upper 16 bits, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Adding 0x7FFF, and one more where the kept half is odd, rounds to the nearest, ties to even.
    # In place: these arrays are megabytes.
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    halves = rounded.astype(np.uint16)
    bad = np.isnan(values)
    if bad.any():
        halves[bad] = 0x7FC0  # a NaN whose bits are all in the lower half would become infinite
    return halves


def from_bfloat16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Each 16-bit half as the float32 it is the upper part of: exact."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _pack(plane: NDArray[np.uint8]) -> tuple[int, Buffer]:
    if len(plane) and (plane == plane[0]).all():
        return CONSTANT, plane[:1].tobytes()
    middle = len(plane) // 2
    sample = plane[middle : middle + _SAMPLE]
    if len(plane) > 4 * _SAMPLE and len(zlib.compress(sample.data, 1)) > 0.97 * _SAMPLE:
        return RAW, plane.data  # noise: the last bits of real numbers
    # Level 1: this runs beside a training, so speed counts for more than size.
    packed = zlib.compress(plane.data, 1)
    return (ZLIB, packed) if len(packed) < 0.95 * len(plane) else (RAW, plane.data)


def _unpack(kind: int, data: memoryview, count: int) -> NDArray[np.uint8]:
    if kind == ZLIB:
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(data, max(count, 1))
        except zlib.error as error:
            raise BadPayload(str(error)) from None
        if len(plain) != count or unpacker.unconsumed_tail or not unpacker.eof:
            raise BadPayload("a plane inflates to another length than declared")
        return np.frombuffer(plain, np.uint8)
    if kind == CONSTANT and len(data) == 1:
        return np.frombuffer(data, np.uint8)  # broadcast over the plane
    if kind == RAW and len(data) == count:
        return np.frombuffer(data, np.uint8)
    raise BadPayload("a plane of an unknown kind or length")


STATE = "state"
CHUNK_HEAD = struct.Struct("<IIIIQ")
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
"""Where the directory begins, the checksum of that, and a magic word."""
TAIL_MAGIC = b"GWE1"


class ColumnPart(IntEnum):
    """What a column holds: the values themselves, or one part of a rollup."""

    VALUE = 0
    LOW = 1
    HIGH = 2
    LAST = 3
    COUNT = 4
    LOW_AT = 5
    HIGH_AT = 6


class ChunkHead(NamedTuple):
    """Which steps and subjects a chunk's columns are about; `sizes` are the buckets of a level."""

    steps: NDArray[np.int64]
    seqs: NDArray[np.uint64]
    ids: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    columns: int = 0
    span: int = 0


class Column(NamedTuple):
    """One column: [step or bucket, subject(, width)]."""

    name: str
    part: ColumnPart
    values: NDArray[Any]


def chunk_record(family: Family, level: int, head: ChunkHead, columns: int, span: int = 0) -> bytes:
    """The CHUNK record; its sequence number (that of its first row) is the key of its columns."""
    payload = CHUNK_HEAD.pack(len(head.steps), len(head.ids), len(head.sizes), columns, span)
    for array in (head.steps, head.seqs, head.ids, head.sizes):
        payload += encode(array)
    return pack(_head(Type.CHUNK, family, level, head, len(payload)), payload)


def column_record(family: Family, level: int, head: ChunkHead, column: Column) -> list[Buffer]:
    """A COLUMN record in parts: subject after subject, so that a series is contiguous."""
    values = np.ascontiguousarray(np.swapaxes(column.values, 0, 1))
    bfloat16 = values.dtype == np.float32 and values.ndim > 2  # sketches
    if values.dtype == np.float64:
        values = _shortest(values)
    name = column.name.encode("ascii")
    front = COLUMN_HEAD.pack(len(name), column.part, 0) + name
    front += bytes(padded(len(front)) - len(front))
    payload = [front, *encode_parts(values, bfloat16=bfloat16)]
    length, crc = sum(len(part) for part in payload), 0
    for part in payload:
        crc = zlib.crc32(part, crc)
    record_head = _head(Type.COLUMN, family, level, head, length)
    return [pack_head(record_head, crc), *payload, bytes(padded(length) - length)]


def unpack_chunk(payload: memoryview) -> ChunkHead:
    """Steps, record numbers, subjects and buckets of a chunk; BadPayload if they do not agree."""
    if len(payload) < CHUNK_HEAD.size:
        raise BadPayload("a block cut short")
    steps, subjects, buckets, columns, span = CHUNK_HEAD.unpack_from(payload)
    at = CHUNK_HEAD.size
    arrays = []
    for dtype, count in (("<i8", steps), ("<u8", steps), ("<u4", subjects), ("<u4", buckets)):
        array, at = decode(payload, at)
        if array.dtype != np.dtype(dtype) or len(array) != count:
            raise BadPayload("a block whose lists do not fit its head")
        arrays.append(array)
    step_numbers, seqs, ids, sizes = arrays
    head = ChunkHead(step_numbers, seqs, ids, sizes, columns, span)
    # Summed in 64 bits: forged sizes could wrap around to the right total in 32.
    if not steps or (buckets and int(head.sizes.sum(dtype=np.uint64)) != steps):
        raise BadPayload("a block whose buckets do not fit its steps")
    return head


def column_name(payload: memoryview) -> tuple[str, int, int]:
    """Name, part, and where the values begin."""
    if len(payload) < COLUMN_HEAD.size:
        raise BadPayload("a column cut short")
    length, part, _ = COLUMN_HEAD.unpack_from(payload)
    name = bytes(payload[COLUMN_HEAD.size : COLUMN_HEAD.size + length]).decode("ascii", "replace")
    return name, part, padded(COLUMN_HEAD.size + length)


def directory_record(entries: NDArray[np.void], names: list[str], offset: int) -> bytes:
    """The directory and the file's last 16 bytes, which say where it begins."""
    payload = pack_names(names) + entries.tobytes()
    head = Head(Type.DIRECTORY, 0, 0, 0, NO_SEQ, 0, len(payload), len(entries))
    tail = offset.to_bytes(8, "little")
    return pack(head, payload) + TAIL.pack(offset, zlib.crc32(tail), TAIL_MAGIC)


def unpack_tail(raw: bytes) -> int | None:
    """Where the directory begins, or None where these 16 bytes are no sound tail."""
    if len(raw) != TAIL.size:
        return None
    offset, crc, magic = TAIL.unpack(raw)
    return int(offset) if magic == TAIL_MAGIC and crc == zlib.crc32(raw[:8]) else None


def unpack_directory(payload: memoryview) -> tuple[NDArray[np.void], tuple[str, ...]]:
    """The entries and the column names they point to; BadPayload if one points nowhere."""
    names, rest = unpack_names(payload)
    if len(rest) % ENTRY.itemsize:
        raise BadPayload("a directory of an unknown shape")
    entries = np.frombuffer(rest, ENTRY)
    if len(entries) and int(entries["name"].max()) >= max(len(names), 1):
        raise BadPayload("a directory that names what it does not list")
    return entries, names


def row_columns(rows: NDArray[np.void], states: NDArray[np.uint8]) -> Iterator[Column]:
    """The columns of rows [step, subject] as they were put."""
    yield Column(STATE, ColumnPart.VALUE, states)
    for name in rows.dtype.names or ():
        yield Column(name, ColumnPart.VALUE, rows[name])


def shape_of(stat: Stat | None, head: ChunkHead) -> tuple[int, ...]:
    """How a column's flat values are laid out on disk: [subject, step or bucket(, width)]."""
    length = len(head.sizes) or len(head.steps)
    width = stat.width if stat else 1
    return (len(head.ids), length) if width == 1 else (len(head.ids), length, width)


def _shortest(values: NDArray[np.float64]) -> NDArray[Any]:
    """32 bits where all values are in their normal range; else 64, of the same rounded values."""
    rounded = narrowed(values)
    with np.errstate(over="ignore", under="ignore"):
        short = rounded.astype(np.float32)
    same = (short == rounded) | np.isnan(rounded)
    return short if same.all() else rounded


def _head(type_: Type, family: Family, level: int, head: ChunkHead, length: int) -> Head:
    key, first = int(head.seqs[0]), int(head.steps[0])
    rows = len(head.sizes) or len(head.steps)
    return Head(type_, FAMILY_CODES[family], level, 0, key, first, length, rows)
