"""The flow network: the recorded layer graph weighted by transmission, and its critical paths.

Transmission of an edge u → v is RMS of u's gradient over RMS of v's: what is left of the gradient
when it has come back from v to u. Layers without parameters are stepped over.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.layers import LayerSeries
from gradwatch.graph import Graph
from gradwatch.result import Result, missing
from gradwatch.stats.medians import median

STRONG_LOW, STRONG_HIGH, WEAK = 0.5, 2.0, 0.1
FACTOR_OF_TWO = 10**0.3
BOTTLENECK = 0.5
CONSISTENT = 0.5
"""Largest spread of ln transmission over time that still counts as consistent."""
KEPT_PATHS = 3
LOST = -300 * math.log(10)
"""ln of a transmission of zero, for sums: three hundred decades."""

Pair = tuple[str, str]


class NodeType(StrEnum):
    """What a layer does to the gradient, or where it stands."""

    SOURCE = "Source"
    SINK = "Sink"
    BOTTLENECK = "Bottleneck"
    AMPLIFIER = "Amplifier"
    ATTENUATOR = "Attenuator"
    NORMAL = "Normal"


class EdgeType(StrEnum):
    """How well an edge transmits the gradient, and how steadily."""

    STRONG = "Strong"
    MODERATE = "Moderate"
    WEAK = "Weak"
    INTERMITTENT = "Intermittent"
    BLOCKED = "Blocked"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class FlowNode(Result):
    """One layer of the network."""

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
    """The connection of two layers."""

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
    """Numbers of the network as a whole."""

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
    """Layers, their connections, and the whole in numbers."""

    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    network_metrics: NetworkMetrics


@dataclass(frozen=True)
class CriticalGradientPath(Result):
    """One way through the network, from a first layer to a last one."""

    path_id: str
    layers: tuple[str, ...]
    path_length: int
    total_flow_strength: float
    """Product of the transmissions along the path."""
    narrowest_flow: float
    bottleneck_layers: tuple[str, ...]
    """Where the largest part of what is lost goes: from-layers of the edges holding half of it."""
    criticality_score: float
    """Decades lost from the end of the path to its beginning."""


# -- edges -----------------------------------------------------------------------------------------


def connections(graph: Graph, names: tuple[str, ...]) -> list[Pair]:
    """Edges between layers with gradients, stepping over those without; forwards only."""
    wanted, order = set(names), graph.order
    pairs: set[Pair] = set()
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
                pairs.add((name, layer))
    return sorted(pairs, key=lambda edge: (order[edge[0]], order[edge[1]]))


def edges_of(
    series: LayerSeries, pairs: list[Pair], threshold: float, assumed: bool
) -> list[FlowEdge]:
    """Each pair with its transmission over time; below `threshold` it is blocked."""
    at = {name: column for column, name in enumerate(series.names)}
    return [
        _edge(pair, _transmission(series, at[pair[0]], at[pair[1]]), threshold, assumed)
        for pair in pairs
    ]


def _transmission(series: LayerSeries, first: int, second: int) -> NDArray[np.float64]:
    """Its logarithm on each step; −inf where the gradient does not arrive, NaN where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: NDArray[np.float64] = np.log(series.rms[:, first] / series.rms[:, second])
    return logs


def _edge(pair: Pair, logs: NDArray[np.float64], threshold: float, assumed: bool) -> FlowEdge:
    measured = logs[~np.isnan(logs)]
    if not len(measured):
        gone = missing("no step has both gradients")
        return FlowEdge(*pair, gone, gone, EdgeType.UNKNOWN, assumed)
    middle = float(np.median(measured))  # of infinite ones too: a gradient that never arrives
    strength = math.exp(middle) if middle > -700 else 0.0
    finite = measured[np.isfinite(measured)]
    spread = float(finite.std()) if len(finite) else 0.0
    blocked = float((measured < math.log(threshold)).mean())
    return FlowEdge(
        *pair, strength, 1 / (1 + spread), _edge_type(strength, spread, blocked, threshold), assumed
    )


def _edge_type(strength: float, spread: float, blocked: float, threshold: float) -> EdgeType:
    if 0.1 <= blocked <= 0.9:
        return EdgeType.INTERMITTENT
    if strength < threshold:
        return EdgeType.BLOCKED
    if strength < WEAK:
        return EdgeType.WEAK
    if STRONG_LOW <= strength <= STRONG_HIGH and spread <= CONSISTENT:
        return EdgeType.STRONG
    return EdgeType.MODERATE


# -- nodes and the network -------------------------------------------------------------------------


def network_of(
    graph: Graph, series: LayerSeries, pairs: list[Pair], edges: list[FlowEdge]
) -> tuple[FlowNetwork, dict[str, float]]:
    """The network, and the bottleneck score of each layer that has neighbours on both sides."""
    bottlenecks = _bottlenecks(series, pairs)
    nodes = _nodes(series, edges, bottlenecks)
    metrics = _metrics(series, _ordered(graph, series.names), pairs, edges, nodes)
    return FlowNetwork(tuple(nodes), tuple(edges), metrics), bottlenecks


def _ordered(graph: Graph, names: tuple[str, ...]) -> list[str]:
    """By the forward pass; layers outside the graph come last."""
    return sorted(names, key=lambda name: graph.order.get(name, len(graph.order)))


