"""The bounded queue of one layer's gradient norms, and such queues from a `Run`."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gradwatch.analysis.layers import LayerSeries
from gradwatch.analysis.original import floats
from gradwatch.run import Run
from gradwatch.stats import Stat

CAPACITY = 1000
"""What the original's debugger keeps per layer."""


@dataclass
class History:
    """One layer; a `max_history_length` of 0 still keeps one sample."""

    layer_name: str
    max_history_length: int = CAPACITY
    gradient_norms: deque[float] = field(default_factory=deque)
    step_numbers: deque[int] = field(default_factory=deque)

    def add(self, norm: float, step: int) -> None:
        """Drop the oldest sample when full, then append; nothing checks the step."""
        if len(self.gradient_norms) >= self.max_history_length and self.gradient_norms:
            self.gradient_norms.popleft()
            self.step_numbers.popleft()
        self.gradient_norms.append(norm)
        self.step_numbers.append(step)

    @property
    def trend_slope(self) -> float | None:
        """Slope per sample (not per step); None below three samples."""
        return floats.slope(self.gradient_norms) if len(self.gradient_norms) >= 3 else None


Histories = Mapping[str, History]


def record(
    layer: str, norms: Iterable[float], steps: Iterable[int], limit: int = CAPACITY
) -> History:
    """Feed norms one by one."""
    history = History(layer, limit)
    for norm, step in zip(norms, steps, strict=True):
        history.add(float(norm), int(step))
    return history


def from_run(run: Run) -> dict[str, History]:
    """One queue per layer, in forward order; NaN or Inf elements make the norm NaN or Inf."""
    series = LayerSeries.of(run)
    rows = np.searchsorted(run.steps, series.steps)
    nan = np.nan_to_num(run.series[Stat.GRAD_NAN])[rows] > 0
    found = {}
    for column, layer in enumerate(series.names):
        own = [i for i, subject in enumerate(run.parameters) if subject.layer == layer]
        infinite = np.where(nan[:, own].any(axis=1), np.nan, np.inf)
        norms = np.where(series.nonfinite[:, column] > 0, infinite, series.norms[:, column])
        kept = np.isfinite(series.norms[:, column]) | (series.nonfinite[:, column] > 0)
        found[layer] = record(layer, norms[kept].tolist(), series.steps[kept].tolist())
    return found
