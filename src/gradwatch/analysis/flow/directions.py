"""Size and direction of each layer's gradient on the last samples.

There may be millions of them: they are kept as columns, and a `GradientDirection` is made when it
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
from gradwatch.stats import HAS_VALUE, Stat

NO_SKETCH = "directions are kept only for runs made from arrays"
NO_COSINE = "no cosines between gradients were recorded"
REASONS = ("", "no sketch was taken on this step", "a gradient of zero has no direction")
FIRST = "no direction is known before this one"
CHUNK = 1 << 21
"""Numbers of sketches looked at in one go."""

Array = NDArray[np.float64]


_POINTING = ("direction_vector", "direction_cosine", "compared_with_step")
_UNSKETCHED = dict.fromkeys(_POINTING, NO_SKETCH)


class GradientDirection(Result):
    """Size and direction of a layer's gradient on one step."""

    step: int
    direction_vector: tuple[float, ...] | None
    """Unit vector of the 32-number sketch: cosines between them estimate those of gradients."""
    magnitude: float
    consistency_score: float
    """Of magnitude: 1 − |x − previous| / (x + previous); 1 for the first and between zeros."""
    direction_cosine: float | None = None
    """With the last known direction before it."""
    compared_with_step: int | None = None
    """The step of that direction."""

    def __post_init__(self) -> None:
        Result.__post_init__(self)
        if self.direction_vector is None and not self.missing:
            self.__dict__["missing"] = dict(_UNSKETCHED)

    def to_dict(self) -> dict[str, Any]:
        """As of any result; in a run without sketches, without what no step of it can have."""
        tree = Result.to_dict(self)
        if self.missing == _UNSKETCHED:  # `direction_consistency` of the layer says it, once
            for name in ("missing", *_POINTING[1:]):
                del tree[name]
        return tree


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


@dataclass(frozen=True, slots=True)
class Sketches:
    """Unit vectors [layer, sample, 32] of the last samples, and how each agrees with the last."""

    vectors: Array
    reasons: NDArray[np.int8]
    """Why there is none, as a place in `REASONS`; 0 where there is one."""
    cosines: Array
    earlier: NDArray[np.intp]
    """Which sample the cosine is with; −1 where there is none."""


def sketches_of(run: Run, series: LayerSeries, last: Recent) -> Sketches | None:
    """Real directions only: a step that was not sketched has none."""
    if Stat.GRAD_SKETCH not in run.recorded or not last.rows.size:
        return None
    rows = np.unique(last.rows[last.rows >= 0])
    if not len(rows):
        return None
    at = np.searchsorted(rows, last.rows)  # where a layer has fewer samples: any
    vectors = np.empty((*at.shape, Stat.GRAD_SKETCH.width))
    known = np.empty(at.shape, bool)
    run_rows = np.searchsorted(run.steps, series.steps[rows])
    for part, sums, all_known in _merged(run, series.names, run_rows):
        inside = np.arange(sums.shape[1])[:, None]
        vectors[part], known[part] = sums[at[part], inside], all_known[at[part], inside]
    # Not the root of a sum of squares alone: those of numbers beyond 1e±154 leave the range.
    largest = np.abs(vectors).max(axis=2, keepdims=True)
    vectors /= np.where(largest > 0, largest, 1.0)
    sizes = np.sqrt((vectors**2).sum(axis=2))
    vectors /= np.where(sizes > 0, sizes, 1.0)[:, :, None]
    reasons = np.where(known, np.where(sizes > 0, 0, 2), 1).astype(np.int8)
    earlier = _earlier((reasons == 0) & (last.rows >= 0))
    others = np.take_along_axis(vectors, np.maximum(earlier, 0)[:, :, None], 1)
    return Sketches(vectors, reasons, np.einsum("lsw,lsw->ls", vectors, others), earlier)


