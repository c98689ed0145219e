"""The series gradient and flow analyses look at: one per layer, its parameters merged exactly.

A run that went NaN or Inf is looked at up to where it did; what came after tells only that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.checks.context import context
from gradwatch.original.arithmetic import GradientHistory
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, medians

HISTORY_LENGTH = 1000
"""Norms the original's debugger keeps of a layer."""
BLOCK = 1 << 22
"""Cells worked on at once: long runs of many layers must not be copied whole."""


@dataclass(frozen=True)
class LayerSeries:
    """Gradient norms [step, layer] in forward order; NaN where nothing finite was measured.

    Only steps on which some gradient was recorded, none that a gradient scaler skipped, and none
    from the first non-finite one on.
    """

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    norms: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Elements of each layer; 0 where the run does not know."""
    non_finite_samples: NDArray[np.int64]
    """On how many steps of the whole run each layer's gradient held a NaN or Inf."""
    non_finite_since: int | None = None
    """The step at which the run went NaN or Inf; the series ends before it."""

    @cached_property
    def logs(self) -> NDArray[np.float64]:
        """ln of the positive norms; NaN elsewhere."""
        return trends.logs(self.norms)

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean norm of each layer; NaN where nothing finite was measured."""
        # Scaled, as the sum of norms near the end of the range would leave it; by a power of two,
        # which rounds nothing.
        largest = np.fmax.reduce(self.norms, axis=0, initial=0.0)
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1)
        sums, samples = np.zeros(len(self.names)), np.zeros(len(self.names), np.int64)
        # Row by row, as the original adds: layers of equal mean stay equal.
        height = max(1, BLOCK // max(len(self.names), 1))
        for begin in range(0, len(self.norms), height):
            part = self.norms[begin : begin + height]
            finite = np.isfinite(part)
            samples += finite.sum(axis=0)
            sums += (np.where(finite, part, 0.0) / unit).sum(axis=0)
        return np.where(samples > 0, sums / np.maximum(samples, 1) * unit, np.nan)

    @cached_property
    def squares(self) -> NDArray[np.float64]:
        """Squared mean norm of each layer, the largest being 1; 0 where nothing was measured."""
        known = np.nan_to_num(self.means)
        return np.asarray((known / (float(known.max(initial=0.0)) or 1.0)) ** 2)

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """Median RMS of each layer; NaN where nothing finite was measured."""
        roots = np.sqrt(np.maximum(self.counts, 1))
        parts = (medians(norms / roots[columns]) for columns, norms in self.blocks())
        return np.concatenate([np.empty(0), *parts])

    @cached_property
    def decades(self) -> NDArray[np.float64]:
        """log10 of each layer's typical RMS; NaN where that is not positive."""
        empty = np.full(len(self.names), np.nan)
        return np.asarray(np.log10(self.typical, out=empty, where=self.typical > 0))

    @cached_property
    def middle(self) -> float:
        """Typical RMS of the median layer, of those that have a positive one; NaN without any."""
        return median(self.typical[self.typical > 0])

    @cached_property
    def away(self) -> NDArray[np.float64]:
        """Decades between each layer's typical RMS and the median layer's, either way."""
        return np.asarray(np.abs(self.decades - np.log10(self.middle)))

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """The norms in parts of at most `BLOCK` cells: whole columns, and which these are."""
        return column_blocks(self.norms)

    def last(self, window: int) -> "LayerSeries":
        """The last `window` recorded steps."""
        cut = slice(max(0, len(self.steps) - window), None)
        return replace(self, steps=self.steps[cut], norms=self.norms[cut])

    @classmethod
    def of(cls, run: Run) -> "LayerSeries":
        """Merge the parameters of each layer over the finite part of the run."""
        ctx = context(run)
        names, columns = _owners(run)
        rows = ctx.rows(Stat.GRAD_NORM)
        rows = rows[~ctx.skipped[rows]]
        norms = run.at(Stat.GRAD_NORM, rows)
        counts, bad = np.zeros((2, len(names)), np.int64)
        np.add.at(counts, columns, np.array([s.count for s in run.parameters], np.int64))
        since = None
        if ctx.went_bad:
            bad = _spoilt(run, columns, np.flatnonzero(~ctx.skipped))[0].sum(axis=0)
            since = int(run.steps[ctx.end])
        return cls(names, run.steps[rows], _merged(norms, columns), counts, bad, since)


