"""Arrays over the raw memory of a batch."""

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import Batch, Dtype
from gradwatch.kernel.plain.checks import check, check_stride, check_twins

PIECE = 1 << 20
"""Elements handled at a time, so that temporaries stay small beside the tensors."""

_BITS: dict[int, np.dtype[np.unsignedinteger]] = {
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


def bits(batch: Batch, index: int) -> NDArray[np.unsignedinteger]:
    """The elements of one tensor as unsigned integers of their size, without a copy."""
    count, size = int(batch.counts[index]), Dtype(int(batch.dtypes[index])).itemsize
    kind = _BITS[size]
    if count == 0:
        return np.zeros(0, kind)
    memory = (ctypes.c_uint8 * (count * size)).from_address(int(batch.pointers[index]))
    return np.ctypeslib.as_array(memory).view(kind)


def values(raw: NDArray[np.unsignedinteger], dtype: int) -> NDArray[np.float64]:
    """The bits as float64, exactly."""
    match Dtype(int(dtype)):
        case Dtype.F32:
            return raw.view(np.float32).astype(np.float64)
        case Dtype.F64:
            return raw.view(np.float64)
        case Dtype.BF16:
            # A bfloat16 is the upper half of a float32.
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        case Dtype.F16:
            return raw.view(np.float16).astype(np.float64)


def pieces(batch: Batch, index: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """One tensor's elements in order: the flat index of each piece's start, and the piece."""
    raw = bits(batch, index)
    for start in range(0, len(raw), PIECE):
        yield start, values(raw[start : start + PIECE], int(batch.dtypes[index]))


def copy(source: Batch, target: Batch) -> None:
    """Copy the bytes of every tensor."""
    check_twins(source, target)
    for index in range(len(source)):
        bits(target, index)[:] = bits(source, index)


def read(batch: Batch) -> float:
    """Touch every byte once: the least any statistic can cost."""
    check(batch)
    total = 0.0
    for index in range(len(batch)):
        total += float(bits(batch, index).sum(dtype=np.uint64))
    return total


def nonfinite(pointer: int, count: int, dtype: int, stride: int, /) -> int:
    """How many of the elements 0, stride, 2·stride … are NaN or infinite."""
    check_stride(pointer, count, dtype, stride)
    raw = bits(Batch.of([pointer], [count], [dtype]), 0)[::stride]
    return sum(
        int(np.count_nonzero(~np.isfinite(values(np.ascontiguousarray(part), dtype))))
        for part in (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
    )
