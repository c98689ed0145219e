"""The layer graph: which layer feeds which, as the autograd graph of a step showed it."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """One layer. `opaque` marks what could not be looked into (compiled, reentrant checkpoint)."""

    layer: str
    kind: str = ""
    """The class of the module, such as `Linear`; empty when unknown."""
    opaque: bool = False


@dataclass(frozen=True)
class Graph:
    """Layers in forward order and their edges; `assumed` if only registration order is known."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    assumed: bool = False

    @cached_property
    def order(self) -> dict[str, int]:
        """Position of each layer in forward order."""
        return {node.layer: index for index, node in enumerate(self.nodes)}

    @cached_property
    def successors(self) -> dict[str, tuple[str, ...]]:
        """For every layer, the layers it feeds directly."""
        return _adjacent(self.nodes, self.edges)

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        """For every layer, the layers that feed it directly."""
        return _adjacent(self.nodes, ((target, source) for source, target in self.edges))

    def downstream(self, layer: str) -> frozenset[str]:
        """Every layer that data from `layer` reaches, itself excluded unless it feeds itself."""
        return frozenset(self.after(layer))

    def after(self, layer: str) -> Iterator[str]:
        """The same, the nearest first."""
        return _reached(self.successors, layer)

    def upstream(self, layer: str) -> frozenset[str]:
        """Every layer whose data reach `layer`."""
        return frozenset(_reached(self.predecessors, layer))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; `from_dict` reads it."""
        return {
            "nodes": [[n.layer, n.kind, n.opaque] for n in self.nodes],
            "edges": [list(edge) for edge in self.edges],
            "assumed": self.assumed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Graph":
        """Back from `to_dict`; edges to unknown layers are dropped, since files are not trusted."""
        nodes = tuple(Node(str(n[0]), str(n[1]), bool(n[2])) for n in data.get("nodes", ()))
        layers = {node.layer for node in nodes}
        edges = tuple(
            (str(a), str(b)) for a, b in data.get("edges", ()) if a in layers and b in layers
        )
        return cls(nodes, edges, bool(data.get("assumed", False)))

    @classmethod
    def chain(cls, layers: Iterable[str]) -> "Graph":
        """The assumption where no graph was recorded: each layer feeds the next registered one."""
        names = list(layers)
        return cls(
            tuple(Node(name) for name in names),
            tuple(pairwise(names)),
            assumed=True,
        )


def _adjacent(
    nodes: Iterable[Node], edges: Iterable[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    lists: dict[str, list[str]] = {node.layer: [] for node in nodes}
    for source, target in edges:
        lists[source].append(target)
    return {layer: tuple(neighbours) for layer, neighbours in lists.items()}


def _reached(adjacent: Mapping[str, tuple[str, ...]], start: str) -> Iterator[str]:
    seen: set[str] = set()
    queue = deque(adjacent.get(start, ()))
    while queue:
        layer = queue.popleft()
        if layer not in seen:
            yield layer
            seen.add(layer)
            queue.extend(adjacent[layer])
