"""Flow "visualization" data of the original: layer flows, temporal flows, network, regions."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.flow_network import (
    CriticalPath,
    FlowNetwork,
    bottleneck_score,
    critical_paths,
    network,
)
from gradwatch.analysis.original.flow_regions import (
    GradientDeadZone,
    ProblemRegion,
    dead_zones,
    exploding_regions,
    vanishing_regions,
)
from gradwatch.analysis.original.history import Histories, History
from gradwatch.analysis.original.levels import FlowDirection
from gradwatch.analysis.original.statistics import consistency, information_flow_rate
from gradwatch.analysis.result import Result


@dataclass(frozen=True)
class GradientDirection(Result):
    step: int
    direction_vector: tuple[float]
    magnitude: float
    consistency_score: float


@dataclass(frozen=True)
class GradientLayerFlow(Result):
    layer_name: str
    gradient_magnitudes: tuple[float, ...]
    gradient_directions: tuple[GradientDirection, ...]
    flow_consistency: float
    bottleneck_score: float
    information_flow_rate: float


@dataclass(frozen=True)
class TemporalGradientFlow(Result):
    step: int
    layer_name: str
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float


@dataclass(frozen=True)
class VisualizationConfig(Result):
    """Echoed; nothing reads it."""

    show_temporal_flows: bool = True
    show_critical_paths: bool = True
    show_problem_regions: bool = True
    color_scheme: str = "Default"
    temporal_window: int = 50
    flow_threshold: float = 0.01


@dataclass(frozen=True)
class FlowAnalysis(Result):
    """`GradientFlowVisualization` there."""

    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: tuple[TemporalGradientFlow, ...]
    flow_network: FlowNetwork
    critical_paths: tuple[CriticalPath, ...]
    vanishing_regions: tuple[ProblemRegion, ...]
    exploding_regions: tuple[ProblemRegion, ...]
    dead_zones: tuple[GradientDeadZone, ...]
    visualization_config: VisualizationConfig


def analyze_flow(histories: Histories, current_step: int = 0) -> FlowAnalysis:
    """Edges join neighbours in insertion order; the original's hash order makes them random."""
    norms = {name: list(history.gradient_norms) for name, history in histories.items()}
    graph = network(norms)
    return FlowAnalysis(
        layer_flows={name: _layer_flow(history) for name, history in histories.items()},
        temporal_flows=tuple(
            TemporalGradientFlow(current_step, name, x[-1], direction(x), _stability(x))
            for name, x in norms.items()
            if x
        ),
        flow_network=graph,
        critical_paths=critical_paths(graph),
        vanishing_regions=vanishing_regions(norms),
        exploding_regions=exploding_regions(norms),
        dead_zones=dead_zones(norms),
        visualization_config=VisualizationConfig(),
    )


def _layer_flow(history: History) -> GradientLayerFlow:
    x = list(history.gradient_norms)
    return GradientLayerFlow(
        layer_name=history.layer_name,
        gradient_magnitudes=tuple(x),
        gradient_directions=tuple(_directions(x, list(history.step_numbers))),
        flow_consistency=consistency(x),
        bottleneck_score=bottleneck_score(x),
        information_flow_rate=information_flow_rate(x),
    )


def _directions(x: Sequence[float], steps: Sequence[int]) -> list[GradientDirection]:
    """The "direction" is the norm itself."""
    found = []
    for i, (norm, step) in enumerate(zip(x, steps, strict=True)):
        change = floats.divide(abs(norm - x[i - 1]), norm + x[i - 1] + 1e-8) if i else 0.0
        found.append(GradientDirection(step, (norm,), norm, 1.0 - change))
    return found


def direction(x: Sequence[float]) -> FlowDirection:
    """From the last three values; an oscillation is looked for only where they fall."""
    if len(x) < 3:
        return FlowDirection.FORWARD
    a, b, c = x[-3:]
    if abs(c - a) < 1e-6:
        return FlowDirection.STAGNANT
    if c - a > 0:
        return FlowDirection.FORWARD
    return FlowDirection.OSCILLATING if (c - b) * (b - a) < 0 else FlowDirection.BACKWARD


def _stability(x: Sequence[float]) -> float:
    if len(x) < 3:
        return 1.0
    last = x[-5:]
    return floats.divide(1.0, 1.0 + floats.variance(last, floats.mean(last)))
