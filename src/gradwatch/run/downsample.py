"""Downsampling that loses no extreme: buckets of steps with the lowest, highest and last value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Stat

Steps = NDArray[np.int64]
Values = NDArray[np.float64]
Indices = NDArray[np.intp]

if TYPE_CHECKING:
    from gradwatch.run.run import Run

MOST_CELLS = 4_000_000
"""Values that a window reads, whatever is drawn of them."""
WIDE = 256
"""Rows of a bucket from which on a coarse row, which stands for 64, is fine enough."""


@dataclass(frozen=True, slots=True)
class Downsampled:
    """Per bucket of steps and subject: lowest, highest and last finite value (NaN where none)."""

    first_steps: Steps
    last_steps: Steps
    low: Values
    high: Values
    last: Values


@dataclass(frozen=True)
class Window:
    """The steps from `first` to `last` (both included), shown in at most `points` buckets."""

    run: "Run"
    first: int
    last: int
    points: int

    def stat(self, stat: Stat | str) -> Downsampled:
        """One statistic; from coarse rows where it has very many values.

        Then an extreme may be shown in the bucket beside its own.
        """
        stat = Stat(stat)
        run = self._shown(stat)
        rows = run.sampled(stat)
        values = run.at(stat, rows)
        return downsample(run.steps, values, self.first, self.last, self.points, rows)

    def _shown(self, stat: Stat) -> "Run":
        """The run itself, or as its coarse rows show it."""
        thinned = None if stat is Stat.WEIGHT_HASH else self.run.thinned  # hashes have no extremes
        if thinned is None:
            return self.run
        source: Any = self.run.source  # that of a run folder knows without loading anything
        steps = self.run.steps[source.sampled(stat)]
        count = np.diff(np.searchsorted(steps, (self.first, self.last + 1)))[0]
        many = count * len(self.run.by_kind[stat.kind]) > MOST_CELLS
        return thinned if many and count >= WIDE * self.points else self.run

    def scalar(self, name: str) -> Downsampled:
        """One scalar; the arrays have a single column."""
        values = self.run.scalars[name][:, None]
        return downsample(self.run.steps, values, self.first, self.last, self.points)


def bucket_edges(steps: Steps, first: int, last: int, points: int) -> tuple[Indices, Indices]:
    """Cut the steps from `first` to `last` (both included) into at most `points` buckets.

    Returns `starts` and `ends`, indices into `steps`: bucket i is `steps[starts[i]:ends[i]]`. All
    buckets hold equally many steps, only the last may hold fewer; none is empty. Whatever is drawn
    in columns of steps uses this rule, so that columns of different statistics fit each other.
    """
    begin, end = np.searchsorted(steps, first), np.searchsorted(steps, last, side="right")
    size = max(1, -(-int(end - begin) // max(points, 1)))  # rounded up: never more than `points`
    starts = np.arange(begin, end, size)
    return starts, np.minimum(starts + size, end)


def downsample(
    steps: Steps, values: Values, first: int, last: int, points: int, rows: Indices | None = None
) -> Downsampled:
    """The lowest, highest and last finite value of each of the buckets of `bucket_edges`.

    `rows` are the steps, by their place, that `values` are of; None where they are of all.
    """
    starts, ends = bucket_edges(steps, first, last, points)
    rows = np.arange(len(steps)) if rows is None else rows
    begins, stops = np.searchsorted(rows, starts), np.searchsorted(rows, ends)
    filled = np.flatnonzero(begins < stops)  # the others have no value at all
    low, high, newest = np.full((3, len(starts), *values.shape[1:]), np.nan)
    if len(filled):
        values = values[begins[filled[0]] : stops[filled[-1]]]
        # `fmin` and `fmax` pass over NaN, but an infinity would be the extreme of its bucket.
        finite = np.where(np.isinf(values), np.nan, values) if np.isinf(values).any() else values
        cuts = begins[filled] - begins[filled[0]]
        low[filled] = np.fmin.reduceat(finite, cuts, axis=0)
        high[filled] = np.fmax.reduceat(finite, cuts, axis=0)
        # The last finite value is at the end of most buckets, else a few rows before.
        rows = stops[filled] - begins[filled[0]] - 1
        found = finite[rows]
        while (empty := np.isnan(found) & (rows > cuts)[:, None]).any():
            rows = np.maximum(rows - 1, cuts)
            found = np.where(empty, finite[rows], found)
        newest[filled] = found
    return Downsampled(steps[starts], steps[ends - 1], low, high, newest)
