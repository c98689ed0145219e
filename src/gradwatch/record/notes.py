"""What is noted of the whole run: the loss, the optimizers, passes that no step answers."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gradwatch.checks.logged import HELD_OUT, is_loss, losses, words
from gradwatch.record.guard import log
from gradwatch.record.logs import LoggedNumber
from gradwatch.record.loss import describe_loss, parts_reached
from gradwatch.record.parameters import TrackedParameters, named_parameters, parameter_ids
from gradwatch.record.recorder import Recorder
from gradwatch.record.tensors import as_array, number, readable_here, spread
from gradwatch.run import Event, EventKind

LOOKS = 3
"""How many losses are looked at to find out their kind; the graph of one may not tell."""
LEAST = 20
"""Backward passes or losses without a step before anything is noted."""
_SHOWN = 3
_COMPARED = 64
"""Weights of each optimizer that are looked at to see whether they move."""


class LossNotes:
    """The kind of the loss, from its graph, and the parts of the model that each loss reaches."""

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._reached: dict[str, list[str]] = {}
        self.looks = LOOKS
        self.logged = False
        """Whether any loss was."""
        self._known = False

    def look(self, values: Mapping[str, Any]) -> None:
        """Numbers were logged, maybe as tensors with a graph."""
        self.logged = self.logged or any(map(is_loss, values))
        if self.looks and _has_graph(loss := values.get("loss")):
            self.looks -= 1
            self.note(describe_loss(loss))
        model = self._parameters.model
        for name in losses(set(values) - {"loss"} - self._reached.keys()):
            self._reached[name] = []
            if model is not None and _has_graph(values[name]):
                self._reached[name] = parts_reached(values[name], model)
                self._recorder.note({"loss_reaches": dict(self._reached)})

    def note(self, kind: Mapping[str, Any]) -> None:
        """The kind of the loss is known, if this says anything; the first word counts."""
        if kind and not self._known:
            self._known, self.looks = True, 0
            self._recorder.note(dict(kind))

    def ask_for_a_loss(self, step: int) -> None:
        """The checks on the loss can say nothing without one."""
        if not self.logged:
            text = "no loss is logged: watcher.log(loss=loss) lets the checks on the loss look"
            self._recorder.event(Event(step, EventKind.AUDIT, text))


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


# -- optimizers ----------------------------------------------------------------------------------

_TROUBLE = {
    "unknown_to_optimizers": "trainable parameters are in no optimizer and will never change",
    "in_no_watched_module": "parameters of the optimizer are in no watched module (was the model "
    "copied or rebuilt after the optimizer was made?)",
    "frozen_but_handed_over": "parameters are frozen but were handed to an optimizer",
}
_FOREIGN = (
    "gradwatch: %s (optimizer %d of %d) holds no parameter of the watched model: its steps change "
    "nothing here; make it from the parameters of this very model"
)


class OptimizerNotes:
    """What the optimizers were given, held against what the model has."""

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._silent: list[dict[str, Any]] = []

    def audit(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """Note it, with an event for each kind of trouble."""
        model = self._parameters.model
        if model is None or not optimizers:
            return
        report = audit(model, optimizers)
        self._recorder.note({"audit": report})
        self.describe()
        for kind, names in report.items():
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                shown = ", ".join(names[:_SHOWN]) + more
                text = f"{len(names)} {_TROUBLE[kind]}: {shown}"
                data: dict[str, Any] = {"what": kind, "names": names}
                self._recorder.event(Event(step, EventKind.AUDIT, text, data=data))

    def describe(self) -> None:
        """What each optimizer is and holds; of one that holds nothing of the model, at once."""
        model, described = self._parameters.model, list[dict[str, Any]]()
        ours = {id(n.ref()) for n in named_parameters(model)} if model is not None else set()
        for tracked in self._parameters.optimizers:
            if (optimizer := tracked.optimizer) is None:
                continue
            held, decay = parameter_ids(optimizer), []
            for place, group in zip(tracked.groups, optimizer.param_groups, strict=False):
                rate = number(group.get("weight_decay", 0.0))
                decay.append({"group": place, "weight_decay": rate})
            holds = {"parameters": len(held), "foreign": len(set(held) - ours)}
            described.append({"optimizer": type(optimizer).__name__, **holds, "groups": decay})
        self._recorder.note({"optimizers": described})
        unowned = [p for p in self._parameters.unowned.tensors() if p is not None]
        # an optimizer of 16-bit weights may hold copies of them with more bits
        if not any(p.requires_grad and p.element_size() > 2 for p in unowned):
            return
        for place, entry in enumerate(described, 1):
            if 0 < entry["parameters"] <= entry["foreign"]:
                log.warning(_FOREIGN, entry["optimizer"], place, len(described))

    def look_for_silent(self) -> None:
        """Those of several that have never stepped although their parameters get gradients."""
        silent = []
        for position, tracked in enumerate(self._parameters.optimizers, 1):
            passes, kinds = tracked.sampler.passes, _kinds([tracked.optimizer])
            if kinds and passes >= LEAST and not tracked.has_stepped:
                place = {"position": position, "of": len(self._parameters.optimizers)}
                held = [info.name for info in tracked.parameters]
                told = {"optimizer": kinds[0], "backwards": passes, "parameters": held}
                silent.append({**told, **place})
        if silent != self._silent:
            self._silent = silent
            self._recorder.note({"silent_optimizers": silent})


def audit(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, list[str]]:
    """Parameters no optimizer knows, optimizer parameters of no watched module, frozen ones."""
    report: dict[str, list[str]] = {kind: [] for kind in _TROUBLE}
    held = {
        id(p): f"group {number}, parameter {place} {'(lazy)' if is_lazy(p) else tuple(p.shape)}"
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
    }
    for named in named_parameters(model):
        is_held = held.pop(id(tensor := named.ref()), None) is not None
        if tensor is not None and tensor.requires_grad is not is_held:
            kind = "frozen_but_handed_over" if is_held else "unknown_to_optimizers"
            report[kind].append(named.name)
    report["in_no_watched_module"] += held.values()
    return report


# -- passes without a step -----------------------------------------------------------------------


class UnansweredPasses:
    """Counts backward passes and logged losses from the start of a run until its first step.

    What it finds goes to `run.info["without_step"]`, each time the count has doubled and at the
    end; a step takes it back.
    """

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._next = LEAST
        self._losses: dict[str, list[float]] = {}
        """By name: how many, the first and the last."""
        self._weights: list[bytes] = []
        """Some elements as they were at first: they move where somebody steps unseen."""
        self._noted = False

    def backward(self) -> None:
        """A sampled parameter has got its gradient."""
        self._weights = self._weights or self._sample()
        self._look()

    def logged(self, items: Iterable[LoggedNumber]) -> None:
        """The user has logged these."""
        for _, name, value in items:
            if is_loss(name) and not words(name) & HELD_OUT:
                seen = self._losses.setdefault(name, [0.0, value, value])
                seen[0] += 1
                seen[2] = value
        self._look()

    def answered(self) -> None:
        """An optimizer steps, or the user says so: nothing was wrong."""
        if self._noted:
            self._recorder.note({"without_step": {}})

    def end(self, step: int, strangers: Iterable[Optimizer]) -> None:
        """The run is over, and no step was made: what there is belongs to the one that never came.

        `strangers` are optimizers that did step, but no parameter of the model.
        """
        if passes := self._passes():
            text = "backward ran, but no optimizer step was seen: call watcher.step() after each"
            self._recorder.event(Event(step, EventKind.NOT_RECORDED, text))
            self._recorder.numbers([(step, "backwards", float(passes))])
        self._next = LEAST
        self._look(strangers)

    def _look(self, strangers: Iterable[Optimizer] = ()) -> None:
        """Note what was counted, if there is much more of it than the last time."""
        name = max(self._losses, key=lambda name: self._losses[name][0], default="")
        count, first, last = self._losses.get(name, [0.0, nan, nan])
        passes = self._passes()
        if max(count, passes) < self._next:
            return
        self._next = 2 * int(max(count, passes))
        pairs = zip(self._weights, self._sample(), strict=False)
        moved = any(was and now and was != now for was, now in pairs)
        if moved and not self._noted:
            log.warning(
                "gradwatch: the weights change, but no step was seen; call watcher.step() after "
                "each step of an optimizer that is not one of torch's"
            )
        self._noted = True
        found: dict[str, Any] = {
            "backwards": passes,
            "discarded": max(tracked.sampler.discarded for tracked in self._parameters.all),
            "losses": int(count),
            "moved": moved,
            "optimizers": _kinds(tracked.optimizer for tracked in self._parameters.optimizers),
            "strangers": _kinds(strangers),
        }
        if isfinite(first) and isfinite(last):
            found |= {"loss": name, "first_loss": first, "last_loss": last}
        self._recorder.note({"without_step": found})

    def _sample(self) -> list[bytes]:
        tensors = [tracked.tensors()[:_COMPARED] for tracked in self._parameters.all]
        return [_bits(parameter) for some in tensors for parameter in some]

    def _passes(self) -> int:
        return max(tracked.sampler.passes for tracked in self._parameters.all)


def _bits(parameter: Tensor | None) -> bytes:
    """Of some elements; nothing where they are not in this process' memory."""
    values = None if parameter is None else readable_here(spread(parameter, 64))
    return b"" if values is None else as_array(values).tobytes()


def _kinds(optimizers: Iterable[Optimizer | None]) -> list[str]:
    return [type(optimizer).__name__ for optimizer in optimizers if optimizer is not None]
