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

from gradwatch.kernel import merge
from gradwatch.record.instrument import Reading
from gradwatch.record.signals import gates
from gradwatch.record.signals.hooks import Hooks, Stage
from gradwatch.record.signals.modules import (
    first_floating,
    layers,
    owners,
    subject,
    tensors,
)
from gradwatch.record.signals.reading import moments, readable
from gradwatch.record.signals.trail import Node, Sources, Trail, nodes_of
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, State, row_dtype

_PATIENCE = 3
_GATE_STATS = tuple(
    str(stat) for stat in ("act_gate_zero_fraction", "act_flat_fraction", "act_entropy")
)


@dataclass
class Call:
    """One call of one layer. It counts once a backward has come through its output."""

    layer: str
    record: NDArray[np.void] | None
    readings: list[tuple[str, gates.Reading]]
    tracked: bool
    """Whether its output has an autograd node, so that we hear of the backward."""
    in_backward: bool
    reached: bool = False

    def reach(self, gradients: Any) -> None:
        self.reached = True


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
        found = layers(model, self._names)
        eager = [layer for layer in found if not layer.hidden]
        if self._hooks.stage.traced or len(eager) < len(found):
            self._not_recorded(step, "compiled")
            self._off = self._hooks.stage.traced or not eager
        if self._off or self._hooks.closed:
            return
        self._trail = Trail(owners(model), passed=self._gate)
        for layer in eager:
            if (module := layer.module) is not None:
                self._kinds[layer.name] = layer.kind
                self._hooks.after(module, partial(self._look, layer.name, layer.composite))

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
        outputs = nodes_of(tensors(output))
        call = Call(
            layer,
            moments(tensor) if readable(tensor) else None,
            self._gates(layer, composite, nodes_of(tensors((args, kwargs))), outputs),
            bool(outputs),
            torch._C._current_graph_task_id() != -1,
        )
        self._pass.calls.append(call)
        for node in outputs:
            node.register_prehook(call.reach)

    def _gates(
        self, layer: str, composite: bool, inputs: list[Node], outputs: list[Node]
    ) -> list[tuple[str, gates.Reading]]:
        """The gates between the layers before and this one, and the layer's own if it is a gate."""
        self._pass.readings = []
        fed_by = self._trail.sources(inputs)
        if composite:
            self._trail.sources(outputs)
        for node in outputs:
            if not self._trail.knows(node):
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
        calls, self._pass = self._counted(), Pass()
        if not armed or self._hooks.failure is not None:
            return
        if not calls:
            self._silent += 1
            if self._silent == _PATIENCE:
                self._not_recorded(step, "no forward of a module was seen")
            return
        yield self._rows(calls)

    def _counted(self) -> list[Call]:
        """Calls a backward came through; those before them that need no gradient count with them.

        What a checkpoint runs again in the backward counts only where its first run was not seen.
        """
        kept: list[Call] = []
        following = False
        for call in reversed(self._pass.calls):
            following = call.reached if call.tracked else following
            if following:
                kept.append(call)
        kept.reverse()
        seen = {call.layer for call in kept if not call.in_backward}
        return [call for call in kept if not (call.in_backward and call.layer in seen)]

    def _rows(self, calls: list[Call]) -> Reading:
        records: dict[str, list[NDArray[np.void]]] = {}
        found: dict[str, dict[str, list[gates.Reading]]] = {}
        for call in calls:
            records.setdefault(call.layer, [])
            if call.record is not None:
                records[call.layer].append(call.record)
            for layer, reading in call.readings:
                records.setdefault(layer, [])
                found.setdefault(layer, {}).setdefault(str(reading.stat), []).append(reading)
        rows = np.zeros(len(records), row_dtype(Family.ACT))
        states = np.full(len(records), State.MEASURED, np.uint8)
        subjects: list[Subject] = []
        for index, (layer, parts) in enumerate(records.items()):
            if parts:
                _fill(rows[index], np.concatenate(parts))
            else:
                states[index] = State.UNSUPPORTED
            for stat in _GATE_STATS:
                rows[index][stat] = _average(found.get(layer, {}).get(stat, []))
            kind, order = self._kinds.get(layer, ""), self._hooks.stage.order.get(layer)
            subjects.append(subject(layer, kind, order))
        return Family.ACT, subjects, rows, states

    def scalars(self, step: int) -> dict[str, float]:
        return {}

    def events(self) -> list[Event]:
        found, self._events = [*self._events, *self._hooks.events()], []
        return found

    def detach(self) -> None:
        self._hooks.remove()
        self._pass = Pass()


def _fill(row: np.void, parts: NDArray[np.void]) -> None:
    record = merge(parts) if len(parts) > 1 else parts[0]
    count = int(record["count"])
    row["act_count"] = count
    row["act_mean"], row["act_std"] = record["mean"], record["std"]
    row["act_abs_max"] = record["abs_max"]
    row["act_zero_fraction"] = record["zeros"] / count if count else np.nan
    row["act_nonfinite"] = record["nan"] + record["pos_inf"] + record["neg_inf"]


def _average(readings: list[gates.Reading]) -> float:
    weight = sum(reading.weight for reading in readings)
    if not weight:
        return float("nan")
    return sum(reading.value * reading.weight for reading in readings) / weight
