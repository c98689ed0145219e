"""The flow network: layers (or blocks of them) placed by the real graph, and its problems."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gradwatch.analysis.flow.network import connections, network_of
from gradwatch.analysis.flow.paths import CriticalGradientPath, critical_paths
from gradwatch.analysis.flow.regions import GradientDeadZone, Region, problems_of
from gradwatch.analysis.layers import LayerSeries
from gradwatch.graph import Graph
from gradwatch.run import Run, block_of
from gradwatch.stats import Stat
from gradwatch.views.model.layers import LayerRow
from gradwatch.views.model.titles import rounded

MOST_NODES = 64
"""More cannot be told apart on a screen: then layers are grouped into the blocks they belong to."""
FEWEST_GROUPS = 6
"""Fewer would show nothing of the network."""
MOST_TENSORS = 2_000
MOST_VALUES = 2_000_000
"""Larger runs are shown without it, so that a page opens in a second or two."""
MOST_REGIONS = 12
MOST_LAYERS = 12
THRESHOLD = 0.01
"""An edge that transmits less is blocked: the same as in `gradwatch analyze --flow`."""


def flow(graph: Graph, layers: Sequence[LayerRow]) -> dict[str, Any]:
    """Nodes with rank (distance from the input) and lane (place beside each other), and edges."""
    group_of, grouped = _grouping(graph)
    names = list(dict.fromkeys(group_of[node.layer] for node in graph.nodes))
    position = {name: index for index, name in enumerate(names)}
    edges = sorted(
        {
            (position[group_of[a]], position[group_of[b]])
            for a, b in graph.edges
            if group_of[a] != group_of[b]
        }
    )
    ranks = _ranks(len(names), edges)
    lanes = _lanes(ranks, edges)
    members: list[list[int]] = [[] for _ in names]
    for index, layer in enumerate(layers):
        if layer.name in group_of:
            members[position[group_of[layer.name]]].append(index)
    kinds = {node.layer: node for node in graph.nodes}
    return {
        "assumed": graph.assumed,
        "grouped": grouped,
        "nodes": [
            {
                "name": name,
                "kind": kinds[name].kind if name in kinds and not grouped else "",
                "opaque": name in kinds and kinds[name].opaque,
                "rank": ranks[index],
                "lane": lanes[index],
                "layers": members[index],
            }
            for index, name in enumerate(names)
        ],
        "edges": [list(edge) for edge in edges],
    }


def _grouping(graph: Graph) -> tuple[Mapping[str, str], bool]:
    """The finest grouping that leaves at most `MOST_NODES`."""
    names = [node.layer for node in graph.nodes]
    ways: list[Callable[[str], str]] = [
        lambda name: name,
        block_of,
        lambda name: ".".join(name.split(".")[:2]),
        lambda name: name.split(".")[0],
    ]
    for depth, way in enumerate(ways):
        group_of = {name: way(name) for name in names}
        groups = len(set(group_of.values()))
        if groups <= MOST_NODES and (depth == 0 or groups >= FEWEST_GROUPS):
            return group_of, depth > 0
    return _spans(names), True


def _spans(names: Sequence[str]) -> dict[str, str]:
    """Neighbouring blocks joined, where names give no better grouping."""
    blocks = list(dict.fromkeys(map(block_of, names)))
    size = -(-len(blocks) // MOST_NODES)
    label: dict[str, str] = {}
    for begin in range(0, len(blocks), size):
        part = blocks[begin : begin + size]
        label |= dict.fromkeys(part, part[0] if len(part) == 1 else _from_to(part[0], part[-1]))
    return {name: label[block_of(name)] for name in names}


def _from_to(first: str, last: str) -> str:
    """`blocks.0–7` of `blocks.0` and `blocks.7`; both names where they do not begin alike."""
    (head, _, _), (other, _, end) = first.rpartition("."), last.rpartition(".")
    return f"{first}–{end}" if head and head == other else f"{first} … {last}"


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest way from the input. Nodes are in forward order; edges back are not followed."""
    ranks = [0] * count
    for source, target in sorted(edge for edge in edges if edge[0] < edge[1]):
        ranks[target] = max(ranks[target], ranks[source] + 1)
    return ranks


def _lanes(ranks: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """In each rank a node takes the free lane nearest to the mean lane of what feeds it."""
    feeding: dict[int, list[int]] = {}
    for source, target in edges:
        if source < target:
            feeding.setdefault(target, []).append(source)
    lanes = [0] * len(ranks)
    for rank in range(max(ranks, default=-1) + 1):
        taken: set[int] = set()
        members = [i for i, at in enumerate(ranks) if at == rank]
        wanted = {i: fmean([lanes[s] for s in feeding.get(i, ())] or [0]) for i in members}
        for node in sorted(members, key=lambda i: (wanted[i], i)):
            free = (lane for lane in range(len(members) + len(taken)) if lane not in taken)
            lanes[node] = min(free, key=lambda lane: abs(lane - wanted[node]))
            taken.add(lanes[node])
    return lanes


def flow_problems(run: Run) -> dict[str, Any]:
    """`paths` (most attenuating first) and `regions`; empty where the run is too large to load."""
    tensors = len(run.parameters)
    small = len(run.steps) * tensors <= MOST_VALUES and tensors <= MOST_TENSORS
    if Stat.GRAD_NORM not in run.recorded or not len(run.steps) or not small:
        return {"paths": [], "regions": []}
    series = LayerSeries.of(run)
    pairs = connections(run.graph, series.names)
    network, _, silent = network_of(run, series, pairs, THRESHOLD)
    vanishing, exploding, dead = problems_of(run, series, pairs)
    regions = [
        *(_spread("vanishing", region) for region in vanishing),
        *(_spread("exploding", region) for region in exploding),
        *map(_dead, dead),
    ]
    found = critical_paths(network.edges, silent)
    return {"paths": _paths(found), "regions": regions[:MOST_REGIONS]}


def _paths(found: Sequence[CriticalGradientPath]) -> list[dict[str, Any]]:
    """Of each kind the worst one; the same layers only once."""
    worst: dict[tuple[str, ...], CriticalGradientPath] = {}
    for path in found:
        if path.path_id.endswith("-1"):
            worst.setdefault(path.layers, path)
    return [
        {
            "kind": path.path_id.partition("-")[0],
            "layers": list(path.layers),
            "decades_lost": rounded(path.criticality_score, 3),
            "blocked": path.total_flow_strength == 0,
            "bottlenecks": list(path.bottleneck_layers[:MOST_LAYERS]),
        }
        for path in worst.values()
    ]


def _spread(kind: str, region: Region) -> dict[str, Any]:
    severity, extent = region.severity_level.lower(), region.extent
    steps = (extent.start_step, extent.end_step)
    return _region(kind, severity, region.affected_layers, steps, region.current)


def _dead(zone: GradientDeadZone) -> dict[str, Any]:
    severity = "needs intervention" if zone.intervention_required else "mild"
    steps = (zone.start_step, zone.start_step + zone.dead_duration - 1)
    return _region("dead", severity, zone.affected_layers, steps, True)


def _region(
    kind: str, severity: str, layers: Sequence[str], steps: tuple[int, int], current: bool
) -> dict[str, Any]:
    return {
        "kind": kind,
        "severity": severity,
        "layers": list(layers[:MOST_LAYERS]),
        "count": len(layers),
        "first_step": steps[0],
        "last_step": steps[1],
        "current": current,
    }
