"""The critical ways of the gradient through the network, from a first layer to a last one."""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from gradwatch.analysis.flow.network import LARGEST_LOG, EdgeType, FlowEdge
from gradwatch.result import Result, missing

KEPT_PATHS = 3
DECADE = math.log(10)
LOST = -300 * DECADE
"""ln of a transmission of zero, for sums and ranks: three hundred decades, more than any other."""


class CriticalGradientPath(Result):
    """One way through the network, from a first layer to a last one."""

    path_id: str
    layers: tuple[str, ...]
    path_length: int
    total_flow_strength: float
    """Product of the transmissions along the path; 0 through a layer without a gradient."""
    narrowest_flow: float
    bottleneck_layers: tuple[str, ...]
    """Where the largest part of what is lost goes: layers at the edges that hold half of it."""
    criticality_score: float
    """Decades lost from the end of the path to its beginning; 300 for each edge nothing passes."""
    optimization_potential: float | None
    """Decades won if its bottlenecks passed the gradient on unchanged."""


Way = tuple[float, int, Any]
"""Its score so far, its last edge, and the way to that edge (None at the beginning)."""


def critical_paths(
    edges: Sequence[FlowEdge], silent: Collection[str]
) -> tuple[CriticalGradientPath, ...]:
    """The most attenuating and the widest ways through the graph, several of each, ranked.

    `silent` names the layers without a gradient: what is lost beside them is lost there.
    """
    measured = [edge for edge in edges if edge.edge_type is not EdgeType.UNKNOWN]
    strengths = [edge.flow_strength for edge in measured]
    logs = [max(math.log(strength), LOST) if strength else LOST for strength in strengths]
    return tuple(
        _described(f"{kind}-{rank}", way, measured, logs, silent)
        for kind in ("attenuating", "widest")
        for rank, way in enumerate(_best(measured, logs, kind == "attenuating"), start=1)
    )


def _best(edges: Sequence[FlowEdge], logs: Sequence[float], attenuating: bool) -> list[Way]:
    """Whole paths from a layer without predecessors to one without successors.

    The edges come in forward order, so the best few ways to a layer are known when its first edge
    onwards is met. Smaller scores are better: the sum of logs, or the narrowest edge turned round.
    """
    ways: dict[str, list[Way]] = {}
    for i, edge in enumerate(edges):
        here = ways.get(edge.from_layer)
        if here is not None and len(here) > KEPT_PATHS:
            here = ways[edge.from_layer] = _fewest(here)
        there = ways.setdefault(edge.to_layer, [])
        if not here:
            there.append((logs[i] if attenuating else -logs[i], i, None))
            continue
        for way in here:
            score = way[0] + logs[i] if attenuating else max(way[0], -logs[i])
            there.append((score, i, way))
    ends = {edge.to_layer: None for edge in edges}
    for edge in edges:
        ends.pop(edge.from_layer, None)
    return _fewest([way for name in ends for way in ways[name]])


def _fewest(ways: list[Way]) -> list[Way]:
    return sorted(ways, key=lambda way: way[0])[:KEPT_PATHS]


def _described(
    path_id: str,
    way: Way,
    edges: Sequence[FlowEdge],
    logs: Sequence[float],
    silent: Collection[str],
) -> CriticalGradientPath:
    along: list[int] = []
    step: Way | None = way
    while step is not None:
        along.append(step[1])
        step = step[2]
    along.reverse()
    layers = (edges[along[0]].from_layer, *(edges[i].to_layer for i in along))
    total = math.fsum(logs[i] for i in along)
    losing = _losing(along, logs)
    narrow = dict.fromkeys(_culprit(edges[i], silent) for i in losing)
    narrowest = min(edges[i].flow_strength or 0.0 for i in along)
    return CriticalGradientPath(
        path_id,
        layers,
        len(layers),
        math.exp(min(total, LARGEST_LOG)) if narrowest else 0.0,
        narrowest,
        tuple(narrow),
        -total / DECADE,
        _potential([logs[i] for i in losing]),
    )


def _potential(losses: Sequence[float]) -> Any:
    if not losses:
        return missing("no edge loses any")
    if min(losses) <= LOST:
        return missing("nothing passes its bottleneck, so what could pass is not known")
    return -math.fsum(losses) / DECADE


def _culprit(edge: FlowEdge, silent: Collection[str]) -> str:
    """The gradient comes from behind: it is lost where it arrives, unless it never set out."""
    never_set_out = edge.to_layer in silent and edge.from_layer not in silent
    return edge.to_layer if never_set_out else edge.from_layer


def _losing(along: Sequence[int], logs: Sequence[float]) -> list[int]:
    """The few edges that hold half of what is lost, in the order of the path."""
    losses = sorted((i for i in along if logs[i] < 0), key=lambda i: logs[i])
    half = sum(logs[i] for i in losses) / 2
    so_far = itertools.accumulate((logs[i] for i in losses), initial=0.0)
    return sorted(i for i, lost in zip(losses, so_far, strict=False) if lost > half)
