"""The floor other passes are compared with: reading memory once and doing next to nothing."""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import Batch, Dtype

Words = NDArray[np.int32]


def words(batch: Batch) -> list[Words]:
    """The memory of a batch's tensors as whole numbers, whose largest numpy finds at full speed."""
    sizes = [Dtype(dtype).itemsize for dtype in batch.dtypes.tolist()]
    return [
        np.ctypeslib.as_array((ctypes.c_int32 * (count * size // 4)).from_address(pointer))
        for pointer, count, size in zip(
            batch.pointers.tolist(), batch.counts.tolist(), sizes, strict=True
        )
        if count * size >= 4
    ]


def read(memory: Sequence[Words]) -> None:
    """Read it once."""
    for stretch in memory:
        stretch.max()
