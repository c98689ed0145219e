"""What is recorded beside the rows: logged numbers, the loss, the layer graph, the audit."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.checks.logged import is_loss, losses
from gradwatch.graph import Graph
from gradwatch.record.guard import ErrorGuard, log
from gradwatch.record.parameters import TrackedParameters, named_parameters
from gradwatch.record.recorder import Recorder
from gradwatch.record.signals import describe_loss, parts_reached
from gradwatch.record.tensors import is_number, number, on_accelerator
from gradwatch.run import Event, EventKind

MOST_KEPT = 64
LONGEST_KEPT = 1.0
"""They wait for so many others, or so many seconds: no longer than the writer lets rows wait."""

LoggedScalar = tuple[int, str, float]
"""Number of the step, name, value."""

_EVALUATED = ("val", "eval", "test")
"""Numbers of an evaluation belong to the training before it, even if one is made at the start."""


class ScalarBuffer:
    """Keeps what is logged until `hand_over` takes it, many at a time or when a step ends.

    After a step's worth of somebody else's work our code is cold, and a walk through all of it for
    one number costs many times what it costs in a loop.
    """

    def __init__(
        self,
        guard: ErrorGuard,
        steps: Callable[[], tuple[int, int]],
        early: set[str],
        hand_over: Callable[[Sequence[LoggedScalar]], None],
    ) -> None:
        self._guard, self._timer, self._hand_over = guard, guard.timer, hand_over
        self._steps = steps
        """The steps that numbers logged now belong to: those of `early` names, and others."""
        self._early = early
        self._plain: set[str] = set()
        self._kept: list[LoggedScalar] = []
        self._since = 0.0

    def learn(self, names: Iterable[str]) -> None:
        """These names stand for ordinary numbers, of which nothing but the number matters."""
        self._plain.update(names)

    def take(self, values: Mapping[str, Any]) -> bool:
        """Keep the values; False where they have to go the long way.

        One function with next to no calls of its own, because of the cold code above.
        """
        if self._guard.off:
            return False
        start = perf_counter()
        plain, early, logged = self._plain, self._early, []
        try:
            coming, made = self._steps()
            for name, value in values.items():
                if name not in plain:
                    return False
                if type(value) is Tensor:
                    if not value.is_cpu:
                        return False
                    value = value.item()
                elif type(value) is not float:
                    if type(value) is str:
                        return False
                    value = float(value)
                if value - value != 0.0:  # NaN or Inf
                    return False
                logged.append((coming if name in early else made, name, value))
        except Exception:
            return False  # the long way knows what to do
        kept = self._kept
        if not kept:
            self._since = start
        kept += logged
        if len(kept) < MOST_KEPT and start - self._since < LONGEST_KEPT:
            self._timer.spent += perf_counter() - start
        else:
            self._guard.run(self.drain)
        return True

    def drain(self) -> None:
        """Hand over what is kept."""
        if self._kept:
            kept, self._kept = self._kept, []
            self._hand_over(kept)


class LogPlacement:
    """Which step a logged number belongs to, learnt from the first time its name is logged.

    Between two optimizer steps with no backward pass a log may speak of the step just made (the
    usual `loss.backward(); step(); log`) or of the coming one (`log` right after the loss is
    computed). The first log of a name tells: before anything was trained there is no step it could
    speak of but the coming one, and a loop does the same thing every time round.
    """

    def __init__(self) -> None:
        self.early: set[str] = set()
        """Names logged before the backward pass of the step they belong to."""
        self._seen: set[str] = set()

    def learn(self, names: Iterable[str]) -> None:
        """Logged after a backward pass: nothing to learn for the next time."""
        self._seen.update(names)

    def split(
        self, values: Mapping[str, Any], *, before_all: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values for the coming step and those for the step just made.

        `before_all` says that neither a backward pass nor a step has been seen yet.
        """
        for name in values:
            if name not in self._seen:
                self._seen.add(name)
                if before_all and not name.startswith(_EVALUATED):
                    self.early.add(name)
        early = {name: value for name, value in values.items() if name in self.early}
        late = {name: value for name, value in values.items() if name not in self.early}
        return early, late


