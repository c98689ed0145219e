"""On recorded steps: moments of every layer's output, and what the gates it feeds made of it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from gradwatch.record.instrument import Departure, Found, Reading
from gradwatch.record.signals import far_calls, gates
from gradwatch.record.signals.calls import Call, FarRecord, counted, rows_of
from gradwatch.record.signals.far import is_far
from gradwatch.record.signals.hooks import Hooks, Stage
from gradwatch.record.signals.modules import (
    Layer,
    first_floating,
    layers,
    owners,
    subject,
    tensors,
)
from gradwatch.record.signals.reading import moments, readable
from gradwatch.record.signals.trail import Node, Sources, Trail, nodes_of
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family

_PATIENCE = 3
_RESCAN = 4


@dataclass
class Pass:
    """What the coming step has shown so far."""

    calls: list[Call] = field(default_factory=list)
    readings: list[tuple[str, gates.Reading]] = field(default_factory=list)


class Activations:
    """Hooks on every layer, put up only for the steps that are recorded."""

    def __init__(
        self,
        model: nn.Module,
        names: Collection[str] = (),
        stage: Stage | None = None,
    ) -> None:
        self._model = ref(model)
        self._names = names
        self._hooks = Hooks("activations", stage or Stage())
        self._pass = Pass()
        self._trail = Trail({})
        self._kinds: dict[str, str] = {}
        self._events: list[Event] = []
        self._departures: list[Departure] = []
        self._layers: list[Layer] = []
        self._owners: dict[int, str] = {}
        self._age = 0
        self._silent = 0
        self._off = False
        self._told: set[str] = set()

    @property
    def spent(self) -> float:
        return self._hooks.spent

    @spent.setter
    def spent(self, seconds: float) -> None:
        self._hooks.spent = seconds

    def attach(self) -> None:
        """Nothing is hooked before a recorded step."""

    def arm(self, step: int, due: frozenset[Family]) -> None:
        self._hooks.clear()
        self._pass = Pass()
        self._hooks.step = step
        model = self._model()
        if Family.ACT not in due or model is None or self._off:
            return
        found = self._find(model)
        eager = [layer for layer in found if not layer.hidden]
        if self._hooks.stage.traced or len(eager) < len(found):
            self._not_recorded(step, "compiled")
            self._off = self._hooks.stage.traced or not eager
        if self._off or self._hooks.closed:
            return
        self._trail = Trail(self._owners, passed=self._gate)
        for layer in eager:
            if (module := layer.module) is not None:
                self._kinds[layer.name] = layer.kind
                self._hooks.after(module, partial(self._look, layer.name, layer.composite))

    def _find(self, model: nn.Module) -> list[Layer]:
        """The layers, looked for anew every few recorded steps: models may grow."""
        if self._age % _RESCAN == 0:
            self._layers, self._owners = layers(model, self._names), owners(model)
        self._age += 1
        return self._layers

    def _not_recorded(self, step: int, why: str) -> None:
        if why in self._told:
            return
        self._told.add(why)
        text = f"activations are not recorded: {why}"
        self._events.append(Event(step, EventKind.NOT_RECORDED, text, data={"why": why}))

    # -- in the forward --------------------------------------------------------------------------

    def _look(
        self, layer: str, composite: bool, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        if not torch.is_grad_enabled():
            return
        tensor = first_floating(output)
        if tensor is None:
            return
        record: NDArray[np.void] | FarRecord | None = None
        if readable(tensor):
            record = moments(tensor)
        elif is_far(tensor):
            record = far_calls.look(tensor)
        inputs, outputs = nodes_of(tensors((args, kwargs))), nodes_of(tensors(output))
        readings = self._gates(layer, composite, inputs, outputs, record)
        in_backward = torch._C._current_graph_task_id() != -1
        call = Call(layer, record, readings, bool(outputs), in_backward)
        self._pass.calls.append(call)
        for node in outputs:
            node.register_prehook(call.reach)

    def _gates(
        self,
        layer: str,
        composite: bool,
        inputs: list[Node],
        outputs: list[Node],
        record: NDArray[np.void] | FarRecord | None,
    ) -> list[tuple[str, gates.Reading]]:
        """The gates between the layers before and this one, and the layer's own if it is a gate."""
        self._pass.readings = []
        fed_by = self._trail.sources(inputs)
        if composite:
            self._trail.sources(outputs)
        for node in outputs:
            if self._trail.knows(node):
                continue
            if record is not None and fed_by and gates.is_relu(node):
                self._pass.readings.append((fed_by[0], _zeros(record)))
            else:
                self._gate(node, fed_by)
        self._trail.mark(outputs, layer)
        return self._pass.readings

    def _gate(self, node: Node, sources: Sources) -> None:
        if sources and (reading := gates.read(node)) is not None:
            self._pass.readings.append((sources[0], reading))

    # -- at the optimizer's step -----------------------------------------------------------------

    def collect(self, step: int) -> Iterator[Reading]:
        armed = bool(self._hooks)
        self._hooks.clear()
        calls, self._pass = counted(self._pass.calls), Pass()
        if not armed or self._hooks.failure is not None:
            return
        if not calls:
            self._silent += 1
            if self._silent == _PATIENCE:
                self._not_recorded(step, "no forward of a module was seen")
            return
        under_way = far_calls.parts_of(calls)
        if not under_way:
            yield self._reading(calls)
            return

        def finish(arrived: list[NDArray[np.float64]]) -> Found:
            return Found([self._reading(far_calls.settled(calls, arrived))])

        self._departures.append(Departure(under_way, finish))

    def departures(self, step: int) -> list[Departure]:
        """Steps in which some layer ran on an accelerator."""
        sent, self._departures = self._departures, []
        return sent

    def _reading(self, calls: list[Call]) -> Reading:
        layers_seen, rows, states = rows_of(calls)
        order = self._hooks.stage.order
        subjects = [
            subject(name, self._kinds.get(name, ""), order.get(name)) for name in layers_seen
        ]
        return Family.ACT, subjects, rows, states

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        found, self._events = [*self._events, *self._hooks.events()], []
        return found

    def detach(self) -> None:
        self._hooks.remove()
        self._pass = Pass()
        self._departures.clear()


def _zeros(record: NDArray[np.void] | FarRecord) -> gates.Reading:
    if isinstance(record, FarRecord):
        return gates.far_zeros(record.numbers[0], record.seen)
    return gates.zeros(record[0])
