"""`analyze_flow`: how gradients travel through the network and through time."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import Rules, trends
from gradwatch.analysis.flow.network import (
    FlowNetwork,
    connections,
    edges_of,
    levels_of,
    network_of,
    typical_levels,
)
from gradwatch.analysis.flow.paths import CriticalGradientPath, critical_paths
from gradwatch.analysis.flow.regions import (
    GradientDeadZone,
    Region,
    dead_zones,
    exploding_regions,
    vanishing_regions,
)
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import flow as original_flow
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

TINY = 1e-8
NO_SKETCH = "no sketch of the gradient was recorded"


class FlowDirection(StrEnum):
    """How the magnitude moves in time (the original said Forward and Backward)."""

    GROWING = "Growing"
    SHRINKING = "Shrinking"
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"
    UNKNOWN = "Unknown"


class ColorScheme(StrEnum):
    """Colours a drawing of the flow may use; `PALETTES` holds them."""

    DEFAULT = "Default"
    HIGH_CONTRAST = "HighContrast"
    COLOR_BLIND = "ColorBlind"
    MONOCHROME = "Monochrome"


PALETTES = {
    ColorScheme.DEFAULT: ("#30123b", "#4686fb", "#1be5b5", "#a4fc3c", "#fb7e21", "#7a0403"),
    ColorScheme.HIGH_CONTRAST: ("#000000", "#0000ff", "#00ffff", "#ffff00", "#ff0000", "#ffffff"),
    ColorScheme.COLOR_BLIND: ("#00204c", "#31446b", "#666970", "#958f78", "#cbba69", "#ffe945"),
    ColorScheme.MONOCHROME: ("#111111", "#3d3d3d", "#696969", "#959595", "#c1c1c1", "#eeeeee"),
}


@dataclass(frozen=True)
class GradientDirection(Result):
    """Size and direction of a layer's gradient on one step."""

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
    """The gradient of one layer over the run."""

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
    """How the magnitude of one layer's gradient moves over the last samples."""

    layer_name: str
    steps: tuple[int, ...]
    gradient_magnitudes: tuple[float, ...]
    step: int
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float | None


@dataclass(frozen=True)
class FlowConfig(Result):
    """The options that led to a result, and the colours its scheme stands for."""

    show_temporal_flows: bool
    show_critical_paths: bool
    show_problem_regions: bool
    color_scheme: ColorScheme
    palette: tuple[str, ...]
    temporal_window: int
    flow_threshold: float


@dataclass(frozen=True)
class GradientFlow(Result):
    """The result of `analyze_flow`."""

    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: tuple[TemporalGradientFlow, ...]
    flow_network: FlowNetwork
    critical_paths: tuple[CriticalGradientPath, ...]
    vanishing_regions: tuple[Region, ...]
    exploding_regions: tuple[Region, ...]
    dead_zones: tuple[GradientDeadZone, ...]
    visualization_config: FlowConfig


