"""Medians down the columns of arrays with gaps, fast enough for thousands of steps."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST = 512
"""Rows a median is taken from; more are thinned evenly, since a median does not need them."""


def thinned(rows: NDArray[np.intp], most: int = MOST) -> NDArray[np.intp]:
    """At most `most` of the rows, evenly spread, first and last kept."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]


def medians(values: Array) -> Array:
    """Median of the finite values of each column; NaN where there is none."""
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)  # NaN sorts last
    count = np.isfinite(ordered).sum(axis=0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], 0)[0]
    high = np.take_along_axis(ordered, np.maximum(count // 2, 0).clip(max=len(values) - 1)[None], 0)
    with np.errstate(over="ignore"):
        sums = low + high[0]
    # Two numbers near the end of the range: their halves are exact there, their sum is not.
    middle: Array = np.where(np.isinf(sums), low / 2 + high[0] / 2, sums / 2)
    return np.where(count > 0, middle, np.nan)


def median(values: Array) -> float:
    """Median of the finite values of a series; NaN where there is none."""
    return float(medians(values))


def rolling_median(values: Array, window: int) -> Array:
    """Median of the `window` values before each one (itself excluded); NaN for the first ten."""
    out = np.full(len(values), np.nan)
    for row in range(min(10, window), min(window, len(values))):
        out[row] = np.median(values[:row])
    if len(values) <= window:
        return out
    views = np.lib.stride_tricks.sliding_window_view(values, window)[:-1]
    for begin in range(0, len(views), 4096):  # bounded memory on long runs
        part = views[begin : begin + 4096]
        out[window + begin : window + begin + len(part)] = np.median(part, axis=1)
    return out
