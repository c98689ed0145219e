"""What is recorded beside the rows: logged numbers, the loss, the layer graph, the audit."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gradwatch.graph import Graph
from gradwatch.record.parameters import TrackedParameters
from gradwatch.record.recorder import Recorder
from gradwatch.record.signals import Batches, audit, audit_events, describe_loss
from gradwatch.record.tensors import number, on_accelerator
from gradwatch.run import Event, EventKind

BATCH = "batch"
"""`log(batch=ids)`: not a number, but which samples the step was fed with."""
LOOKS = 3
"""How many losses are looked at to find out their kind; the graph of one may not tell."""
ALIASES = {"valid_loss": "val_loss", "eval_loss": "val_loss"}


class RunMetadata:
    """Everything that goes to the run's scalars, info and graph rather than into rows."""

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._graph: Graph | None = None
        self._loss: dict[str, Any] = {}
        self._looks = LOOKS
        self._logged = False
        self._batches = Batches()

    def log(self, step: int, values: Mapping[str, Any]) -> set[str]:
        """Numbers of the user for a step; the loss as a tensor also tells what kind it is.

        Gives the names of which nothing but the number will matter from now on.
        """
        numbers: dict[str, float] = {}
        for given, value in values.items():
            name = ALIASES.get(given, given)
            if name == BATCH:
                self._batches.keep(step, value)
            elif on_accelerator(value):
                self._recorder.number(step, name, value)
            else:
                numbers[name] = number(value)
        if "loss" in numbers and not isfinite(numbers["loss"]):
            numbers["loss_nonfinite"] = 1.0
            if bad := self._batches.mark(step):
                self._recorder.sink.note(bad)
        self._logged = self._logged or "loss" in values
        if self._looks and "loss" in values:
            self._look_at(values["loss"])
        if numbers:
            self._recorder.scalars(step, numbers)
        plain = {name for name in numbers if name in values}
        return plain - {"loss"} if self._looks and isinstance(values.get("loss"), Tensor) else plain

    def ask_for_a_loss(self, step: int) -> None:
        """The checks on the loss can say nothing without one."""
        if not self._logged:
            text = "no loss is logged: watcher.log(loss=loss) lets the checks on the loss look"
            self._recorder.sink.event(Event(step, EventKind.AUDIT, text))

    def _look_at(self, loss: Any) -> None:
        if isinstance(loss, Tensor) and loss.grad_fn is not None:
            self._looks = 0 if self._loss else self._looks - 1
            if not self._loss:
                self._note_loss(describe_loss(loss))

    def end(self) -> None:
        """The recording ends: what only now is worth a note."""
        self.read()
        if batches := self._batches.info():
            self._recorder.sink.note(batches)

    def audit(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """What the optimizers were given, held against what the model has."""
        model = self._parameters.model
        if model is None or not optimizers:
            return
        report = audit(model, optimizers)
        self._recorder.sink.note({"audit": report})
        for event in audit_events(report, step):
            self._recorder.sink.event(event)

    def read(self) -> None:
        """What the signals have found out meanwhile: the graph of the layers, the loss."""
        for signal in self._recorder.signals:
            graph = signal.graph
            if graph is not None and graph is not self._graph:
                self._graph = graph
                self._recorder.sink.graph(graph)
                self._parameters.learn_order(graph.order)
            if signal.loss_guess and not self._loss:
                self._note_loss(signal.loss_guess)

    def _note_loss(self, kind: Mapping[str, Any]) -> None:
        if kind:
            self._loss = dict(kind)
            self._recorder.note(self._loss)