def _merged(
    run: Run, names: tuple[str, ...], rows: NDArray[np.intp]
) -> Iterator[tuple[slice, Array, NDArray[np.bool_]]]:
    """Some layers at a time: the sum of their parameters' sketches, and whether all are known.

    The sums are [row, layer, 32].
    """
    for part, columns, starts in _layers(run, names, len(rows) * Stat.GRAD_SKETCH.width):
        cells = np.ix_(rows, columns)
        parts = run.at(Stat.GRAD_SKETCH, *cells)
        taken = np.isfinite(parts).all(axis=2)
        parts[~taken] = 0.0
        # What has no gradient, or one of zeros, adds nothing, sketched or not.
        measured = HAS_VALUE[run.states_at(Stat.GRAD_NORM, *cells)]
        known = taken | ~measured | (run.at(Stat.GRAD_NORM, *cells) == 0)
        sums: Array = np.add.reduceat(parts, starts, axis=1)
        yield part, sums, np.logical_and.reduceat(known, starts, axis=1)


def _layers(
    run: Run, names: tuple[str, ...], numbers: int
) -> Iterator[tuple[slice, NDArray[np.intp], NDArray[np.intp]]]:
    """Some layers at a time, each of so many numbers: the columns of their parameters.

    Those of a layer lie side by side; the last array says where each layer's begin.
    """
    position = {name: i for i, name in enumerate(names)}
    owners = np.array([position[subject.layer] for subject in run.parameters], np.intp)
    order = np.argsort(owners, kind="stable")
    begins = np.searchsorted(owners[order], np.arange(len(names) + 1))
    many = max(1, CHUNK // max(numbers, 1))
    for begin in range(0, len(names), many):
        part = slice(begin, min(begin + many, len(names)))
        yield part, order[begins[begin] : begins[part.stop]], begins[part] - begins[begin]


def _earlier(known: NDArray[np.bool_]) -> NDArray[np.intp]:
    """[layer, sample]: the known sample before each known one, else −1."""
    samples = np.where(known, np.arange(known.shape[1]), -1)
    before = np.maximum.accumulate(samples, axis=1)
    shifted = np.concatenate([np.full((len(known), 1), -1), before[:, :-1]], axis=1)
    return np.where(known, shifted, -1)


def mean_cosines(
    run: Run, series: LayerSeries, last: Recent, sketches: Sketches | None
) -> list[Any]:
    """For each layer how well its directions agree with the ones before them, or why not known."""
    if sketches is not None:
        cosines, known = sketches.cosines, sketches.earlier >= 0
    elif Stat.GRAD_COSINE in run.recorded and last.rows.size:
        cosines = _recorded_cosines(run, series, last)
        known = np.isfinite(cosines)
    else:
        return [missing(NO_COSINE)] * len(series.names)
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
    joined = np.full(last.rows.shape, np.nan)
    for part, columns, starts in _layers(run, series.names, len(rows)):
        cells = np.ix_(rows, columns)
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
    """The directions of one layer, as one would have them in a tuple."""

    __slots__ = ("_column", "_last", "_sketches")

    def __init__(self, last: Recent, sketches: Sketches | None, column: int) -> None:
        self._last, self._sketches, self._column = last, sketches, column

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
        rows = [
            {
                "step": step,
                "direction_vector": None,
                "magnitude": norm,
                "consistency_score": consistency,
            }
            for step, norm, consistency in zip(*numbers, strict=True)
        ]
        if self._sketches is not None:
            self._point(rows, self._sketches, part)
        return rows

    def _point(self, rows: list[dict[str, Any]], found: Sketches, part: slice) -> None:
        """Add vector, cosine and the step that is with, or why something of these is missing."""
        tables = (found.vectors, found.reasons, found.cosines, found.earlier)
        columns = (table[self._column, part].tolist() for table in tables)
        steps = self._last.steps[self._column]
        for row, vector, reason, cosine, earlier in zip(rows, *columns, strict=True):
            row["direction_cosine"] = row["compared_with_step"] = None
            if reason:
                row["missing"] = dict.fromkeys(_POINTING, REASONS[reason])
                continue
            row["direction_vector"] = vector
            if earlier < 0:
                row["missing"] = dict.fromkeys(_POINTING[1:], FIRST)
            else:
                row |= {"direction_cosine": cosine, "compared_with_step": int(steps[earlier])}