def column_blocks(values: NDArray[np.float64]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """A table in parts of at most `BLOCK` cells (at least one column), and their columns."""
    width = max(1, BLOCK // max(len(values), 1))
    for begin in range(0, values.shape[1], width):
        columns = slice(begin, begin + width)
        # Each column in one piece: reducing a few long columns takes a fifth of the time.
        yield columns, np.asfortranarray(values[:, columns])


def histories(run: Run) -> dict[str, GradientHistory]:
    """What the original's rules take: norms by layer, uncut, NaN or Inf where an element is."""
    names, columns = _owners(run)
    rows = run.measured_rows(Stat.GRAD_NORM)
    norms = _merged(run.at(Stat.GRAD_NORM, rows), columns)
    spoilt, has_nan = _spoilt(run, columns, rows)
    norms = np.where(spoilt, np.where(has_nan, np.nan, np.inf), norms)
    sampled = np.isfinite(norms) | spoilt
    steps = run.steps[rows]
    by_layer = {}
    for column, layer in enumerate(names):
        kept = np.flatnonzero(sampled[:, column])[-HISTORY_LENGTH:]
        by_layer[layer] = GradientHistory(norms[kept, column].tolist(), steps[kept].tolist())
    return by_layer


def _owners(run: Run) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """The layers that own parameters, in forward order, and the place of each parameter's layer."""
    owners = [subject.layer for subject in run.parameters]
    owning = set(owners)
    names = tuple(layer for layer in run.layers if layer in owning)
    position = {layer: column for column, layer in enumerate(names)}
    return names, np.array([position[layer] for layer in owners], np.intp)


def _by_layer(columns: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Parameters with those of a layer side by side, and where each layer begins among them."""
    order = np.argsort(columns, kind="stable")
    return order, np.flatnonzero(np.diff(columns[order], prepend=-1))


def _merged(norms: NDArray[np.float64], columns: NDArray[np.intp]) -> NDArray[np.float64]:
    """Norms [step, layer] of the parameters' norms; NaN where no parameter has a finite one."""
    if (columns == np.arange(len(columns))).all() and not np.isinf(norms).any():
        return norms  # one parameter in each layer: nothing to merge, nothing to copy
    order, starts = _by_layer(columns)
    merged = np.empty((len(norms), len(starts)))
    height = max(1, BLOCK // max(len(columns), 1))
    for begin in range(0, len(norms), height):
        values = norms[begin : begin + height, order]
        finite = np.isfinite(values)
        measured = np.logical_or.reduceat(finite, starts, axis=1)
        with np.errstate(over="ignore"):
            lengths = np.hypot.reduceat(np.where(finite, values, 0.0), starts, axis=1)
        known = measured & np.isfinite(lengths)
        merged[begin : begin + height] = np.where(known, lengths, np.nan)
    return merged


def _spoilt(
    run: Run, columns: NDArray[np.intp], rows: NDArray[np.intp]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of these rows, [step, layer]: where the gradient holds a NaN or Inf, and where a NaN."""
    order, starts = _by_layer(columns)
    nothing = np.zeros((len(rows), len(starts)), bool)
    found = [
        np.logical_or.reduceat((run.at(stat, rows) > 0)[:, order], starts, axis=1)
        if stat in run.recorded and len(starts)
        else nothing
        for stat in (Stat.GRAD_NAN, Stat.GRAD_INF)
    ]
    return found[0] | found[1], found[0]
