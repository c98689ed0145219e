"""Critical paths: the most attenuating and the widest ways through the graph, several, ranked."""

import math
from dataclasses import dataclass

from gradwatch.analysis.flow.levels import EdgeType
from gradwatch.analysis.flow.network import FlowEdge
from gradwatch.result import Result

KEPT = 3
LOST = -300 * math.log(10)
"""A transmission of zero, for sums: three hundred decades."""


@dataclass(frozen=True)
class CriticalGradientPath(Result):
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


Path = tuple[float, tuple[FlowEdge, ...]]


def critical_paths(ordered: list[str], edges: list[FlowEdge]) -> tuple[CriticalGradientPath, ...]:
    """By dynamic programming over the layers in forward order, keeping the best few at each."""
    known = [edge for edge in edges if edge.edge_type is not EdgeType.UNKNOWN]
    worst = _best(ordered, known, attenuating=True)
    widest = _best(ordered, known, attenuating=False)
    found = [_described("attenuating", rank, path) for rank, path in enumerate(worst)]
    return tuple(found + [_described("widest", rank, path) for rank, path in enumerate(widest)])


def _best(ordered: list[str], edges: list[FlowEdge], *, attenuating: bool) -> list[Path]:
    """Whole paths from a layer without predecessors to one without successors."""
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
            best[name] = sorted(ways, key=lambda way: way[0])[:KEPT]
    return sorted((path for name in ends for path in best[name]), key=lambda path: path[0])[:KEPT]


def _score(before: float, edge: FlowEdge, attenuating: bool) -> float:
    """Smaller is better: the sum of logs, or the narrowest edge with its sign turned."""
    return before + _log(edge) if attenuating else max(before, -_log(edge))


def _log(edge: FlowEdge) -> float:
    return math.log(edge.flow_strength) if edge.flow_strength else LOST


def _described(kind: str, rank: int, path: Path) -> CriticalGradientPath:
    edges = path[1]
    logs = [_log(edge) for edge in edges]
    layers = (edges[0].from_layer, *(edge.to_layer for edge in edges))
    total = sum(logs)
    return CriticalGradientPath(
        f"{kind}-{rank + 1}",
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
