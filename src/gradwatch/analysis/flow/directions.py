"""Each layer's gradient on the last samples: its sizes, and how well its directions agree.

There may be millions of sizes: they are kept as columns, and a `GradientDirection` is made when it
is asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.run.join_rules import measured_before
from gradwatch.stats import Stat

NO_COSINE = "no cosines between gradients were recorded"
CHUNK = 1 << 21
"""Numbers of one statistic looked at in one go."""

Array = NDArray[np.float64]


class GradientDirection(Result):
    """Size of a layer's gradient on one step, and how near it is to the one before."""

    step: int
    magnitude: float
    consistency_score: float
    """Of magnitude: 1 − |x − previous| / (x + previous); 1 for the first and between zeros."""


# -- the samples -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recent:
    """The last samples of each layer, [layer, sample], the newest at the end."""

    rows: NDArray[np.intp]
    """Of the series; −1 where a layer has fewer samples."""
    steps: NDArray[np.int64]
    norms: Array
    consistency: Array
    first: NDArray[np.intp]
    """Where the samples of each layer begin."""


def recent(series: LayerSeries, window: int) -> Recent:
    """The last `window` finite samples of each layer."""
    # One more: the first one shown is compared with the one before it, where there is one.
    rows = _last_rows(series.norms, window + 1)
    absent = rows < 0
    norms = series.norms[rows, np.arange(len(rows))[:, None]]
    norms[absent] = np.nan
    before = np.concatenate([norms[:, :1], norms[:, :-1]], axis=1) / 2
    half = norms / 2  # so that sums of norms near the largest double stay in the range
    apart, together = np.abs(half - before), half + before
    share = np.zeros(norms.shape)  # the first of a layer, or two zeros: nothing has changed
    np.divide(apart, together, out=share, where=together > 0)
    shown = slice(max(0, rows.shape[1] - window), None)
    steps = series.steps[rows[:, shown]] if len(series.steps) else rows[:, shown]
    first = absent[:, shown].sum(axis=1)
    return Recent(rows[:, shown], steps, norms[:, shown], 1 - share[:, shown], first)


def _last_rows(norms: Array, count: int) -> NDArray[np.intp]:
    """[layer, sample]: rows of the last finite norms of each layer, −1 where there are fewer."""
    length, layers = norms.shape
    width = min(count, length)
    rows = np.tile(np.arange(length - width, length), (layers, 1))
    for column in np.flatnonzero(~np.isfinite(norms[length - width :]).all(axis=0)):
        found = np.flatnonzero(np.isfinite(norms[:, column]))[-width:]
        rows[column] = -1
        rows[column, width - len(found) :] = found
    return rows


# -- their directions ------------------------------------------------------------------------------


def mean_cosines(run: Run, series: LayerSeries, last: Recent) -> list[Any]:
    """For each layer how well its directions agree with the ones before them, or why not known."""
    if Stat.GRAD_COSINE not in run.recorded or not last.rows.size:
        return [missing(NO_COSINE)] * len(series.names)
    cosines = _recorded_cosines(run, series, last)
    known = np.isfinite(cosines)
    count = known.sum(axis=1)
    means = np.where(known, cosines, 0.0).sum(axis=1) / np.maximum(count, 1)
    few = missing("fewer than two directions are known")
    return [float(mean) if many else few for mean, many in zip(means, count, strict=True)]


def _recorded_cosines(run: Run, series: LayerSeries, last: Recent) -> Array:
    """[layer, sample]: the recorded cosines of each layer's parameters, joined; NaN without any.

    Inner products add up: a parameter's is its cosine × its norm × its norm measured before. One
    without a cosine adds nothing.
    """
    first = max(int(last.rows[last.rows >= 0].min(initial=len(series.steps))) - 1, 0)
    rows = np.searchsorted(run.steps, series.steps[first:])
    position = {name: i for i, name in enumerate(series.names)}
    owners = np.array([position[subject.layer] for subject in run.parameters], np.intp)
    columns = np.argsort(owners, kind="stable")  # the parameters of a layer side by side
    begins = np.searchsorted(owners[columns], np.arange(len(position) + 1))
    many = max(1, CHUNK // max(len(rows), 1))
    joined = np.full(last.rows.shape, np.nan)
    for begin in range(0, len(position), many):
        part = slice(begin, min(begin + many, len(position)))
        starts = begins[part] - begins[begin]
        cells = np.ix_(rows, columns[begins[begin] : begins[part.stop]])
        now, cosines = run.at(Stat.GRAD_NORM, *cells), run.at(Stat.GRAD_COSINE, *cells)
        before = measured_before(now)
        products = cosines * now * before
        sums = np.add.reduceat(np.nan_to_num(products), starts, axis=1)
        there = np.logical_or.reduceat(np.isfinite(products), starts, axis=1)
        sizes = [np.hypot.reduceat(np.nan_to_num(x), starts, axis=1) for x in (now, before)]
        with np.errstate(invalid="ignore", divide="ignore"):
            whole = np.where(there, sums / sizes[0] / sizes[1], np.nan)
        samples, layers = last.rows[part], np.arange(len(starts))[:, None]
        joined[part] = np.where(samples < 0, np.nan, whole[np.maximum(samples - first, 0), layers])
    return joined


class Directions(Sequence[GradientDirection]):
    """Those of one layer, as one would have them in a tuple."""

    __slots__ = ("_column", "_last")

    def __init__(self, last: Recent, column: int) -> None:
        self._last, self._column = last, column

    def __len__(self) -> int:
        samples: int = self._last.rows.shape[1]
        return samples - int(self._last.first[self._column])

    def __iter__(self) -> Iterator[GradientDirection]:
        return map(GradientDirection.from_dict, self.to_list())

    @overload
    def __getitem__(self, index: int) -> GradientDirection: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GradientDirection, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Directions):
            return self.to_list() == other.to_list()
        return tuple(self) == other

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def to_list(self) -> list[dict[str, Any]]:
        """Plain JSON of every one."""
        last, column = self._last, self._column
        part = slice(int(last.first[column]), None)
        numbers = [
            table[column, part].tolist() for table in (last.steps, last.norms, last.consistency)
        ]
        return [
            {"step": step, "magnitude": norm, "consistency_score": consistency}
            for step, norm, consistency in zip(*numbers, strict=True)
        ]
