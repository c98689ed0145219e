"""The autograd graph: which layers a tensor comes from, and what a node has saved.

Nodes are remembered by their sequence number, not by reference: a graph that is held lives on, with
all its activations.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

Node = Any
"""An autograd node as Python sees it; torch has no public type for it."""
Sources = tuple[str, ...]

_LIMIT = 20_000
_LEAF = "torch::autograd::AccumulateGrad"


class AutogradWalker:
    """Finds the layers that nodes come from, and remembers them for one forward pass.

    Reads names and edges only. `joined(sources, layers)` is called where an operation takes
    parameters of layers that no hook has seen; `passed(node, sources)` for every other new node.
    Both may say what the sources of everything behind the node are.
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
        self._parameter_layers: dict[int, str] = {}
        """Nodes that only reshape a parameter, and its layer."""
        self.took_data = False
        """Whether an operation outside of layers took something that has no gradient."""

    def clear(self) -> None:
        """Forget the nodes: those of the next forward pass are others."""
        self._sources.clear()
        self._parameter_layers.clear()
        self.took_data = False

    def has_seen(self, node: Node) -> bool:
        """Whether a walk has passed this node already."""
        return node._sequence_nr() in self._sources

    def mark(self, nodes: Iterable[Node], layer: str) -> None:
        """From now on these nodes are the layer's output; one only passed through stays."""
        for node in nodes:
            self._sources.setdefault(node._sequence_nr(), (layer,))

    def sources(self, nodes: Iterable[Node]) -> Sources:
        """The layers the nodes' data come from, nearest first in order of arguments."""
        layers: dict[str, None] = {}
        for node in nodes:
            self._visit(node)
            layers.update(dict.fromkeys(self._sources.get(node._sequence_nr(), ())))
        return tuple(layers)

    def _visit(self, start: Node) -> None:
        """Depth first, inputs before the nodes they feed.

        Without recursion, since a graph may be deeper than Python's stack; up to a limit, since an
        unrolled loop may have millions of nodes.
        """
        stack = [(start, False)]
        while stack and len(self._sources) < _LIMIT:
            node, ready = stack.pop()
            number = node._sequence_nr()
            # All leaves have the same sequence number (the largest there is): known by name only.
            if number in self._sources or number in self._parameter_layers or node.name() == _LEAF:
                continue
            if ready:
                self._settle(node, number)
                continue
            stack.append((node, True))
            stack.extend((child, False) for child, _ in reversed(node.next_functions) if child)
        self.took_data = self.took_data or bool(stack)  # nobody knows what the rest took

    def _settle(self, node: Node, number: int) -> None:
        """All inputs of the node are known: so is the node."""
        children = [child for child, _ in node.next_functions]
        self.took_data = self.took_data or None in children
        layers = [self._layer(child) for child in children if child is not None]
        if children and len(layers) == len(children) and all(name is not None for name in layers):
            self._parameter_layers[number] = next(name for name in layers if name is not None)
            return
        feeding: dict[str, None] = {}
        for child in children:
            if child is not None:
                feeding.update(dict.fromkeys(self._sources.get(child._sequence_nr(), ())))
        sources = tuple(feeding)
        unseen = tuple(dict.fromkeys(name for name in layers if name is not None))
        if unseen:
            sources = self._joined(sources, unseen) if self._joined is not None else unseen[-1:]
        elif self._passed is not None:
            sources = self._passed(node, sources) or sources
        self._sources[number] = sources

    def _layer(self, node: Node) -> str | None:
        """The layer of a parameter, or of one that was only reshaped; None for data."""
        if node.name() == _LEAF:
            return self._owners.get(id(node.variable))
        return self._parameter_layers.get(node._sequence_nr())


def nodes_of(tensors: Iterable[Any]) -> list[Node]:
    """The autograd nodes that made the tensors; those made without gradients have none."""
    return [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]


def saved_tensor(node: Node, name: str) -> Tensor | None:
    """What the node keeps for its backward under this name; RuntimeError where it was freed.

    Only where nothing is hooked onto it: behind a checkpoint, the look alone would run the user's
    forward again; behind offloading hooks, it would copy the tensor back.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    tensor = getattr(node, f"_saved_{name}")
    return tensor if isinstance(tensor, Tensor) else None


def saved_dim(node: Node, ndim: int) -> int:
    """The dimension a softmax runs over. torch keeps a negative one as an unsigned number."""
    dim = int(getattr(node, "_saved_dim", -1))
    return dim - (1 << 64) if dim > ndim else dim
