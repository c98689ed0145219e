"""What is asked of whole rows (dimension 0) with numpy."""

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import Batch
from gradwatch.kernel.plain.checks import check
from gradwatch.kernel.plain.memory import PIECE, bits, values

SPREAD_ROWS = 16


def touched_rows(batch: Batch, index: int) -> NDArray[np.bool_]:
    """Which rows of a tensor hold an element that is not zero (NaN and Inf are not)."""
    rows = int(batch.rows[index])
    table = bits(batch, index).reshape(rows, -1)
    touched = np.zeros(rows, bool)
    if table.shape[1] == 0:
        return touched
    at_once = max(1, PIECE // table.shape[1])
    for start in range(0, rows, at_once):
        # A double of the bits drops the sign, so that −0 is zero too.
        touched[start : start + at_once] = ((table[start : start + at_once] << 1) != 0).any(axis=1)
    return touched


def spread_rows(rows: int) -> list[int]:
    """The rows compared with row 0: at most 16, evenly spread, the same for the same shape."""
    others = min(SPREAD_ROWS, rows - 1)
    return [1 + k * (rows - 1) // others for k in range(others)]


def row_spread(batch: Batch) -> NDArray[np.float32]:
    """Largest distance of those rows from row 0, relative to the largest norm among them all.

    0 where all are equal; NaN with fewer than two rows, without elements, or with a non-finite one.
    """
    check(batch)
    result = np.full(len(batch), np.nan, np.float32)
    for index, rows in enumerate(batch.rows):
        if rows >= 2 and batch.counts[index] > 0:
            table = bits(batch, index).reshape(int(rows), -1)
            chosen = np.ascontiguousarray(table[[0, *spread_rows(int(rows))]])
            result[index] = _spread(values(chosen, int(batch.dtypes[index])))
    return result


def _spread(table: NDArray[np.float64]) -> float:
    largest = float(np.abs(table).max())
    if not np.isfinite(largest):
        return float("nan")
    if largest == 0.0:
        return 0.0
    table = np.ldexp(table, -int(np.frexp(largest)[1]))
    distance = np.sqrt(((table[1:] - table[0]) ** 2).sum(axis=1)).max()
    return float(distance / np.sqrt((table**2).sum(axis=1)).max())
