"""Where tensors come from, by autograd's graph: the layer graph, and which inputs go nowhere.

Nodes are remembered by their sequence number, not by reference: a graph that is held lives on, with
all its activations.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

import gradwatch.graph
from gradwatch.graph import Graph
from gradwatch.record.layers import Layer
from gradwatch.record.looking import readable, tensors_in

Node = Any
"""An autograd node as Python sees it; torch has no public type for it."""
Sources = tuple[str, ...]

_LIMIT = 20_000
_LEAF = "torch::autograd::AccumulateGrad"
_REENTRANT = "CheckpointFunctionBackward"
_LAST_STEP = 64
"""Layers that no step has reached by then stay out; a branch may be taken later than step 0."""
_LOOKS = 3
"""Steps on which the use of several inputs is followed; without a forward on so many the order of
registration is assumed."""
_MOST = 1 << 20
"""Elements of an output that are looked at for zeros."""


class AutogradWalker:
    """Finds the layers that nodes come from, and remembers them for one forward pass.

    Reads names and edges only. `joined(sources, layers)` is called where an operation takes
    parameters of layers that no hook has seen; `passed(node, sources)` for every other new node.
    Both say what the sources of everything behind the node are.
    """

    def __init__(
        self,
        owners: Mapping[int, str],
        joined: Callable[[Sources, Sources], Sources],
        passed: Callable[[Node, Sources], Sources],
    ) -> None:
        self._owners, self._joined, self._passed = owners, joined, passed
        self._sources: dict[int, Sources] = {}
        self._parameter_layers: dict[int, str] = {}
        """Nodes that only reshape a parameter, and its layer."""
        self.took_data = False
        """Whether an operation outside of layers took something that has no gradient."""

    def has_seen(self, node: Node) -> bool:
        """Whether a walk has passed this node already."""
        return node._sequence_nr() in self._sources

    def mark(self, nodes: Iterable[Node], layer: str) -> None:
        """From now on these nodes are the layer's output; one only passed through stays."""
        for node in nodes:
            self._sources.setdefault(node._sequence_nr(), (layer,))

    def sources(self, nodes: Iterable[Node]) -> Sources:
        """The layers the nodes' data come from, nearest first in order of arguments."""
        nodes = list(nodes)
        for node in nodes:
            self._visit(node)
        known = [self._sources.get(node._sequence_nr(), ()) for node in nodes]
        return tuple(dict.fromkeys(chain.from_iterable(known)))

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
        self.took_data |= bool(stack)  # nobody knows what the rest took

    def _settle(self, node: Node, number: int) -> None:
        """All inputs of the node are known: so is the node."""
        children = [child for child, _ in node.next_functions]
        self.took_data |= None in children
        layers = [None if child is None else self._layer(child) for child in children]
        unseen = tuple(dict.fromkeys(name for name in layers if name is not None))
        if children and None not in layers:
            self._parameter_layers[number] = unseen[0]
            return
        sources = self.sources(child for child in children if child is not None)
        self._sources[number] = (
            self._joined(sources, unseen) if unseen else self._passed(node, sources)
        )

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


# -- the layer graph -----------------------------------------------------------------------------


