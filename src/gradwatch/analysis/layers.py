"""The series gradient and flow analyses look at: one per layer, its parameters merged exactly."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradwatch.original.arithmetic import History
from gradwatch.run import Run
from gradwatch.stats import Stat

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
        seen = run.measured(Stat.GRAD_NORM).any(axis=1)
        owners = [subject.layer for subject in run.parameters]
        names = tuple(layer for layer in run.layers if layer in set(owners))
        position = {layer: column for column, layer in enumerate(names)}
        column = np.array([position[owner] for owner in owners], dtype=np.intp)
        shape = (int(seen.sum()), len(names))
        lengths, known, sick = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape)
        counts = np.zeros(len(names), np.int64)
        for index, subject in enumerate(run.parameters):
            values = norms[seen, index]
            finite = np.isfinite(values)
            # (squares of norms beyond 1e±154 would leave the range)
            own = lengths[:, column[index]]
            np.hypot(own, np.where(finite, values, 0.0), out=own)
            known[:, column[index]] |= finite
            sick[:, column[index]] += bad[seen, index]
            counts[column[index]] += subject.count
        merged = np.where(known, lengths, np.nan)
        return cls(names, run.steps[seen], merged, sick, counts)


def histories(run: Run) -> dict[str, History]:
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
        by_layer[layer] = History(norms[kept].tolist(), series.steps[kept].tolist())
    return by_layer
