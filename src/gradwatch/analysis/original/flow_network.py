"""The flow network of the original: a chain of the layers in the order they were met."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import EdgeType, NodeType
from gradwatch.analysis.original.statistics import consistency, information_flow_rate
from gradwatch.analysis.result import Result

Norms = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class FlowNode(Result):
    layer_name: str
    node_type: NodeType
    gradient_strength: float
    connectivity: int
    influence_score: float


@dataclass(frozen=True)
class FlowEdge(Result):
    from_layer: str
    to_layer: str
    flow_strength: float
    flow_consistency: float
    edge_type: EdgeType


@dataclass(frozen=True)
class NetworkMetrics(Result):
    overall_flow_efficiency: float
    network_connectivity: float
    bottleneck_density: float
    flow_stability: float
    information_propagation_speed: float


@dataclass(frozen=True)
class FlowNetwork(Result):
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    network_metrics: NetworkMetrics


@dataclass(frozen=True)
class CriticalPath(Result):
    path_id: str
    layers: tuple[str, ...]
    path_length: int
    total_flow_strength: float
    bottleneck_layers: tuple[str, ...]
    criticality_score: float
    optimization_potential: float


def bottleneck_score(x: Sequence[float]) -> float:
    """1 − smallest/mean over time."""
    if not x:
        return 0.0
    centre = floats.mean(x)
    if centre == 0.0:
        return 1.0
    lowest = reduce(floats.least, x, float("inf"))
    return 1.0 - floats.least(floats.divide(lowest, centre), 1.0)


def network(norms: Norms) -> FlowNetwork:
    nodes = tuple(_node(name, x, len(norms)) for name, x in norms.items())
    names = list(norms)
    edges = tuple(_edge(norms, a, b) for a, b in itertools.pairwise(names))
    return FlowNetwork(nodes, edges, _metrics(nodes, edges))


def critical_paths(graph: FlowNetwork) -> tuple[CriticalPath, ...]:
    """One "path" through all nodes."""
    if len(graph.nodes) < 2:
        return ()
    return (
        CriticalPath(
            path_id="main_path",
            layers=tuple(node.layer_name for node in graph.nodes),
            path_length=len(graph.nodes),
            total_flow_strength=floats.total(edge.flow_strength for edge in graph.edges),
            bottleneck_layers=tuple(n.layer_name for n in graph.nodes if _is_bottleneck(n)),
            criticality_score=0.8,
            optimization_potential=0.6,
        ),
    )


def _node(name: str, x: Sequence[float], layers: int) -> FlowNode:
    strength = floats.mean(x)
    return FlowNode(name, node_type(x), strength, layers, strength * consistency(x))


def node_type(x: Sequence[float]) -> NodeType:
    """First match; Sink looks at the sum, Source at a single value."""
    if bottleneck_score(x) > 0.8:
        return NodeType.BOTTLENECK
    if information_flow_rate(x) > 1.0:
        return NodeType.AMPLIFIER
    if floats.total(x) < 0.01:
        return NodeType.SINK
    return NodeType.SOURCE if any(value > 10.0 for value in x) else NodeType.NORMAL


def _edge(norms: Norms, a: str, b: str) -> FlowEdge:
    strength = (information_flow_rate(norms[a]) + information_flow_rate(norms[b])) / 2.0
    steady = (consistency(norms[a]) + consistency(norms[b])) / 2.0
    return FlowEdge(a, b, strength, steady, edge_type(strength, steady))


def edge_type(strength: float, steady: float) -> EdgeType:
    """Whatever is left over is Blocked."""
    if strength > 1.0 and steady > 0.8:
        return EdgeType.STRONG
    if strength < 0.1 or steady < 0.3:
        return EdgeType.WEAK
    return EdgeType.INTERMITTENT if steady < 0.6 else EdgeType.BLOCKED


def _metrics(nodes: Sequence[FlowNode], edges: Sequence[FlowEdge]) -> NetworkMetrics:
    count = float(max(len(edges), 1))
    efficiency = floats.total(edge.flow_strength for edge in edges) / count
    possible = float(max(len(nodes), 1) * max(len(nodes) - 1, 1))
    connectivity = len(edges) / possible
    return NetworkMetrics(
        overall_flow_efficiency=efficiency,
        network_connectivity=connectivity,
        bottleneck_density=floats.divide(sum(map(_is_bottleneck, nodes)), len(nodes)),
        flow_stability=floats.total(edge.flow_consistency for edge in edges) / count,
        information_propagation_speed=efficiency * connectivity,
    )


def _is_bottleneck(node: FlowNode) -> bool:
    return node.node_type is NodeType.BOTTLENECK
