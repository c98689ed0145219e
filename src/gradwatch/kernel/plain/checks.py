"""What must hold before raw memory is read; the C kernel makes the same checks by itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import Batch, Dtype


def check(batch: Batch) -> None:
    """Raise ValueError for a batch that must not be read."""
    fields = (batch.pointers, batch.counts, batch.dtypes, batch.rows)
    if any(field.ndim != 1 or len(field) != len(batch) for field in fields):
        raise ValueError("pointers, counts, dtypes and rows must be flat and equally long")
    if (batch.counts < 0).any():
        raise ValueError("a count is negative")
    if ((batch.pointers == 0) & (batch.counts > 0)).any():
        raise ValueError("a pointer is null although its count is not zero")
    if (batch.dtypes > max(Dtype)).any():
        raise ValueError("a dtype is none of the kernel's")
    uneven = batch.counts % np.maximum(batch.rows, 1) != 0
    if (batch.rows < 0).any() or uneven.any():
        raise ValueError("the rows of a tensor must divide its count")


def check_pair(first: Batch, second: Batch, *, may_lack: bool = False) -> None:
    """Raise ValueError unless the two hold tensors of the same sizes (`may_lack`: or none)."""
    check(first)
    check(second)
    if len(first) != len(second):
        raise ValueError(f"two batches of {len(first)} and {len(second)} tensors do not match")
    differ = first.counts != second.counts
    if (differ & (second.counts != 0) if may_lack else differ).any():
        raise ValueError("the tensors of two batches differ in their counts")


def check_twins(first: Batch, second: Batch) -> None:
    """Raise ValueError unless the tensors of the two can be compared or copied bit by bit."""
    check_pair(first, second)
    if (first.dtypes != second.dtypes).any():
        raise ValueError("the tensors of two batches differ in their dtypes")


def check_touched(touched: Sequence[NDArray[np.uint8] | None] | None, batch: Batch) -> None:
    """Raise ValueError unless every given mark array has one writable byte per row."""
    if touched is None:
        return
    if len(touched) != len(batch):
        raise ValueError(f"expected {len(batch)} arrays of touched rows, got {len(touched)}")
    for marks, rows in zip(touched, batch.rows, strict=True):
        if marks is not None and not (
            marks.itemsize == 1
            and marks.shape == (rows,)
            and marks.flags.c_contiguous
            and marks.flags.writeable
        ):
            raise ValueError("touched rows need one writable byte per row, without gaps")


def check_grids(exponents: NDArray[np.int64], firsts: NDArray[np.float64], cells: int) -> None:
    """Raise ValueError unless cells can be told apart in float64 and their numbers are bytes."""
    if not 1 <= cells <= 256:
        raise ValueError("a grid has 1 to 256 cells")
    if (abs(exponents) > 1023).any():
        raise ValueError("the cells are too narrow or too wide for float64")
    if not np.isfinite(firsts).all() or (np.floor(firsts) != firsts).any():
        raise ValueError("the first cell is not a whole number")


def check_limits(lows: NDArray[np.float64], highs: NDArray[np.float64], most: int) -> None:
    """Raise ValueError where a comparison would mean nothing."""
    if most < 0:
        raise ValueError("the length of the lists is negative")
    if np.isnan(lows).any() or np.isnan(highs).any():
        raise ValueError("a limit is NaN")


def check_stride(pointer: int, count: int, dtype: int, stride: int) -> None:
    """Raise ValueError for elements that must not be read."""
    if any(not isinstance(number, int) for number in (pointer, count, dtype, stride)):
        raise TypeError("expected whole numbers")
    if not 0 <= dtype <= max(Dtype):
        raise ValueError("the dtype is none of the kernel's")
    if not 0 <= count < 1 << 56:
        raise ValueError("the count is negative or larger than any memory")
    if not 0 <= pointer < 1 << 64 or (pointer == 0 and count > 0):
        raise ValueError("the pointer is null or none")
    if pointer % Dtype(dtype).itemsize:
        raise ValueError("the pointer is not aligned")
    if not 1 <= stride < 1 << 64:
        raise ValueError("the stride is not positive")