class LayerGraph:
    """Is told of the layers' calls in a forward and asks autograd where their inputs come from.

    `graph` is None until a step was seen, and replaced when a later step shows more.
    """

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.done = False
        self._inputs = InputUse()
        self._called: dict[str, None] = {}
        """Layers in the order of their first call."""
        self._placed: set[str] = set()
        """Layers that are in the graph."""
        self._edges: dict[tuple[str, str], None] = {}
        self._opaque: set[str] = set()
        self._looks = 0
        self.arm((), {})

    def arm(self, layers: Sequence[Layer], owners: Mapping[int, str]) -> None:
        """A step comes on which calls are told."""
        self._kinds = {layer.name: layer.kind for layer in layers if layer.is_layer}
        self._walker = AutogradWalker(owners, self._found_inside, self._passed)
        self._forget()

    def _forget(self) -> None:
        self._inputs.calls = []
        self._without_node: Any = WeakTensorKeyDictionary()
        """Outputs that have no autograd node, of frozen layers say, and the layers they are of."""
        self._unplaced: list[str] = []
        """Layers that ran since one whose output has a node, or the last that is frozen."""
        self._guesses: list[tuple[str, set[int], list[str]]] = []
        """Layers to which nothing leads back, the floats they were given, and what ran before."""

    # -- in the forward --------------------------------------------------------------------------

    def look(self, layer: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A layer has run."""
        given, made = list(tensors_in((args, kwargs))), list(tensors_in(output))
        self._called.setdefault(layer)
        self._inputs.layer(layer, module, given, made, self._without_node)
        if not torch.is_grad_enabled():
            # A reentrant checkpoint runs its part so, and later shows as one node of the graph.
            self._unplaced.append(layer)
            return
        changed = [node for node in nodes_of(made) if not self._walker.has_seen(node)]
        if made and not changed and all(any(out is tensor for tensor in given) for out in made):
            return  # an identity, such as a dropout that drops nothing
        known = [self._without_node[tensor] for tensor in given if tensor in self._without_node]
        sources = (*self._walker.sources(_entering(nodes_of(given), changed)), *known)
        if not sources and self._unplaced and layer not in self._unplaced:
            floats = {id(tensor) for tensor in given if tensor.is_floating_point()}
            self._guesses.append((layer, floats, self._unplaced))
        self._join(sources, layer)
        self._walker.mark(changed, layer)
        plain = [tensor for tensor in made if tensor.grad_fn is None]
        self._without_node.update(dict.fromkeys(plain, layer))
        self._unplaced = [layer] if plain else []

    def ended(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The model has run: what its output passed after the last layer may be a layer too."""
        if torch.is_grad_enabled():
            made = list(tensors_in(output))
            self._walker.sources(nodes_of(made))
            constant = any(tensor.grad_fn is None for tensor in made)
            unseen = constant or not made or self._walker.took_data
            fed = {id(tensor) for tensor in tensors_in((args, kwargs))}
            self._inputs.ended(model, args, kwargs, fed, unseen)
            self._guess(fed)
        self._forget()

    def _guess(self, fed: set[int]) -> None:
        """Where nothing leads back, what ran without gradients is assumed to feed a layer."""
        for layer, floats, before in self._guesses:
            if floats - fed:
                self._join(self._chain((), before), layer)

    def _join(self, sources: Iterable[str], layer: str) -> None:
        self._called.setdefault(layer)
        self._placed.add(layer)
        self._edges |= {(source, layer): None for source in sources if source != layer}

    def _found_inside(self, sources: Sources, inside: Sources) -> Sources:
        """An operation takes parameters of these layers; several in one, and it is compiled."""
        if len(inside) > 1:
            return self._chain(sources, [name for name in self._kinds if name in inside])
        self._join(sources, inside[0])
        return inside

    def _passed(self, node: Node, sources: Sources) -> Sources:
        """A part that cannot be looked into stands for the layers in it, one after the other."""
        if node.name() != _REENTRANT:
            return sources
        inside, self._unplaced = self._unplaced, []
        return self._chain(sources, inside)

    def _chain(self, sources: Sources, inside: Iterable[str]) -> Sources:
        for layer in dict.fromkeys(inside):
            self._join(sources, layer)
            self._opaque.add(layer)
            sources = (layer,)
        return sources

    # -- at the optimizer's step -----------------------------------------------------------------

    def publish(self, step: int) -> dict[str, Any]:
        """What was seen goes into the graph; keys for `run.info`, once enough was seen."""
        self._guess(set())  # of networks that no model calls
        self._forget()
        self._looks += 1
        seen = self._looks >= _LOOKS
        if self._placed:
            names = [name for name in self._called if name in self._placed]
            kinds = [self._kinds.get(name, "") for name in names]
            opaque = [name in self._opaque for name in names]
            nodes = map(gradwatch.graph.Node, names, kinds, opaque)
            self.graph = Graph(tuple(nodes), tuple(self._edges))
            self.done = step >= _LAST_STEP or (seen and self._kinds.keys() <= self._called.keys())
        elif seen:
            self.assume()
        return self._inputs.info() if seen else {}

    def assume(self) -> None:
        """Where no forward was seen: the order of registration, and the graph says so."""
        if self.graph is None and self._kinds:
            self.graph, self.done = Graph.chain(self._kinds), True


def _entering(given: list[Node], made: list[Node]) -> list[Node]:
    """The nodes before the layer. One that works in place has given its input its own node."""
    before: list[Node] = []
    for node in given:
        before += [child for child, _ in node.next_functions if child] if node in made else [node]
    return before


# -- inputs that go nowhere ----------------------------------------------------------------------


class InputUse:
    """Follows the float tensors among a model's arguments through one forward after the other.

    An input is known by the name of the argument. It is used by the layers that are called with
    it; a layer without parameters that gives nothing but zeros passes nothing on. Operations
    outside of layers show only that they took some tensor without a gradient: then no verdict is
    sure, since an input that no layer is called with may have gone there. So it is with modules of
    the user's, which may reach an input by another way than their arguments.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, set[int], set[int]]] = []
        """Layers of this forward, whether they pass on what they take, the tensors they were given,
        and those of them that nobody knows: by identity, since the model's inputs live until it has
        ended."""
        self._sure = True
        self._found: dict[int, dict[str, Any]] = {}

    def layer(
        self, name: str, module: nn.Module, given: list[Tensor], made: list[Tensor], known: Any
    ) -> None:
        """A layer was called with `given`; the tensors of `known` come from layers."""
        alone = len(given) == 1 and next(module.parameters(), None) is None
        blocks = alone and bool(made) and _is_zero(made) and not _is_zero(given)
        role = "blocked_by" if blocks else "layers"
        unknown = {id(one) for one in given if not one.requires_grad and one not in known}
        self.calls.append((name, role, set(map(id, given)), unknown))
        self._sure &= type(module).__module__.startswith("torch.")

    def ended(self, model: nn.Module, args: Any, kwargs: Any, fed: set[int], unseen: bool) -> None:
        """The model was called with these; something may have gone by `unseen`."""
        self._sure &= not unseen and not any(unknown - fed for *_, unknown in self.calls)
        for place, (name, value) in enumerate(_arguments(model, args, kwargs)):
            if not isinstance(value, Tensor) or value.numel() < 2:
                continue
            if value.requires_grad or not value.is_floating_point():
                continue
            blank: dict[str, Any] = {"number": place + 1, "name": name}
            entry = self._found.setdefault(place, blank | {"layers": [], "blocked_by": []})
            for layer, role, given, _ in self.calls:
                if id(value) in given and layer not in entry[role]:
                    entry[role].append(layer)

    def info(self) -> dict[str, Any]:
        """Keys for `run.info`: the inputs that may be unused, and the layers that take each."""
        entries = [self._found[place] | {"sure": self._sure} for place in sorted(self._found)]
        return {"inputs": entries} if len(entries) > 1 else {}


def _arguments(model: nn.Module, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """The forward's arguments by name; those it takes any number of are not told apart."""
    try:
        signature = inspect.signature(model.forward)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # not written in Python
        return []
    return [(name, given.get(name)) for name in signature.parameters]


def _is_zero(tensors: Iterable[Tensor]) -> bool:
    """Whether all elements are zero; no where that cannot be read without waiting."""
    return all(
        readable(tensor) and tensor.numel() <= _MOST and not bool(tensor.detach().any())
        for tensor in tensors
    )
