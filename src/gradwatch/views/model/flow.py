"""The flow network: layers (or blocks of them) placed by the real graph, once, for every view."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwatch.graph import Graph
from gradwatch.run import block_of
from gradwatch.views.model.rows import Layer

MOST_NODES = 64
"""More cannot be told apart on a screen: then layers are grouped into the blocks they belong to."""
FEWEST_GROUPS = 6
"""Fewer would show nothing of the network."""


def flow(graph: Graph, layers: Sequence[Layer]) -> dict[str, Any]:
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
        found = {name: way(name) for name in names}
        groups = len(set(found.values()))
        if groups <= MOST_NODES and (depth == 0 or groups >= FEWEST_GROUPS):
            return found, depth > 0
    return _spans(names), True


def _spans(names: Sequence[str]) -> dict[str, str]:
    """Neighbouring blocks together, where names tell no better."""
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
        wanted = {i: _mean([lanes[s] for s in feeding.get(i, ())]) for i in members}
        for node in sorted(members, key=lambda i: (wanted[i], i)):
            lane = 0
            choices = sorted(range(len(members) + len(taken)), key=lambda c: abs(c - wanted[node]))
            lane = next(choice for choice in choices if choice not in taken)
            taken.add(lane)
            lanes[node] = lane
    return lanes


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
