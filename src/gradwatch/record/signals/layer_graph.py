"""The layer graph, from the autograd graph of the first recorded steps, contracted to layers."""

import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradwatch.graph import Graph, Node
from gradwatch.record.rows import Reading
from gradwatch.record.signals.autograd import AutogradWalker, Sources, nodes_of
from gradwatch.record.signals.autograd import Node as AutogradNode
from gradwatch.record.signals.hooks import (
    HookedSignal,
    ModelContext,
    WatchedLayer,
    layers,
    owners,
    root_is_compiled,
)
from gradwatch.record.signals.input_use import InputUse
from gradwatch.record.signals.tensors import tensors_in
from gradwatch.stats import Family

_PATIENCE = 3
"""So many recorded steps without a forward, and the order of registration is assumed."""
_LAST_STEP = 64
"""Layers that no step has reached by then stay out; a branch may be taken later than step 0."""
_LOOKS = 3
"""Steps on which the use of several inputs is followed."""
_REENTRANT = "CheckpointFunctionBackward"


class LayerGraph(HookedSignal):
    """Listens to the layers of a forward and asks autograd where each one's inputs come from.

    `graph` is None until a step was seen, and replaced when a later step shows more. The order of
    the context is kept up to date with it, for the other signals.
    """

    what = "layer graph"

    def __init__(self, model: nn.Module, context: ModelContext | None = None) -> None:
        super().__init__(model, context)
        self._walker = AutogradWalker({})
        self._layers: dict[str, WatchedLayer] = {}
        self._seen: dict[str, None] = {}
        self._edges: dict[tuple[str, str], None] = {}
        self._opaque: set[str] = set()
        self._ran_without_gradients: list[str] = []
        self._made: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        """Outputs that have no autograd node, by identity, and the layers that gave them."""
        self._last_made: str | None = None
        self._fed: set[int] = set()
        self._silent = 0
        self._done = False
        self._looks = 0
        self._unchanged: set[str] = set()
        self._inputs = InputUse()
        self._noted: dict[str, Any] = {}

    def arm(self, step: int, due: frozenset[Family]) -> None:
        """Listen to one more forward pass, until the graph is complete."""
        self._unhook()
        self._step = step
        model = self._model()
        if self._done or not due or model is None or self._may_not_hook:
            return
        self._layers = {layer.name: layer for layer in layers(model)}
        self._walker = AutogradWalker(owners(model), joined=self._found_inside, passed=self._passed)
        self._begin()
        for layer in self._layers.values():
            module = layer.module
            if module is not None and not layer.composite and not layer.hidden:
                self._hook_after(module, partial(self._look, layer.name))
        if root_is_compiled(model):
            return
        if "" not in self._layers or self._layers[""].composite or self._layers[""].hidden:
            self._hook_after(model, self._ended)
        self._hook_before(model, self._called)

    # -- in the forward --------------------------------------------------------------------------

    def _begin(self) -> None:
        self._ran_without_gradients.clear()
        self._made.clear()
        self._fed.clear()
        self._last_made = None

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """The model starts: what ran without gradients before, in a validation say, is over."""
        if torch._C._current_graph_task_id() == -1:
            self._begin()
            self._fed.update(id(tensor) for tensor in tensors_in((args, kwargs)))
            if torch.is_grad_enabled():
                self._inputs.begin(module, args, kwargs)

    def _look(self, layer: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # a checkpoint runs its part again: nothing new
        given, made = list(tensors_in((args, kwargs))), list(tensors_in(output))
        self._inputs.layer(layer, module, given, made)
        if any(self._unknown(tensor) for tensor in given):
            self._inputs.took_unseen()
        if not torch.is_grad_enabled():
            # A reentrant checkpoint runs its part so, and later shows as one node of the graph.
            self._ran_without_gradients.append(layer)
            return
        changed = nodes_of(made)
        if made and all(any(out is tensor for tensor in given) for out in made):
            changed = [node for node in changed if not self._walker.has_seen(node)]
            if not changed:
                self._unchanged.add(layer)  # an identity, such as a dropout that drops nothing
                return
        sources = dict.fromkeys(self._walker.sources(_entering(nodes_of(given), changed)))
        sources.update(dict.fromkeys(self._without_gradient(given)))
        self._joined(tuple(sources) or self._guessed(layer, given), layer)
        self._ran_without_gradients.clear()
        self._walker.mark(changed, layer)
        for tensor in made:
            if tensor.grad_fn is None:
                # By identity, checked through a weak reference: the id of a freed tensor is reused.
                self._made[id(tensor)] = weakref.ref(tensor), layer
                self._last_made = layer

    def _guessed(self, layer: str, given: list[Tensor]) -> Sources:
        """Nothing leads back from here: what ran last without gradients is assumed to feed it."""
        if layer in self._ran_without_gradients or not any(
            tensor.is_floating_point() and id(tensor) not in self._fed for tensor in given
        ):
            return ()
        if self._ran_without_gradients:
            return self._chain((), list(dict.fromkeys(self._ran_without_gradients)))
        if self._last_made is None:
            return ()
        self._opaque.add(layer)
        return (self._last_made,)

    def _without_gradient(self, given: list[Tensor]) -> Iterator[str]:
        """Layers whose outputs need no gradient, frozen ones say, known by the tensor itself."""
        for tensor in given:
            reference, layer = self._made.get(id(tensor), (None, ""))
            if reference is not None and reference() is tensor:
                yield layer

    def _unknown(self, tensor: Tensor) -> bool:
        """Whether nothing tells where a tensor comes from."""
        plain = tensor.grad_fn is None and not tensor.requires_grad
        return plain and id(tensor) not in self._fed and not any(self._without_gradient([tensor]))

    def _ended(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The model has run: what its output passed after the last layer may be a layer too."""
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            made = list(tensors_in(output))
            self._walker.sources(nodes_of(made))
            if not made or self._walker.took_data or any(t.grad_fn is None for t in made):
                self._inputs.took_unseen()
        self._inputs.end()

    def _joined(self, sources: Sources, layer: str) -> None:
        self._seen.setdefault(layer)
        for source in sources:
            if source != layer:
                self._edges.setdefault((source, layer))

    def _found_inside(self, sources: Sources, inside: Sources) -> Sources:
        """An operation takes parameters of these layers; several in one, and it is compiled."""
        if len(inside) == 1:
            self._joined(sources, inside[0])
            return inside
        place = {name: index for index, name in enumerate(self._layers)}
        return self._chain(sources, sorted(inside, key=lambda name: place.get(name, len(place))))

    def _passed(self, node: AutogradNode, sources: Sources) -> Sources | None:
        """A part that cannot be looked into stands for the layers in it, one after the other."""
        if node.name() == _REENTRANT and self._ran_without_gradients:
            inside = list(dict.fromkeys(self._ran_without_gradients))
            self._ran_without_gradients.clear()
            return self._chain(sources, inside)
        return None

    def _chain(self, sources: Sources, inside: list[str]) -> Sources:
        for layer in inside:
            self._joined(sources, layer)
            self._opaque.add(layer)
            sources = (layer,)
        return sources

    # -- at the optimizer's step -----------------------------------------------------------------

    def collect(self, step: int) -> Iterable[Reading]:
        """No rows: what was seen goes into the graph."""
        if self._handles:
            self._unhook()
            self._walker.clear()
            self._publish(step)
        return ()

    def _publish(self, step: int) -> None:
        self._silent += not self._seen
        if not self._seen:
            if self._silent >= _PATIENCE:
                self._assume()
            return
        graph = Graph(
            tuple(Node(name, self._kind(name), opaque=name in self._opaque) for name in self._seen),
            tuple(self._edges),
        )
        if self.graph is None or graph != self.graph:
            self.graph = graph
            self.context.order.update(graph.order)
        placed = {*self._seen, *self._unchanged}
        complete = all(name in placed for name in self._layers)
        self._looks += 1
        self._done = step >= _LAST_STEP or (
            complete and (self._looks >= _LOOKS or not self._inputs.several)
        )
        found = self._inputs.info() if self._looks >= _LOOKS else {}
        if found != self._noted:
            self.info = self._noted = found

    def _kind(self, name: str) -> str:
        return self._layers[name].kind if name in self._layers else ""

    def _assume(self) -> None:
        """No forward was seen: the order of registration, and the graph says so."""
        chain = Graph.chain(self._layers)
        nodes = tuple(Node(node.layer, self._kind(node.layer)) for node in chain.nodes)
        self.graph, self._done = Graph(nodes, chain.edges, assumed=True), True
        self.context.order.update(self.graph.order)

    def detach(self) -> None:
        """Take the hooks off; where no forward was seen, assume the order of registration."""
        super().detach()
        if self.graph is None and self._layers:
            self._assume()


def _entering(given: list[AutogradNode], made: list[AutogradNode]) -> list[AutogradNode]:
    """The nodes before the layer. One that works in place has given its input its own node."""
    before: list[AutogradNode] = []
    for node in given:
        if any(node is output for output in made):
            before.extend(child for child, _ in node.next_functions if child is not None)
        else:
            before.append(node)
    return before
