"""Arrays as byte planes: all first bytes, all second bytes … each packed by what suits it.

Neighbouring values share their high bytes, so those planes shrink to little; the low bytes are
noise and are kept as they are.
"""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.bodies import BadBody
from gradwatch.store.records import BODY_LIMIT

HEAD = struct.Struct("<BBHI")
"""Code of the type, number of planes, zero, number of elements."""
DTYPES = {1: "<f4", 2: "<f8", 3: "<u8", 4: "<i8", 5: "<u4", 6: "<u2", 7: "u1", 8: "<u2"}
CODES = {np.dtype(name): code for code, name in DTYPES.items() if code != 8}
BRAIN = 8
"""The upper half of a 32-bit float."""
RAW, ZLIB, CONSTANT = 0, 1, 2
_KIND_SHIFT = 30
_SAMPLE = 4096
_SIZE_MASK = (1 << _KIND_SHIFT) - 1


Buffer = bytes | memoryview


def encode(array: NDArray[Any]) -> bytes:
    """The array's elements in C order; shape is the reader's business."""
    return b"".join(encode_parts(array))


def encode_parts(array: NDArray[Any], *, brain: bool = False) -> list[Buffer]:
    """The same in pieces: joining megabytes would hold the interpreter for too long."""
    flat = np.ascontiguousarray(array).reshape(-1)
    code = CODES[flat.dtype.newbyteorder("<")]
    if brain:
        flat, code = to_brain(flat), BRAIN
    size = flat.dtype.itemsize
    planes = flat.view(np.uint8).reshape(-1, size)
    marks: list[int] = []
    parts: list[Buffer] = []
    for number in range(size):
        kind, data = _pack(np.ascontiguousarray(planes[:, number]))
        marks.append(kind << _KIND_SHIFT | len(data))
        parts.append(data)
    front = HEAD.pack(code, size, 0, len(flat)) + struct.pack(f"<{size}I", *marks)
    return [front, *parts]


def decode(body: memoryview, at: int = 0) -> tuple[NDArray[Any], int]:
    """A flat array and where it ended; sizes are checked before anything is made."""
    if at + HEAD.size > len(body):
        raise BadBody("an array cut short")
    code, size, _, count = HEAD.unpack_from(body, at)
    dtype = np.dtype(DTYPES.get(code, "u1"))
    if code not in DTYPES or size != dtype.itemsize or count * size > BODY_LIMIT:
        raise BadBody("an array of an unknown type or size")
    at += HEAD.size
    if at + 4 * size > len(body):
        raise BadBody("an array cut short")
    marks = struct.unpack_from(f"<{size}I", body, at)
    at += 4 * size
    out = np.empty((count, size), np.uint8)
    for number, mark in enumerate(marks):
        length = mark & _SIZE_MASK
        if at + length > len(body):
            raise BadBody("a plane cut short")
        out[:, number] = _unpack(mark >> _KIND_SHIFT, body[at : at + length], count)
        at += length
    flat = out.reshape(-1).view(dtype)
    return (from_brain(flat) if code == BRAIN else flat), at


def to_brain(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to the upper 16 bits, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    halves = rounded.astype(np.uint16)
    bad = np.isnan(values)
    if bad.any():
        halves[bad] = 0x7FC0
    return halves


def from_brain(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _pack(plane: NDArray[np.uint8]) -> tuple[int, Buffer]:
    if len(plane) and (plane == plane[0]).all():
        return CONSTANT, plane[:1].tobytes()
    middle = len(plane) // 2
    sample = plane[middle : middle + _SAMPLE]
    if len(plane) > 4 * _SAMPLE and len(zlib.compress(sample.data, 1)) > 0.97 * _SAMPLE:
        return RAW, plane.data  # noise: the last bits of real numbers
    packed = zlib.compress(plane.data, 1)
    return (ZLIB, packed) if len(packed) < 0.95 * len(plane) else (RAW, plane.data)


def _unpack(kind: int, data: memoryview, count: int) -> NDArray[np.uint8]:
    if kind == ZLIB:
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(data, max(count, 1))
        except zlib.error as error:
            raise BadBody(str(error)) from None
        if len(plain) != count or unpacker.unconsumed_tail or not unpacker.eof:
            raise BadBody("a plane inflates to another length than declared")
        return np.frombuffer(plain, np.uint8)
    if kind == CONSTANT and len(data) == 1:
        return np.frombuffer(data, np.uint8)  # broadcast over the plane
    if kind == RAW and len(data) == count:
        return np.frombuffer(data, np.uint8)
    raise BadBody("a plane of an unknown kind or length")
