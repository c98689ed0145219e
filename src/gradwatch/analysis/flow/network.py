"""The flow network: nodes and edges of the recorded layer graph, weighted by transmission.

Transmission of an edge u → v is RMS of u's gradient over RMS of v's: what is left of the gradient
when it has come back from v to u. Layers without parameters are stepped over.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.flow.levels import EdgeType, NodeType
from gradwatch.analysis.layers import LayerSeries
from gradwatch.graph import Graph
from gradwatch.result import Result, missing

STRONG_LOW, STRONG_HIGH, WEAK = 0.5, 2.0, 0.1
FACTOR_OF_TWO = 10**0.3
BOTTLENECK = 0.5
CONSISTENT = 0.5
"""Largest spread of ln transmission over time that still counts as consistent."""


@dataclass(frozen=True)
class FlowNode(Result):
    layer_name: str
    node_type: NodeType
    gradient_strength: float | None
    """Mean norm."""
    connectivity: int
    """Edges in and out."""
    influence_score: float
    """Share of the squared norm of the whole gradient."""


@dataclass(frozen=True)
class FlowEdge(Result):
    from_layer: str
    to_layer: str
    flow_strength: float | None
    """Median transmission."""
    flow_consistency: float | None
    """1/(1 + spread of ln transmission over time)."""
    edge_type: EdgeType
    assumed: bool
    """The order of registration, not a seen connection."""


@dataclass(frozen=True)
class NetworkMetrics(Result):
    overall_flow_efficiency: float | None
    """Geometric mean of the transmissions."""
    network_connectivity: float | None
    """Pairs of layers that data connect, over all pairs."""
    bottleneck_density: float | None
    flow_stability: float | None
    information_propagation_speed: float | None
    """Transmission per layer from the last to the first: (first RMS / last RMS)^(1/depth)."""


@dataclass(frozen=True)
class FlowNetwork(Result):
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    network_metrics: NetworkMetrics


def contracted(graph: Graph, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Edges between layers with gradients, stepping over those without; forwards only."""
    wanted = set(names)
    order = graph.order
    found: dict[tuple[str, str], None] = {}
    for name in names:
        if name not in order:
            continue
        stack, seen = list(graph.successors.get(name, ())), set()
        while stack:
            layer = stack.pop()
            if layer in seen:
                continue
            seen.add(layer)
            if layer not in wanted:
                stack.extend(graph.successors[layer])
            elif order[layer] > order[name]:  # a layer used twice would close a cycle
                found[name, layer] = None
    return sorted(found, key=lambda edge: (order[edge[0]], order[edge[1]]))


