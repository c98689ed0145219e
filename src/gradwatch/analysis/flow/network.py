"""The flow network: the recorded layer graph weighted by transmission.

Transmission of an edge u → v is RMS of u's gradient over RMS of v's: what is left of the gradient
when it has come back from v to u. On a step on which one of the two has no gradient at all, nothing
passes: 0. Layers without parameters are stepped over.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.layers import LayerSeries
from gradwatch.graph import Graph
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat, State
from gradwatch.stats.medians import median, thinned

STRONG_LOW, STRONG_HIGH, WEAK = 0.5, 2.0, 0.1
FACTOR_OF_TWO = 10**0.3
BOTTLENECK = 0.5
CONSISTENT = 0.5
"""Largest spread of ln transmission over time that still counts as consistent."""
FAINTEST = 1e-6
"""Least transmission that counts in the efficiency: a blocked edge does not hide all others."""
LARGEST_LOG = 700.0
"""e to this is still a double."""
MOST_STEPS = 4096
"""Steps a transmission is taken from; of a longer run this many are taken, evenly spread."""
CHUNK = 1 << 21
"""Numbers looked at in one go, so that memory does not grow with layers × steps."""
CHUNK_BITS = 8192

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]
"""[edge, 2]: columns of two layers of a `LayerSeries`, the one nearer to the input first."""


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


class FlowEdge(Result):
    """The connection of two layers."""

    from_layer: str
    to_layer: str
    flow_strength: float | None
    """Median transmission; 0 where one of the two layers has no gradient."""
    flow_consistency: float | None
    """1/(1 + spread of ln transmission over time)."""
    edge_type: EdgeType
    assumed: bool
    """The order of registration, not a seen connection."""


class NetworkMetrics(Result):
    """Numbers of the network as a whole."""

    overall_flow_efficiency: float | None
    """Geometric mean of the transmissions, each counted as 1e-6 to 1e6 (a blocked one as 1e-6)."""
    network_connectivity: float | None
    """Pairs of layers that data connect, over all pairs."""
    bottleneck_density: float | None
    flow_stability: float | None
    """Mean consistency of the edges through which something passes."""
    information_propagation_speed: float | None
    """Transmission per layer from the last to the first: (first RMS / last RMS)^(1/depth)."""


class FlowNetwork(Result):
    """Layers, their connections, and the whole in numbers."""

    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    network_metrics: NetworkMetrics


# -- edges -----------------------------------------------------------------------------------------


def connections(graph: Graph, names: tuple[str, ...]) -> Pairs:
    """Edges between layers with gradients, stepping over those without; forwards only.

    They are sorted by the forward pass: whatever leads into a layer stands before what leaves it.
    """
    column, order = {name: i for i, name in enumerate(names)}, graph.order
    pairs: set[tuple[str, str]] = set()
    for name in names:
        stack, seen = list(graph.successors.get(name, ())), set()
        while stack:
            layer = stack.pop()
            if layer in seen:
                continue
            seen.add(layer)
            if layer not in column:
                stack.extend(graph.successors[layer])
            elif order[layer] > order[name]:  # a layer used twice would close a cycle
                pairs.add((name, layer))
    forwards = sorted(pairs, key=lambda edge: (order[edge[0]], order[edge[1]]))
    return np.array([(column[a], column[b]) for a, b in forwards], np.intp).reshape(-1, 2)


def _levels(run: Run, series: LayerSeries) -> Array:
    """ln RMS [layer, step]: −inf where a gradient is zero or None, NaN where it is unknown."""
    rows = thinned(np.arange(len(series.steps)), MOST_STEPS)
    rms = series.norms[rows].T / np.sqrt(np.maximum(series.counts, 1))[:, None]
    states = run.states_at(Stat.GRAD_NORM, np.searchsorted(run.steps, series.steps[rows])).T
    without = states == State.NO_GRADIENT
    if without.any():
        # Where no parameter that should learn had any gradient, not even zeros.
        absent: dict[str, NDArray[np.bool_]] = {}
        for row, subject in zip(without, run.parameters, strict=True):
            if not subject.frozen:
                absent[subject.layer] = absent.get(subject.layer, row) & row
        for column, name in enumerate(series.names):
            rms[column, absent.get(name, False)] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(rms, out=rms)


def _edges(
    names: Sequence[str], levels: Array, pairs: Pairs, threshold: float, assumed: bool
) -> tuple[FlowEdge, ...]:
    """Each pair with its transmission over time; below `threshold` it is blocked."""
    size = max(1, CHUNK // max(levels.shape[1], 1))
    edges: list[FlowEdge] = []
    for begin in range(0, len(pairs), size):
        part = pairs[begin : begin + size]
        numbers = _transmissions(levels, part, math.log(threshold))
        for (a, b), strength, spread, blocked in zip(
            part.tolist(), *(column.tolist() for column in numbers), strict=True
        ):
            kind = _edge_type(strength, spread, blocked, threshold)
            steady = missing("nothing passes on any step") if spread != spread else 1 / (1 + spread)
            if kind is EdgeType.UNKNOWN:
                strength = steady = missing("no step has both gradients")
            edges.append(FlowEdge(names[a], names[b], strength, steady, kind, assumed))
    return tuple(edges)


def _transmissions(levels: Array, pairs: Pairs, threshold: float) -> tuple[Array, Array, Array]:
    """The median transmission, the spread of its logarithm where any passes, the share below."""
    first, second = levels[pairs[:, 0]], levels[pairs[:, 1]]
    with np.errstate(invalid="ignore"):
        logs = first - second
    nothing = np.isneginf(first) | np.isneginf(second)
    logs[nothing & ~np.isnan(first) & ~np.isnan(second)] = -np.inf
    logs.sort(axis=1)  # −inf first, NaN last
    passing = np.isfinite(logs)
    many = np.maximum(passing.sum(axis=1), 1)
    kept = np.where(passing, logs, 0.0)
    rest = np.where(passing, kept - (kept.sum(axis=1) / many)[:, None], 0.0)
    spread = np.sqrt((rest * rest).sum(axis=1) / many)
    spread[~passing.any(axis=1)] = np.nan
    below = (logs < threshold).sum(axis=1) / np.maximum((~np.isnan(logs)).sum(axis=1), 1)
    # Bounded: the ratio of two doubles need not be one.
    return np.exp(np.minimum(_middles(logs), LARGEST_LOG)), spread, below


def _middles(ordered: Array) -> Array:
    """Medians of sorted rows, −inf counting as a value and NaN not; NaN where there is none."""
    if not ordered.shape[1]:
        return np.full(len(ordered), np.nan)
    count = (~np.isnan(ordered)).sum(axis=1)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0)[:, None] // 2, 1)[:, 0]
    places = np.minimum(count // 2, ordered.shape[1] - 1)[:, None]
    return np.where(count > 0, (low + np.take_along_axis(ordered, places, 1)[:, 0]) / 2, np.nan)


def _edge_type(strength: float, spread: float, blocked: float, threshold: float) -> EdgeType:
    if math.isnan(strength):
        return EdgeType.UNKNOWN
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
    run: Run, series: LayerSeries, pairs: Pairs, threshold: float
) -> tuple[FlowNetwork, list[float], frozenset[str]]:
    """The network, each layer's bottleneck score, and the layers that mostly have no gradient.

    The score of a layer without neighbours on both sides is NaN.
    """
    levels = _levels(run, series)
    edges = _edges(series.names, levels, pairs, threshold, run.graph.assumed)
    typical = _middles(np.sort(levels, axis=1))
    out, into = (np.bincount(column, minlength=len(typical)) for column in pairs.T)
    scores = _bottlenecks(typical, pairs)
    # What has no gradient itself lets nothing through.
    scores[(into > 0) & (out > 0) & np.isneginf(typical)] = 1.0
    nodes = _nodes(series, scores, into, out, _passed(edges, np.isfinite(typical[pairs[:, 1]])))
    silent = frozenset(series.names[i] for i in np.flatnonzero(np.isneginf(typical)).tolist())
    return FlowNetwork(nodes, edges, _metrics(levels, pairs, edges, nodes)), scores.tolist(), silent


def _bottlenecks(typical: Array, pairs: Pairs) -> Array:
    """Decades lost from a layer's successors to its predecessors, beyond the median layer's.

    Halved and held within 0 … 1. Neighbours without a gradient have no level and do not count.
    """
    decades = typical / math.log(10)
    known = pairs[np.isfinite(decades[pairs]).all(axis=1)]
    after = _mean_over(known[:, 0], decades[known[:, 1]], len(typical))
    before = _mean_over(known[:, 1], decades[known[:, 0]], len(typical))
    lost = after - before
    return np.clip((lost - median(lost)) / 2, 0.0, 1.0)


def _mean_over(groups: NDArray[np.intp], values: Array, count: int) -> Array:
    """Mean of the values of each group; NaN for a group without any."""
    sums = np.bincount(groups, values, count)
    many = np.bincount(groups, minlength=count)
    return np.where(many > 0, sums / np.maximum(many, 1), np.nan)


def _passed(edges: Sequence[FlowEdge], telling: NDArray[np.bool_]) -> dict[str, list[float]]:
    """What each layer passes on of the gradient of its successors.

    What a successor without a gradient does not send back says nothing about the layer.
    """
    passed: dict[str, list[float]] = {}
    for edge, tells in zip(edges, telling.tolist(), strict=True):
        if edge.flow_strength is not None and tells:
            passed.setdefault(edge.from_layer, []).append(edge.flow_strength)
    return passed


def _nodes(
    series: LayerSeries,
    scores: Array,
    into: NDArray[np.intp],
    out: NDArray[np.intp],
    passed: Mapping[str, Sequence[float]],
) -> tuple[FlowNode, ...]:
    shares = series.squares / (series.squares.sum() or 1.0)
    columns = (series.means, shares, scores, into, out)
    return tuple(
        FlowNode(
            name,
            _node_type(score, before, after, passed.get(name, ())),
            missing("no finite sample") if math.isnan(mean) else mean,
            before + after,
            share,
        )
        for name, mean, share, score, before, after in zip(
            series.names, *(column.tolist() for column in columns), strict=True
        )
    )


def _node_type(bottleneck: float, into: int, out: int, passed: Sequence[float]) -> NodeType:
    """First what it does to the gradient, then where it stands in the backward pass."""
    if bottleneck > BOTTLENECK:
        return NodeType.BOTTLENECK
    if into and not out:
        return NodeType.SOURCE  # the gradient starts at the output side
    if out and not into:
        return NodeType.SINK
    strength = statistics.median(passed) if passed else 1.0
    if strength > FACTOR_OF_TWO:
        return NodeType.AMPLIFIER
    return NodeType.ATTENUATOR if strength < 1 / FACTOR_OF_TWO else NodeType.NORMAL


def _metrics(
    levels: Array, pairs: Pairs, edges: Sequence[FlowEdge], nodes: Sequence[FlowNode]
) -> NetworkMetrics:
    strengths = [edge.flow_strength for edge in edges if edge.flow_strength is not None]
    steady = [edge.flow_consistency for edge in edges if edge.flow_consistency is not None]
    none = missing("there is no edge with a measured flow")
    n = len(nodes)
    narrow = sum(node.node_type is NodeType.BOTTLENECK for node in nodes)
    logs = [math.log(min(max(strength, FAINTEST), 1 / FAINTEST)) for strength in strengths]
    return NetworkMetrics(
        math.exp(sum(logs) / len(logs)) if logs else none,
        _connected(n, pairs) if n > 1 else missing("fewer than two layers"),
        narrow / n if n else missing("there is no layer"),
        sum(steady) / len(steady) if steady else none,
        _speed(levels),
    )


def _connected(layers: int, pairs: Pairs) -> float:
    """Pairs of layers that data connect, over all pairs.

    Each layer holds the set of layers it reaches as the bits of a number, some thousand layers at a
    time: all bits at once would take layers² / 8 bytes.
    """
    reached = 0
    backwards = pairs[::-1].tolist()
    for begin in range(0, layers, CHUNK_BITS):
        reach = [0] * layers
        for a, b in backwards:
            bits = reach[b]
            if begin <= b < begin + CHUNK_BITS:
                bits |= 1 << (b - begin)
            if bits:
                reach[a] |= bits
        reached += sum(bits.bit_count() for bits in reach)
    return reached / (layers * (layers - 1) / 2)


def _speed(levels: Array) -> Any:
    if len(levels) < 2:
        return missing("fewer than two layers")
    with np.errstate(invalid="ignore"):
        ratio = median(levels[0] - levels[-1])
    if math.isnan(ratio):
        return missing("first and last layer have no common sample")
    return math.exp(min(ratio / (len(levels) - 1), LARGEST_LOG))
