"""The original's flow "visualization": layer flows, temporal flows, a network, problem regions."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

from gradwatch.original.arithmetic import (
    GradientHistory,
    Histories,
    consistency,
    divide,
    greatest,
    information_flow_rate,
    least,
    mean,
    total,
    variance,
)
from gradwatch.result import Result

FlowDirection = Literal["Forward", "Backward", "Oscillating", "Stagnant"]
NodeType = Literal["Source", "Sink", "Bottleneck", "Amplifier", "Normal"]
EdgeType = Literal["Strong", "Weak", "Intermittent", "Blocked"]
RegionSeverity = Literal["Moderate", "Critical"]
RecoveryPotential = Literal["Medium", "Low"]
Norms = Mapping[str, Sequence[float]]


class GradientDirection(Result):
    step: int
    direction_vector: tuple[float]
    magnitude: float
    consistency_score: float


class GradientLayerFlow(Result):
    layer_name: str
    gradient_magnitudes: tuple[float, ...]
    gradient_directions: tuple[GradientDirection, ...]
    flow_consistency: float
    bottleneck_score: float
    information_flow_rate: float


class TemporalGradientFlow(Result):
    step: int
    layer_name: str
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float


class FlowNode(Result):
    layer_name: str
    node_type: NodeType
    gradient_strength: float
    connectivity: int
    influence_score: float


class FlowEdge(Result):
    from_layer: str
    to_layer: str
    flow_strength: float
    flow_consistency: float
    edge_type: EdgeType


class NetworkMetrics(Result):
    overall_flow_efficiency: float
    network_connectivity: float
    bottleneck_density: float
    flow_stability: float
    information_propagation_speed: float


class FlowNetwork(Result):
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    network_metrics: NetworkMetrics


class CriticalPath(Result):
    path_id: str
    layers: tuple[str, ...]
    path_length: int
    total_flow_strength: float
    bottleneck_layers: tuple[str, ...]
    criticality_score: float
    optimization_potential: float


class RegionExtent(Result):
    start_layer: str
    end_layer: str
    affected_parameters: int
    duration_steps: int


class ProblemRegion(Result):
    region_id: str
    affected_layers: tuple[str, ...]
    severity_level: RegionSeverity
    extent: RegionExtent
    mitigation_suggestions: tuple[str, ...]


class GradientDeadZone(Result):
    zone_id: str
    affected_layers: tuple[str, ...]
    dead_duration: int
    recovery_potential: RecoveryPotential
    intervention_required: bool


class GradientVisualizationConfig(Result):
    """Handed back as it is; nothing in the original reads it."""

    show_temporal_flows: bool = True
    show_critical_paths: bool = True
    show_problem_regions: bool = True
    color_scheme: str = "Default"
    temporal_window: int = 50
    flow_threshold: float = 0.01


class FlowAnalysis(Result):
    """`GradientFlowVisualization` there."""

    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: tuple[TemporalGradientFlow, ...]
    flow_network: FlowNetwork
    critical_paths: tuple[CriticalPath, ...]
    vanishing_regions: tuple[ProblemRegion, ...]
    exploding_regions: tuple[ProblemRegion, ...]
    dead_zones: tuple[GradientDeadZone, ...]
    visualization_config: GradientVisualizationConfig


@dataclass(frozen=True)
class GradientFlowVisualizer:
    """The original's visualizer, which draws nothing."""

    config: GradientVisualizationConfig = field(default_factory=GradientVisualizationConfig)

    def generate_visualization(
        self, gradient_histories: Histories, current_step: int
    ) -> FlowAnalysis:
        """`current_step` is said of every layer, whatever its own last step.

        Edges join neighbours in insertion order; the original's hash order makes them random.
        """
        norms = {name: list(history.gradient_norms) for name, history in gradient_histories.items()}
        network = _network(norms)
        return FlowAnalysis(
            layer_flows={
                name: _layer_flow(name, history) for name, history in gradient_histories.items()
            },
            temporal_flows=tuple(
                TemporalGradientFlow(current_step, name, x[-1], _direction(x), _stability(x))
                for name, x in norms.items()
                if x
            ),
            flow_network=network,
            critical_paths=_critical_paths(network),
            vanishing_regions=_vanishing_regions(norms),
            exploding_regions=_exploding_regions(norms),
            dead_zones=_dead_zones(norms),
            visualization_config=self.config,
        )

    def create_visualization(self, gradient_histories: Histories) -> FlowAnalysis:
        """The same of step 0."""
        return self.generate_visualization(gradient_histories, 0)


# -- single layers ---------------------------------------------------------------------------------


def _layer_flow(name: str, history: GradientHistory) -> GradientLayerFlow:
    x = list(history.gradient_norms)
    return GradientLayerFlow(
        layer_name=name,
        gradient_magnitudes=tuple(x),
        gradient_directions=_directions(x, history.step_numbers),
        flow_consistency=consistency(x),
        bottleneck_score=_bottleneck_score(x),
        information_flow_rate=information_flow_rate(x),
    )


def _directions(x: Sequence[float], steps: Sequence[int]) -> tuple[GradientDirection, ...]:
    """The "direction" is the norm itself."""
    changes = [0.0, *(divide(abs(b - a), b + a + 1e-8) for a, b in itertools.pairwise(x))]
    return tuple(
        GradientDirection(step, (norm,), norm, 1.0 - change)
        for step, norm, change in zip(steps, x, changes, strict=False)
    )


def _bottleneck_score(x: Sequence[float]) -> float:
    """1 − smallest/mean over time."""
    if not x:
        return 0.0
    centre = mean(x)
    if centre == 0.0:
        return 1.0
    return 1.0 - least(reduce(least, x, math.inf) / centre, 1.0)


