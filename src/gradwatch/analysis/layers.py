"""The series gradient and flow analyses look at: one per layer, its parameters merged exactly."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwatch.original.arithmetic import GradientHistory
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, medians

HISTORY_LENGTH = 1000
"""Norms the original's debugger keeps of a layer."""


@dataclass(frozen=True)
class LayerSeries:
    """Gradient norms [step, layer] in forward order; NaN where nothing finite was measured."""

    names: tuple[str, ...]
    steps: NDArray[np.int64]
    norms: NDArray[np.float64]
    nonfinite: NDArray[np.float64]
    """Non-finite elements [step, layer]; 0 where nothing was measured."""
    counts: NDArray[np.int64]
    """Elements of each layer; 0 where the run does not know."""

    @cached_property
    def rms(self) -> NDArray[np.float64]:
        """Norm over √count: comparable between layers of different size (the norm, if unknown)."""
        return self.norms / np.sqrt(np.maximum(self.counts, 1))

    @cached_property
    def logs(self) -> NDArray[np.float64]:
        """ln of the positive norms; NaN elsewhere."""
        logs = np.full(self.norms.shape, np.nan)
        np.log(self.norms, out=logs, where=self.norms > 0)
        return logs

    @cached_property
    def changes(self) -> NDArray[np.float64]:
        """Change of ln norm from one recorded step to the next."""
        return np.diff(self.logs, axis=0)

    @cached_property
    def total(self) -> NDArray[np.float64]:
        """Norm of the whole gradient on each step; NaN where any layer was not measured finite."""
        total: NDArray[np.float64] = np.sqrt((self.norms**2).sum(axis=1))
        return total

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean norm of each layer; NaN where nothing finite was measured."""
        finite = np.isfinite(self.norms)
        sums = np.where(finite, self.norms, 0.0).sum(axis=0)
        return np.where(finite.any(axis=0), sums / np.maximum(finite.sum(axis=0), 1), np.nan)

    @cached_property
    def squares(self) -> NDArray[np.float64]:
        """Squared mean norm of each layer; 0 where nothing finite was measured."""
        squares: NDArray[np.float64] = np.nan_to_num(self.means) ** 2
        return squares

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """Median RMS of each layer; NaN where nothing finite was measured."""
        return medians(self.rms)

    @cached_property
    def decades(self) -> NDArray[np.float64]:
        """log10 of each layer's typical RMS; NaN where that is not positive."""
        decades = np.full(len(self.names), np.nan)
        np.log10(self.typical, out=decades, where=self.typical > 0)
        return decades

    @cached_property
    def largest(self) -> float:
        """Typical RMS of the strongest layer; NaN without any."""
        finite = self.typical[np.isfinite(self.typical)]
        return float(finite.max()) if len(finite) else float("nan")

    @cached_property
    def middle(self) -> float:
        """Typical RMS of the median layer, of those that have a positive one; NaN without any."""
        return median(self.typical[self.typical > 0])

    @cached_property
    def correlations(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of the changes of every two layers over the steps both have, and how many those are."""
        # All pairs by matrix products: absent steps are zeros, and `common` counts those present.
        present = np.isfinite(self.changes)
        mask = present.astype(float)
        x = np.where(present, self.changes, 0.0)
        x = np.where(present, x - x.sum(axis=0) / np.maximum(mask.sum(axis=0), 1), 0.0)
        common = mask.T @ mask
        with np.errstate(invalid="ignore", divide="ignore"):
            first, second = (x.T @ mask) / common, (mask.T @ x) / common
            covariance = (x.T @ x) / common - first * second
            squares = (x * x).T @ mask / common - first**2
            correlation = covariance / np.sqrt(squares * squares.T)
        return np.clip(correlation, -1, 1), common

    def last(self, window: int) -> "LayerSeries":
        """The last `window` recorded steps."""
        cut = slice(max(0, len(self.steps) - window), None)
        return LayerSeries(
            self.names, self.steps[cut], self.norms[cut], self.nonfinite[cut], self.counts
        )

    @classmethod
    def of(cls, run: Run) -> "LayerSeries":
        """Merge the parameters of each layer; only steps on which some gradient was recorded."""
        norms = run.series[Stat.GRAD_NORM]
        bad = np.nan_to_num(run.series[Stat.GRAD_NAN]) + np.nan_to_num(run.series[Stat.GRAD_INF])
        rows = run.measured(Stat.GRAD_NORM).any(axis=1)
        layers = {subject.layer for subject in run.parameters}
        names = tuple(layer for layer in run.layers if layer in layers)
        position = {layer: column for column, layer in enumerate(names)}
        shape = (int(rows.sum()), len(names))
        lengths, measured, nonfinite = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape)
        counts = np.zeros(len(names), np.int64)
        for index, subject in enumerate(run.parameters):
            column = position[subject.layer]
            values = norms[rows, index]
            finite = np.isfinite(values)
            # Not a sum of squares: those of norms beyond 1e±154 would leave the range.
            length = lengths[:, column]
            np.hypot(length, np.where(finite, values, 0.0), out=length)
            measured[:, column] |= finite
            nonfinite[:, column] += bad[rows, index]
            counts[column] += subject.count
        merged = np.where(measured, lengths, np.nan)
        return cls(names, run.steps[rows], merged, nonfinite, counts)


def histories(run: Run) -> dict[str, GradientHistory]:
    """What the original's rules take: norms by layer, NaN or Inf where an element is."""
    series = LayerSeries.of(run)
    rows = np.searchsorted(run.steps, series.steps)
    has_nan = np.nan_to_num(run.series[Stat.GRAD_NAN])[rows] > 0
    by_layer = {}
    for column, layer in enumerate(series.names):
        parameters = [i for i, subject in enumerate(run.parameters) if subject.layer == layer]
        nonfinite = series.nonfinite[:, column] > 0
        spoilt = np.where(has_nan[:, parameters].any(axis=1), np.nan, np.inf)
        norms = np.where(nonfinite, spoilt, series.norms[:, column])
        kept = np.flatnonzero(np.isfinite(series.norms[:, column]) | nonfinite)[-HISTORY_LENGTH:]
        by_layer[layer] = GradientHistory(norms[kept].tolist(), series.steps[kept].tolist())
    return by_layer