def flattened(values: Any) -> dict[str, Any]:
    """What was logged, by name: a bare number is the loss, one in a nested dict is `G.loss`."""
    if not isinstance(values, Mapping):
        return {"loss": values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flattened(value).items()}
        else:
            flat[str(name)] = value
    return flat


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
        self._reached: dict[str, list[str]] = {}
        self._logged = False
        self._batches = Batches()
        self._optimizers: list[dict[str, Any]] = []
        self._refused: set[str] = set()

    def numbers_in(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """What can be recorded; the rest is told of once for each name."""
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if name == BATCH or is_number(value):
                kept[name] = value
            elif name not in self._refused and len(self._refused) < MOST_KEPT:
                self._refused.add(name)
                what = "text" if isinstance(value, str) else type(value).__name__
                text = f"log({name}=…) was given {what}, which is no single number: left out"
                self._recorder.sink.event(Event(step, EventKind.NOT_RECORDED, text))
                log.warning("gradwatch: %s", text)
        return kept

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
        if any(not isfinite(numbers[name]) for name in losses(numbers)):
            numbers["loss_nonfinite"] = 1.0
            if bad := self._batches.mark(step):
                self._recorder.sink.note(bad)
        self._logged = self._logged or any(map(is_loss, values))
        if self._looks and "loss" in values:
            self._look_at(values["loss"])
        for name in losses(set(values) - {"loss"} - self._reached.keys()):
            self._follow(name, values[name])
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

    def _follow(self, name: str, loss: Any) -> None:
        """One of several losses: which parts of the model it reaches, by its graph, once."""
        self._reached[name] = []
        model = self._parameters.model
        if isinstance(loss, Tensor) and loss.grad_fn is not None and model is not None:
            self._reached[name] = parts_reached(loss, model)
            self._recorder.note({"loss_reaches": dict(self._reached)})

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
        self.describe()
        for event in audit_events(report, step):
            self._recorder.sink.event(event)

    def describe(self) -> None:
        """What each optimizer is and holds; of one that holds nothing of the model, at once."""
        described = describe_optimizers(self._parameters)
        if described == self._optimizers:
            return
        self._optimizers = described
        self._recorder.note({"optimizers": described})
        trainable = [p for p in self._parameters.unowned.tensors() if p is not None]
        # an optimizer of 16-bit weights may hold copies of them with more bits
        if not any(p.requires_grad and p.element_size() > 2 for p in trainable):
            return
        for place, entry in enumerate(described, 1):
            if 0 < entry["parameters"] <= entry["foreign"]:
                log.warning(_FOREIGN, entry["optimizer"], place, len(described))

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
            if signal.info:
                self._recorder.note(signal.info)
                signal.info = {}

    def _note_loss(self, kind: Mapping[str, Any]) -> None:
        if kind:
            self._loss = dict(kind)
            self._recorder.note(self._loss)


_FOREIGN = (
    "gradwatch: %s (optimizer %d of %d) holds no parameter of the watched model: its steps change "
    "nothing here; make it from the parameters of this very model"
)


def describe_optimizers(parameters: TrackedParameters) -> list[dict[str, Any]]:
    """Of each optimizer: its class, how many parameters it holds, how many are of no watched model.

    And of its groups: the run's number of each, and its weight decay.
    """
    model = parameters.model
    ours = {id(n.ref()) for n in named_parameters(model)} if model is not None else set()
    described = []
    for tracked in parameters.optimizers:
        if (optimizer := tracked.optimizer) is None:
            continue
        held = [id(p) for group in optimizer.param_groups for p in group["params"]]
        described.append(
            {
                "optimizer": type(optimizer).__name__,
                "parameters": len(held),
                "foreign": len([key for key in held if key not in ours]),
                "groups": [
                    {"group": place, "weight_decay": number(group.get("weight_decay", 0.0))}
                    for place, group in zip(tracked.groups, optimizer.param_groups, strict=False)
                ],
            }
        )
    return described


_SENTENCES = {
    "unknown_to_optimizers": "{n} trainable parameters are in no optimizer and will never change: "
    "{names}",
    "in_no_watched_module": "{n} parameters of the optimizer are in no watched module: {names}. "
    "Was the model copied or rebuilt after the optimizer was made?",
    "frozen_but_handed_over": "{n} parameters are frozen but were handed to an optimizer: {names}",
}
_SHOWN = 3


def audit(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, list[str]]:
    """Parameters no optimizer knows, optimizer parameters of no watched module, frozen ones."""
    held = {
        id(parameter): f"group {number}, parameter {place} {_shape(parameter)}"
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
    }
    names = {
        id(tensor): (named.name, tensor.requires_grad)
        for named in named_parameters(model)
        if (tensor := named.ref()) is not None
    }
    return {
        "unknown_to_optimizers": [
            name for key, (name, trainable) in names.items() if trainable and key not in held
        ],
        "in_no_watched_module": [text for key, text in held.items() if key not in names],
        "frozen_but_handed_over": [
            name for key, (name, trainable) in names.items() if not trainable and key in held
        ],
    }


def _shape(parameter: Tensor) -> tuple[int, ...] | str:
    return "(lazy)" if is_lazy(parameter) else tuple(parameter.shape)


def audit_events(report: dict[str, list[str]], step: int) -> list[Event]:
    """One event for each kind of trouble in the report."""
    events = []
    for key, sentence in _SENTENCES.items():
        if names := report.get(key):
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            text = sentence.format(n=len(names), names=", ".join(names[:_SHOWN]) + more)
            data: dict[str, Any] = {"what": key, "names": names}
            events.append(Event(step, EventKind.AUDIT, text, data=data))
    return events


KEPT = 64
_MOST = 1024


class Batches:
    """The ids of the last 64 steps, each with at most 1,024 of them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, list[int | str]]] = deque(maxlen=KEPT)
        self._bad: tuple[int, list[int | str]] | None = None

    def keep(self, step: int, ids: Any) -> None:
        """Remember what the step was fed with; a step of several batches has all of theirs."""
        samples = plain_ids(ids)
        if self._kept and self._kept[-1][0] == step:
            samples = [*self._kept.pop()[1], *samples][:_MOST]
        self._kept.append((step, samples))

    def mark(self, step: int) -> dict[str, Any]:
        """The loss of this step is not finite: what to note, the first time it happens."""
        if self._bad is not None or not self._kept:
            return {}
        self._bad = next((batch for batch in self._kept if batch[0] == step), self._kept[-1])
        return self.info()

    def info(self) -> dict[str, Any]:
        """For `run.info`: `batches` ([step, ids] of the last steps) and the first `bad_batch`."""
        if not self._kept:
            return {}
        info: dict[str, Any] = {"batches": [[step, ids] for step, ids in self._kept]}
        if self._bad is not None:
            info["bad_batch"] = {"step": self._bad[0], "ids": self._bad[1]}
        return info


def plain_ids(ids: Any) -> list[int | str]:
    """Whole numbers and words out of a tensor, an array, a list or a single id."""
    if isinstance(ids, torch.Tensor):
        if not ids.is_cpu:
            return []  # reading it would wait for the device
        ids = ids.detach().numpy()
    if isinstance(ids, np.ndarray):
        ids = ids.reshape(-1)[:_MOST].tolist()
    if isinstance(ids, (str, int)) or not isinstance(ids, Iterable):
        ids = [ids]
    return [_plain(sample) for sample in list(ids)[:_MOST]]


def _plain(sample: Any) -> int | str:
    if isinstance(sample, (int, np.integer)):
        return int(sample)
    if isinstance(sample, torch.Tensor) and sample.is_cpu and sample.numel() == 1:
        return _plain(sample.detach().numpy().reshape(()).item())
    if isinstance(sample, float) and sample.is_integer():
        return int(sample)
    return str(sample)[:200]
