"""Downsampling that loses no extreme: buckets of steps with the lowest, highest and last value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Stat

if TYPE_CHECKING:
    from gradwatch.run.run import Run


@dataclass(frozen=True, slots=True)
class Downsampled:
    """Per bucket of steps and subject: lowest, highest and last finite value (NaN where none)."""

    first_steps: NDArray[np.int64]
    last_steps: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    last: NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """The steps from `first` to `last` (both included), shown in at most `points` buckets."""

    run: "Run"
    first: int
    last: int
    points: int

    def stat(self, stat: Stat | str) -> Downsampled:
        """One statistic."""
        stat = Stat(stat)
        stored = self.run.source.downsample(stat, self.first, self.last, self.points)
        if stored is not None:
            return stored
        rows = self.run.sampled(stat)
        values = self.run.at(stat, rows)
        return downsample(self.run.steps, values, self.first, self.last, self.points, rows)

    def scalar(self, name: str) -> Downsampled:
        """One scalar; the arrays have a single column."""
        values = self.run.scalars[name][:, None]
        return downsample(self.run.steps, values, self.first, self.last, self.points)


def downsample(
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    first: int,
    last: int,
    points: int,
    rows: NDArray[np.intp] | None = None,
) -> Downsampled:
    """Cut the steps of [first, last] into at most `points` buckets of equally many steps.

    `rows` are the steps, by their place, that `values` are of; None where they are of all.
    """
    begin, end = np.searchsorted(steps, first), np.searchsorted(steps, last, side="right")
    rows = np.arange(len(steps)) if rows is None else rows
    inside = slice(*np.searchsorted(rows, [begin, end]))
    steps, values, rows = steps[begin:end], values[inside], rows[inside] - begin
    size = max(1, -(-len(steps) // max(points, 1)))  # rounded up: never more than `points` buckets
    starts = np.arange(0, len(steps), size)
    if not len(starts):
        empty = np.empty((0, *values.shape[1:]))
        return Downsampled(steps, steps, empty, empty, empty)
    ends = np.minimum(starts + size, len(steps)) - 1
    # `fmin` and `fmax` pass over NaN, but an infinity would be the extreme of its bucket.
    finite = np.where(np.isinf(values), np.nan, values) if np.isinf(values).any() else values
    cuts = np.searchsorted(rows, np.append(starts, len(steps)))
    filled = np.flatnonzero(np.diff(cuts))  # the others have no value at all
    low, high, newest = np.full((3, len(starts), *values.shape[1:]), np.nan)
    if len(filled):
        low[filled] = np.fmin.reduceat(finite, cuts[filled], axis=0)
        high[filled] = np.fmax.reduceat(finite, cuts[filled], axis=0)
        newest[filled] = _last_finite(finite, cuts[filled], cuts[filled + 1] - 1)
    return Downsampled(steps[starts], steps[ends], low, high, newest)


def _last_finite(
    values: NDArray[np.float64], starts: NDArray[np.intp], ends: NDArray[np.intp]
) -> NDArray[np.float64]:
    """The last finite value of each bucket: mostly its last row's, else an earlier one's."""
    picked = values[ends]
    gaps = np.isnan(picked).any(axis=0)
    if gaps.any():
        values = values[:, gaps]
        # The number of each finite row, −1 for the others: the largest of a bucket is its last.
        rows = np.arange(len(values), dtype=np.int32)[:, None]
        last = np.maximum.reduceat(np.where(np.isnan(values), -1, rows), starts, axis=0)
        found = np.take_along_axis(values, np.maximum(last, 0), axis=0)
        picked[:, gaps] = np.where(last >= 0, found, np.nan)
    return picked