def _bottlenecks(series: LayerSeries, pairs: list[Pair]) -> dict[str, float]:
    """Decades lost from a layer's successors to its predecessors, beyond the median layer's."""
    typical = zip(series.names, series.typical.tolist(), strict=True)
    level = {name: math.log10(rms) for name, rms in typical if rms > 0}
    after: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    for a, b in pairs:
        if a in level and b in level:
            after.setdefault(a, []).append(level[b])
            before.setdefault(b, []).append(level[a])
    lost = {
        name: sum(after[name]) / len(after[name]) - sum(before[name]) / len(before[name])
        for name in series.names
        if name in after and name in before
    }
    usual = median(np.array(list(lost.values())))
    return {name: min(max(value - usual, 0.0) / 2, 1.0) for name, value in lost.items()}


def _nodes(
    series: LayerSeries, edges: list[FlowEdge], bottlenecks: dict[str, float]
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
            _node_type(bottlenecks.get(name, 0.0), before.get(name, []), after.get(name, [])),
            missing("no finite sample") if mean is None else mean,
            len(before.get(name, ())) + len(after.get(name, ())),
            share / total,
        )
        for name, mean, share in zip(series.names, means, shares, strict=True)
    ]


def _mean(values: NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _node_type(bottleneck: float, before: list[FlowEdge], after: list[FlowEdge]) -> NodeType:
    """First what it does to the gradient, then where it stands in the backward pass."""
    if bottleneck > BOTTLENECK:
        return NodeType.BOTTLENECK
    if not after and before:
        return NodeType.SOURCE  # the gradient starts at the output side
    if not before and after:
        return NodeType.SINK
    passed = [edge.flow_strength for edge in after if edge.flow_strength is not None]
    strength = float(np.median(passed)) if passed else 1.0  # (of infinite ones too)
    if strength > FACTOR_OF_TWO:
        return NodeType.AMPLIFIER
    return NodeType.ATTENUATOR if strength < 1 / FACTOR_OF_TWO else NodeType.NORMAL


def _metrics(
    series: LayerSeries,
    ordered: list[str],
    pairs: list[Pair],
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


def _connected(names: list[str], pairs: list[Pair]) -> float:
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
    ratio = median(np.log(both[:, 0] / both[:, 1]))
    return math.exp(ratio / (len(series.names) - 1))


# -- paths -----------------------------------------------------------------------------------------

Path = tuple[float, tuple[FlowEdge, ...]]
"""Its score and its edges."""


def critical_paths(
    graph: Graph, names: tuple[str, ...], edges: list[FlowEdge]
) -> tuple[CriticalGradientPath, ...]:
    """The most attenuating and the widest ways through the graph, several of each, ranked."""
    ordered = _ordered(graph, names)
    measured = [edge for edge in edges if edge.edge_type is not EdgeType.UNKNOWN]
    return tuple(
        _described(f"{kind}-{rank}", edges_along)
        for kind in ("attenuating", "widest")
        for rank, (_, edges_along) in enumerate(
            _best(ordered, measured, attenuating=kind == "attenuating"), start=1
        )
    )


def _best(ordered: list[str], edges: list[FlowEdge], *, attenuating: bool) -> list[Path]:
    """Whole paths from a layer without predecessors to one without successors.

    By dynamic programming over the layers in forward order, keeping the best few at each.
    """
    into: dict[str, list[FlowEdge]] = {}
    starts = {edge.from_layer for edge in edges} - {edge.to_layer for edge in edges}
    ends = {edge.to_layer for edge in edges} - {edge.from_layer for edge in edges}
    for edge in edges:
        into.setdefault(edge.to_layer, []).append(edge)
    nothing: Path = (0.0 if attenuating else -math.inf, ())
    best = {name: [nothing] for name in starts}
    for name in ordered:
        ways = [
            (_score(score, edge, attenuating), (*path, edge))
            for edge in into.get(name, ())
            for score, path in best.get(edge.from_layer, ())
        ]
        if ways:
            best[name] = sorted(ways, key=lambda way: way[0])[:KEPT_PATHS]
    complete = sorted((path for name in ends for path in best[name]), key=lambda path: path[0])
    return complete[:KEPT_PATHS]


def _score(before: float, edge: FlowEdge, attenuating: bool) -> float:
    """Smaller is better: the sum of logs, or the narrowest edge with its sign turned."""
    return before + _log(edge) if attenuating else max(before, -_log(edge))


def _log(edge: FlowEdge) -> float:
    return math.log(edge.flow_strength) if edge.flow_strength else LOST


def _described(path_id: str, edges: tuple[FlowEdge, ...]) -> CriticalGradientPath:
    logs = [_log(edge) for edge in edges]
    layers = (edges[0].from_layer, *(edge.to_layer for edge in edges))
    total = sum(logs)
    return CriticalGradientPath(
        path_id,
        layers,
        len(layers),
        math.exp(max(total, -700.0)),
        math.exp(max(min(logs), -700.0)),
        _losing(edges, logs),
        -total / math.log(10),
    )


def _losing(edges: tuple[FlowEdge, ...], logs: list[float]) -> tuple[str, ...]:
    losses = sorted(
        ((-log, i) for i, log in enumerate(logs) if log < 0), key=lambda item: (-item[0], item[1])
    )
    half = sum(loss for loss, _ in losses) / 2
    chosen, sum_so_far = [], 0.0
    for loss, i in losses:
        if sum_so_far >= half:
            break
        sum_so_far += loss
        chosen.append(i)
    return tuple(edges[i].from_layer for i in sorted(chosen))