def _direction(x: Sequence[float]) -> FlowDirection:
    """From the last three values; an oscillation is looked for only where they fall."""
    if len(x) < 3:
        return "Forward"
    a, b, c = x[-3:]
    if abs(c - a) < 1e-6:
        return "Stagnant"
    if c - a > 0:
        return "Forward"
    return "Oscillating" if (c - b) * (b - a) < 0 else "Backward"


def _stability(x: Sequence[float]) -> float:
    if len(x) < 3:
        return 1.0
    last = x[-5:]
    return 1.0 / (1.0 + variance(last, mean(last)))


# -- the network: a chain of the layers in the order they were met ---------------------------------


def _network(norms: Norms) -> FlowNetwork:
    nodes = tuple(_node(name, x, len(norms)) for name, x in norms.items())
    edges = tuple(_edge(a, norms[a], b, norms[b]) for a, b in itertools.pairwise(norms))
    return FlowNetwork(nodes, edges, _metrics(nodes, edges))


def _node(name: str, x: Sequence[float], layers: int) -> FlowNode:
    """The first type that matches; Sink looks at the sum, Source at a single value."""
    kind: NodeType = "Normal"
    if _bottleneck_score(x) > 0.8:
        kind = "Bottleneck"
    elif information_flow_rate(x) > 1.0:
        kind = "Amplifier"
    elif total(x) < 0.01:
        kind = "Sink"
    elif any(value > 10.0 for value in x):
        kind = "Source"
    strength = mean(x)
    return FlowNode(name, kind, strength, layers, strength * consistency(x))


def _edge(a: str, x: Sequence[float], b: str, y: Sequence[float]) -> FlowEdge:
    """Whatever is left over is Blocked."""
    strength = (information_flow_rate(x) + information_flow_rate(y)) / 2.0
    steady = (consistency(x) + consistency(y)) / 2.0
    kind: EdgeType = "Intermittent" if steady < 0.6 else "Blocked"
    if strength > 1.0 and steady > 0.8:
        kind = "Strong"
    elif strength < 0.1 or steady < 0.3:
        kind = "Weak"
    return FlowEdge(a, b, strength, steady, kind)


def _metrics(nodes: Sequence[FlowNode], edges: Sequence[FlowEdge]) -> NetworkMetrics:
    count = max(len(edges), 1)
    efficiency = total(edge.flow_strength for edge in edges) / count
    connectivity = len(edges) / (max(len(nodes), 1) * max(len(nodes) - 1, 1))
    return NetworkMetrics(
        overall_flow_efficiency=efficiency,
        network_connectivity=connectivity,
        bottleneck_density=divide(len(_bottlenecks(nodes)), len(nodes)),
        flow_stability=total(edge.flow_consistency for edge in edges) / count,
        information_propagation_speed=efficiency * connectivity,
    )


def _bottlenecks(nodes: Sequence[FlowNode]) -> tuple[str, ...]:
    return tuple(node.layer_name for node in nodes if node.node_type == "Bottleneck")


def _critical_paths(network: FlowNetwork) -> tuple[CriticalPath, ...]:
    """One "path" through all nodes."""
    if len(network.nodes) < 2:
        return ()
    return (
        CriticalPath(
            path_id="main_path",
            layers=tuple(node.layer_name for node in network.nodes),
            path_length=len(network.nodes),
            total_flow_strength=total(edge.flow_strength for edge in network.edges),
            bottleneck_layers=_bottlenecks(network.nodes),
            criticality_score=0.8,
            optimization_potential=0.6,
        ),
    )


# -- problem regions: one layer each, with a constant for the parameters ---------------------------

VANISHING_HINTS = ("Initialise the weights better.", "Add skip connections.", "Clip gradients.")
EXPLODING_HINTS = ("Clip the gradients.", "Lower the learning rate.", "Check the initialisation.")


def _vanishing_regions(norms: Norms) -> tuple[ProblemRegion, ...]:
    """Mean over the whole history below 1e-5."""
    means = {name: mean(x) for name, x in norms.items()}
    extreme = {name: value < 1e-7 for name, value in means.items() if value < 1e-5}
    return _regions("vanishing", extreme, norms, VANISHING_HINTS)


def _exploding_regions(norms: Norms) -> tuple[ProblemRegion, ...]:
    """Any norm of the history above 100."""
    largest = {name: reduce(greatest, x, -math.inf) for name, x in norms.items()}
    extreme = {name: value > 1000.0 for name, value in largest.items() if value > 100.0}
    return _regions("exploding", extreme, norms, EXPLODING_HINTS)


def _regions(
    kind: str, extreme: Mapping[str, bool], norms: Norms, hints: tuple[str, ...]
) -> tuple[ProblemRegion, ...]:
    return tuple(
        ProblemRegion(
            region_id=f"{kind}_{number}",
            affected_layers=(name,),
            severity_level="Critical" if is_extreme else "Moderate",
            extent=RegionExtent(name, name, 1000, len(norms[name])),
            mitigation_suggestions=hints,
        )
        for number, (name, is_extreme) in enumerate(extreme.items(), 1)
    )


def _dead_zones(norms: Norms) -> tuple[GradientDeadZone, ...]:
    """More than half of the samples below 1e-8."""
    dead = {name: sum(value < 1e-8 for value in x) for name, x in norms.items()}
    shares = {name: dead[name] / len(x) for name, x in norms.items() if dead[name] > len(x) / 2}
    return tuple(
        GradientDeadZone(
            zone_id=f"dead_zone_{number}",
            affected_layers=(name,),
            dead_duration=dead[name],
            recovery_potential="Low" if share > 0.9 else "Medium",
            intervention_required=share > 0.8,
        )
        for number, (name, share) in enumerate(shares.items(), 1)
    )
