"""One layer's flow: magnitudes, directions from the recorded sketch, how it moves in time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.flow.levels import FlowDirection
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

TINY = 1e-8
NO_SKETCH = "no sketch of the gradient was recorded"


@dataclass(frozen=True)
class GradientDirection(Result):
    step: int
    direction_vector: tuple[float, ...] | None
    """Unit vector of the 32-number sketch: cosines between them estimate those of gradients."""
    magnitude: float
    consistency_score: float
    """Of magnitude: 1 − |x − previous| / (x + previous)."""
    direction_cosine: float | None
    """With the direction before; the first has none."""


@dataclass(frozen=True)
class GradientLayerFlow(Result):
    layer_name: str
    gradient_magnitudes: tuple[float, ...]
    gradient_directions: tuple[GradientDirection, ...]
    """Of the last `temporal_window` samples."""
    flow_consistency: float | None
    bottleneck_score: float | None
    """Decades of gradient lost across this layer beyond the usual, halved, 0 … 1."""
    volatility: float | None


@dataclass(frozen=True)
class TemporalGradientFlow(Result):
    layer_name: str
    steps: tuple[int, ...]
    gradient_magnitudes: tuple[float, ...]
    step: int
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float | None


def layer_flow(
    series: LayerSeries,
    column: int,
    sketches: NDArray[np.float64] | None,
    bottleneck: float | None,
    window: int,
) -> GradientLayerFlow:
    norms = series.norms[:, column]
    kept = np.flatnonzero(np.isfinite(norms))
    logs = trends.finite(series.logs[:, column])
    moves = float(np.abs(np.diff(logs)).mean()) if len(logs) > 1 else None
    few = missing("fewer than two positive samples")
    return GradientLayerFlow(
        series.names[column],
        tuple(norms[kept].tolist()),
        _directions(series, column, sketches, kept, window),
        few if moves is None else 1 / (1 + moves),
        missing("the layer has no neighbours on both sides") if bottleneck is None else bottleneck,
        few if moves is None else moves,
    )


def temporal_flow(series: LayerSeries, column: int, window: int) -> TemporalGradientFlow | None:
    kept = np.flatnonzero(np.isfinite(series.norms[:, column]))[-window:]
    if not len(kept):
        return None
    norms, steps = series.norms[kept, column], series.steps[kept]
    logs = series.logs[kept, column]
    fit = trends.line(steps, logs)
    return TemporalGradientFlow(
        series.names[column],
        tuple(steps.tolist()),
        tuple(norms.tolist()),
        int(steps[-1]),
        float(norms[-1]),
        direction(norms, logs),
        missing("fewer than three positive samples") if fit is None else 1 / (1 + fit.spread),
    )


def direction(norms: NDArray[np.float64], logs: NDArray[np.float64]) -> FlowDirection:
    found = trends.trend(logs)
    if found is None:
        silent = len(norms) >= trends.FEWEST and not norms.any()
        return FlowDirection.STAGNANT if silent else FlowDirection.UNKNOWN
    if trends.oscillates(logs):
        return FlowDirection.OSCILLATING
    if found.rising:
        return FlowDirection.GROWING
    return FlowDirection.SHRINKING if found.falling else FlowDirection.STAGNANT


def layer_sketches(run: Run, names: tuple[str, ...]) -> NDArray[np.float64] | None:
    """[step, layer, 32]: the sketches of a layer's parameters add up to the layer's own."""
    if Stat.GRAD_SKETCH not in run.recorded:
        return None
    seen = run.measured(Stat.GRAD_NORM).any(axis=1)
    table = run.series[Stat.GRAD_SKETCH][seen]
    position = {name: column for column, name in enumerate(names)}
    out = np.zeros((len(table), len(names), table.shape[2]))
    for column, subject in enumerate(run.parameters):
        out[:, position[subject.layer]] += np.nan_to_num(table[:, column])
    return out


def _directions(
    series: LayerSeries,
    column: int,
    sketches: NDArray[np.float64] | None,
    kept: NDArray[np.intp],
    window: int,
) -> tuple[GradientDirection, ...]:
    rows = kept[-window:]
    norms = series.norms[rows, column]
    before = np.concatenate([norms[:1], norms[:-1]])
    consistency = 1 - np.abs(norms - before) / (norms + before + TINY)
    if len(kept) > len(rows):  # the first one shown has one before it
        previous = series.norms[kept[-window - 1], column]
        consistency[0] = 1 - abs(norms[0] - previous) / (norms[0] + previous + TINY)
    units = None if sketches is None else _units(sketches[rows, column])
    first = missing("there is none before it")
    return tuple(
        GradientDirection(
            int(series.steps[row]),
            missing(NO_SKETCH) if units is None else tuple(units[i].tolist()),
            float(norms[i]),
            float(consistency[i]),
            missing(NO_SKETCH) if units is None else float(units[i] @ units[i - 1]) if i else first,
        )
        for i, row in enumerate(rows)
    )


def _units(sketches: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.sqrt((sketches**2).sum(axis=1, keepdims=True))
    units: NDArray[np.float64] = sketches / np.where(sizes > 0, sizes, 1.0)
    return units
