"""The way back through the autograd graph: which layers a tensor comes from.

Nodes are known by their sequence number, not by reference: a graph that is held lives on, with all
its activations. Only names and edges are read here, never a saved tensor.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Node = Any
"""An autograd node as Python sees it; torch has no public type for it."""
Sources = tuple[str, ...]

_LIMIT = 20_000
_LEAF = "torch::autograd::AccumulateGrad"


class Trail:
    """Sources of nodes, remembered for one forward pass.

    `joined(sources, layers)` is called where layers were found on the way that no hook has seen:
    one operation that takes their parameters. `passed(node, sources)` is called for every other
    new node. Both may say what the sources of everything behind the node are.
    """

    def __init__(
        self,
        owners: Mapping[int, str],
        joined: Callable[[Sources, Sources], Sources] | None = None,
        passed: Callable[[Node, Sources], Sources | None] | None = None,
    ) -> None:
        self._owners = owners
        self._joined = joined
        self._passed = passed
        self._sources: dict[int, Sources] = {}
        self._pure: dict[int, str] = {}  # nodes that only reshape a parameter → its layer

    def clear(self) -> None:
        self._sources.clear()
        self._pure.clear()

    def knows(self, node: Node) -> bool:
        return node._sequence_nr() in self._sources

    def mark(self, nodes: Iterable[Node], layer: str) -> None:
        """From now on these nodes are the layer's output; one only passed through stays."""
        for node in nodes:
            self._sources.setdefault(node._sequence_nr(), (layer,))

    def sources(self, nodes: Iterable[Node]) -> Sources:
        """The layers the nodes' data come from, nearest first in order of arguments."""
        found: dict[str, None] = {}
        for node in nodes:
            self._visit(node)
            found.update(dict.fromkeys(self._sources.get(node._sequence_nr(), ())))
        return tuple(found)

    def _visit(self, start: Node) -> None:
        """Depth first, inputs before the nodes they feed, without recursion."""
        stack = [(start, False)]
        while stack and len(self._sources) < _LIMIT:
            node, ready = stack.pop()
            number = node._sequence_nr()
            if number in self._sources or number in self._pure or node.name() == _LEAF:
                continue
            if ready:
                self._settle(node, number)
                continue
            stack.append((node, True))
            stack.extend((child, False) for child, _ in reversed(node.next_functions) if child)

    def _settle(self, node: Node, number: int) -> None:
        """All inputs of the node are known: so is the node."""
        children = [child for child, _ in node.next_functions]
        layers = [self._layer(child) for child in children if child is not None]
        if children and len(layers) == len(children) and all(name is not None for name in layers):
            self._pure[number] = next(name for name in layers if name is not None)
            return
        found: dict[str, None] = {}
        for child in children:
            if child is not None:
                found.update(dict.fromkeys(self._sources.get(child._sequence_nr(), ())))
        sources = tuple(found)
        here = tuple(dict.fromkeys(name for name in layers if name is not None))
        if here:
            sources = self._joined(sources, here) if self._joined is not None else here[-1:]
        elif self._passed is not None:
            sources = self._passed(node, sources) or sources
        self._sources[number] = sources

    def _layer(self, node: Node) -> str | None:
        """The layer of a parameter, or of one that was only reshaped; None for data."""
        if node.name() == _LEAF:
            return self._owners.get(id(node.variable))
        return self._pure.get(node._sequence_nr())


def nodes_of(tensors: Iterable[Any]) -> list[Node]:
    """The autograd nodes that made the tensors; those made without gradients have none."""
    return [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