def transmissions(series: LayerSeries, edges: list[tuple[str, str]]) -> NDArray[np.float64]:
    """ln transmission [step, edge]; −inf where the gradient does not arrive, NaN where unknown."""
    at = {name: column for column, name in enumerate(series.names)}
    first = [at[edge[0]] for edge in edges]
    second = [at[edge[1]] for edge in edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: NDArray[np.float64] = np.log(series.rms[:, first] / series.rms[:, second])
    return logs


def edges_of(
    pairs: list[tuple[str, str]], logs: NDArray[np.float64], threshold: float, assumed: bool
) -> list[FlowEdge]:
    return [_edge(pair, logs[:, column], threshold, assumed) for column, pair in enumerate(pairs)]


def _edge(
    pair: tuple[str, str], logs: NDArray[np.float64], threshold: float, assumed: bool
) -> FlowEdge:
    known = logs[~np.isnan(logs)]
    if not len(known):
        gone = missing("no step has both gradients")
        return FlowEdge(*pair, gone, gone, EdgeType.UNKNOWN, assumed)
    median = float(np.median(known))
    strength = math.exp(median) if median > -700 else 0.0
    finite = known[np.isfinite(known)]
    spread = float(finite.std()) if len(finite) else 0.0
    blocked = float((known < math.log(threshold)).mean())
    return FlowEdge(
        *pair, strength, 1 / (1 + spread), edge_type(strength, spread, blocked, threshold), assumed
    )


def edge_type(strength: float, spread: float, blocked: float, threshold: float) -> EdgeType:
    if 0.1 <= blocked <= 0.9:
        return EdgeType.INTERMITTENT
    if strength < threshold:
        return EdgeType.BLOCKED
    if strength < WEAK:
        return EdgeType.WEAK
    if STRONG_LOW <= strength <= STRONG_HIGH and spread <= CONSISTENT:
        return EdgeType.STRONG
    return EdgeType.MODERATE


def bottlenecks(
    names: tuple[str, ...], pairs: list[tuple[str, str]], typical: NDArray[np.float64]
) -> dict[str, float]:
    """Decades lost from a layer's successors to its predecessors, beyond the median layer's."""
    level = {n: math.log10(t) for n, t in zip(names, typical.tolist(), strict=True) if t > 0}
    after: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    for a, b in pairs:
        if a in level and b in level:
            after.setdefault(a, []).append(level[b])
            before.setdefault(b, []).append(level[a])
    lost = {
        name: sum(after[name]) / len(after[name]) - sum(before[name]) / len(before[name])
        for name in names
        if name in after and name in before
    }
    usual = float(np.median(list(lost.values()))) if lost else 0.0
    return {name: min(max(value - usual, 0.0) / 2, 1.0) for name, value in lost.items()}


def nodes_of(
    series: LayerSeries, edges: list[FlowEdge], scores: dict[str, float]
) -> list[FlowNode]:
    means = [_mean(column) for column in series.norms.T]
    largest = max((mean for mean in means if mean), default=1.0)  # squares stay in the range
    shares = [((mean or 0.0) / largest) ** 2 for mean in means]
    total = sum(shares) or 1.0
    before: dict[str, list[FlowEdge]] = {}
    after: dict[str, list[FlowEdge]] = {}
    for edge in edges:
        after.setdefault(edge.from_layer, []).append(edge)
        before.setdefault(edge.to_layer, []).append(edge)
    return [
        FlowNode(
            name,
            node_type(scores.get(name, 0.0), before.get(name, []), after.get(name, [])),
            missing("no finite sample") if mean is None else mean,
            len(before.get(name, ())) + len(after.get(name, ())),
            share / total,
        )
        for name, mean, share in zip(series.names, means, shares, strict=True)
    ]


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def node_type(bottleneck: float, before: list[FlowEdge], after: list[FlowEdge]) -> NodeType:
    """First what it does to the gradient, then where it stands in the backward pass."""
    if bottleneck > BOTTLENECK:
        return NodeType.BOTTLENECK
    if not after and before:
        return NodeType.SOURCE  # the gradient starts at the output side
    if not before and after:
        return NodeType.SINK
    passed = [edge.flow_strength for edge in after if edge.flow_strength is not None]
    strength = float(np.median(passed)) if passed else 1.0
    if strength > FACTOR_OF_TWO:
        return NodeType.AMPLIFIER
    return NodeType.ATTENUATOR if strength < 1 / FACTOR_OF_TWO else NodeType.NORMAL


def metrics(
    series: LayerSeries,
    ordered: list[str],
    pairs: list[tuple[str, str]],
    edges: list[FlowEdge],
    nodes: list[FlowNode],
) -> NetworkMetrics:
    strengths = [edge.flow_strength for edge in edges if edge.flow_strength]
    steady = [edge.flow_consistency for edge in edges if edge.flow_consistency is not None]
    none = missing("there is no edge with a measured flow")
    n = len(nodes)
    narrow = sum(node.node_type is NodeType.BOTTLENECK for node in nodes)
    return NetworkMetrics(
        math.exp(sum(map(math.log, strengths)) / len(strengths)) if strengths else none,
        _connected(ordered, pairs) if n > 1 else missing("fewer than two layers"),
        narrow / n if n else missing("there is no layer"),
        sum(steady) / len(steady) if steady else none,
        _speed(series),
    )


def _connected(names: list[str], pairs: list[tuple[str, str]]) -> float:
    """Reachable pairs by bit sets in reverse order: linear in edges × layers/64."""
    at = {name: i for i, name in enumerate(names)}
    reach = [0] * len(names)
    for a, b in sorted(pairs, key=lambda pair: -at[pair[0]]):
        reach[at[a]] |= reach[at[b]] | (1 << at[b])
    possible = len(names) * (len(names) - 1) / 2
    return sum(bits.bit_count() for bits in reach) / possible


def _speed(series: LayerSeries) -> float | None:
    rms = series.rms[:, [0, -1]] if len(series.names) > 1 else np.empty((0, 2))
    both = rms[(rms > 0).all(axis=1)]
    if not len(both):
        return missing("first and last layer have no common sample")  # type: ignore[no-any-return]
    ratio = float(np.median(np.log(both[:, 0] / both[:, 1])))
    return math.exp(ratio / (len(series.names) - 1))
