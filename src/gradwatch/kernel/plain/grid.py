"""Counting on uniform grids and listing what lies beyond limits, with numpy."""

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import Batch, Beyond, Cells
from gradwatch.kernel.plain.checks import check, check_grids, check_limits
from gradwatch.kernel.plain.memory import pieces


def count_cells(
    batch: Batch, exponents: NDArray[np.int64], firsts: NDArray[np.float64], cells: int
) -> Cells:
    """Counts on uniform grids; exact, see `native/grid.h`."""
    check(batch)
    check_grids(exponents, firsts, cells)
    counts = np.zeros((len(batch), cells), np.uint64)
    below, above, nonfinite = np.zeros((3, len(batch)), np.uint64)
    for index in range(len(batch)):
        for _, x in pieces(batch, index):
            finite = x[np.isfinite(x)]
            place = _places(finite, int(exponents[index]), firsts[index])
            nonfinite[index] += np.uint64(len(x) - len(finite))
            below[index] += np.uint64(np.count_nonzero(place < 0))
            above[index] += np.uint64(np.count_nonzero(place >= cells))
            inside = place[(place >= 0) & (place < cells)].astype(np.intp)
            counts[index] += np.bincount(inside, minlength=cells).astype(np.uint64)
    return Cells(counts, below, above, nonfinite)


def _places(x: NDArray[np.float64], exponent: int, first: np.float64) -> NDArray[np.float64]:
    """Cells counted from the first."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = x * np.ldexp(1.0, -exponent)
        # A negative element whose product is too small to be told from zero lies under it.
        scaled[(scaled == 0) & (x < 0)] = -0.5
        places: NDArray[np.float64] = np.floor(scaled) - first
    return places


def list_beyond(
    batch: Batch, lows: NDArray[np.float64], highs: NDArray[np.float64], most: int
) -> Beyond:
    """The elements at or beyond limits, in their order."""
    check(batch)
    check_limits(lows, highs, most)
    totals = np.zeros(len(batch), np.uint64)
    indices = []
    for index in range(len(batch)):
        found = [np.zeros(0, np.int64)]
        for start, x in pieces(batch, index):
            far = ((x <= lows[index]) | (x >= highs[index])) & np.isfinite(x)
            at = np.flatnonzero(far)
            room = max(most - int(totals[index]), 0)
            found.append(at[:room].astype(np.int64) + start)
            totals[index] += np.uint64(len(at))
        indices.append(np.concatenate(found))
    return Beyond(totals, indices)