# Norms near the largest double overflow in sums and ratios; infinity is then the answer.
@np.errstate(over="ignore", invalid="ignore")
def analyze_flow(
    run: Run,
    *,
    show_temporal_flows: bool = True,
    show_critical_paths: bool = True,
    show_problem_regions: bool = True,
    color_scheme: ColorScheme | str = ColorScheme.DEFAULT,
    temporal_window: int = 50,
    flow_threshold: float = 0.01,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """Flow of gradients on the recorded layer graph: a `GradientFlow`.

    `temporal_window` is the number of samples shown and judged per layer; an edge that transmits
    less than `flow_threshold` is blocked. `rules="original"` gives the original program's answer.
    """
    if temporal_window < 1 or not 0 < flow_threshold < 1:
        raise GradwatchError(
            "Expected temporal_window ≥ 1 and flow_threshold between 0 and 1, "
            f"got {temporal_window} and {flow_threshold}.",
            Exit.USAGE,
        )
    if Rules(rules) is Rules.ORIGINAL:
        last = int(run.steps[-1]) if len(run.steps) else 0
        return original_flow.analyze_flow(histories(run), current_step=last)
    series = LayerSeries.of(run)
    pairs = connections(run.graph, series.names)
    levels = levels_of(run, series)
    typical = typical_levels(levels)
    edges = edges_of(series.names, levels, pairs, flow_threshold, run.graph.assumed)
    network, bottlenecks = network_of(series, levels, typical, pairs, edges)
    silent = {series.names[i] for i in np.flatnonzero(np.isneginf(typical))}
    sketches = _layer_sketches(run, series.names)
    scheme = ColorScheme(color_scheme)
    return GradientFlow(
        {
            name: _layer_flow(series, column, sketches, bottlenecks[column], temporal_window)
            for column, name in enumerate(series.names)
        },
        _temporal_flows(series, temporal_window) if show_temporal_flows else (),
        network,
        critical_paths(edges, silent) if show_critical_paths else (),
        vanishing_regions(series, pairs) if show_problem_regions else (),
        exploding_regions(series, pairs) if show_problem_regions else (),
        dead_zones(run, series) if show_problem_regions else (),
        FlowConfig(
            show_temporal_flows,
            show_critical_paths,
            show_problem_regions,
            scheme,
            PALETTES[scheme],
            temporal_window,
            flow_threshold,
        ),
    )


# -- one layer -------------------------------------------------------------------------------------


def _layer_flow(
    series: LayerSeries,
    column: int,
    sketches: NDArray[np.float64] | None,
    bottleneck: float,
    window: int,
) -> GradientLayerFlow:
    norms = series.norms[:, column]
    rows = np.flatnonzero(np.isfinite(norms))
    volatility = trends.volatility(series.logs[:, column])
    few = missing("fewer than two positive samples")
    return GradientLayerFlow(
        series.names[column],
        tuple(norms[rows].tolist()),
        _directions(series, column, sketches, rows, window),
        few if volatility is None else 1 / (1 + volatility),
        missing("the layer has no neighbours with a gradient on both sides")
        if bottleneck != bottleneck
        else bottleneck,
        few if volatility is None else volatility,
    )


def _temporal_flows(series: LayerSeries, window: int) -> tuple[TemporalGradientFlow, ...]:
    flows = []
    for column, name in enumerate(series.names):
        rows = np.flatnonzero(np.isfinite(series.norms[:, column]))[-window:]
        if not len(rows):
            continue
        norms, logs = series.norms[rows, column], series.logs[rows, column]
        steps = series.steps[rows]
        fit = trends.line(steps, logs)
        flows.append(
            TemporalGradientFlow(
                name,
                tuple(steps.tolist()),
                tuple(norms.tolist()),
                int(steps[-1]),
                float(norms[-1]),
                _direction(norms, logs),
                fit.stability if fit else missing("fewer than three positive samples"),
            )
        )
    return tuple(flows)


def _direction(norms: NDArray[np.float64], logs: NDArray[np.float64]) -> FlowDirection:
    trend = trends.trend(logs)
    if trend is None:
        silent = len(norms) >= trends.FEWEST and not norms.any()
        return FlowDirection.STAGNANT if silent else FlowDirection.UNKNOWN
    if trends.oscillates(logs):
        return FlowDirection.OSCILLATING
    if trend.rising:
        return FlowDirection.GROWING
    return FlowDirection.SHRINKING if trend.falling else FlowDirection.STAGNANT


def _layer_sketches(run: Run, names: tuple[str, ...]) -> NDArray[np.float64] | None:
    """[step, layer, 32]: the sketches of a layer's parameters add up to the layer's own."""
    if Stat.GRAD_SKETCH not in run.recorded:
        return None
    table = run.series[Stat.GRAD_SKETCH][run.measured(Stat.GRAD_NORM).any(axis=1)]
    position = {name: column for column, name in enumerate(names)}
    sketches = np.zeros((len(table), len(names), table.shape[2]))
    for column, subject in enumerate(run.parameters):
        sketches[:, position[subject.layer]] += np.nan_to_num(table[:, column])
    return sketches


def _directions(
    series: LayerSeries,
    column: int,
    sketches: NDArray[np.float64] | None,
    rows: NDArray[np.intp],
    window: int,
) -> tuple[GradientDirection, ...]:
    shown = rows[-window:]
    norms = series.norms[shown, column]
    # The first one shown is compared with the one before it, where there is one.
    previous = series.norms[rows[-window - 1 : -1], column]
    before = np.concatenate([norms[: len(norms) - len(previous)], previous])
    consistency = 1 - np.abs(norms - before) / (norms + before + TINY)
    units = None if sketches is None else _units(sketches[shown, column])
    first = missing("there is none before it")
    return tuple(
        GradientDirection(
            int(series.steps[row]),
            missing(NO_SKETCH) if units is None else tuple(units[i].tolist()),
            float(norms[i]),
            float(consistency[i]),
            missing(NO_SKETCH) if units is None else float(units[i] @ units[i - 1]) if i else first,
        )
        for i, row in enumerate(shown)
    )


def _units(sketches: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.sqrt((sketches**2).sum(axis=1, keepdims=True))
    units: NDArray[np.float64] = sketches / np.where(sizes > 0, sizes, 1.0)
    return units
