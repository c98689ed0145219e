"""What the user logs: numbers, put to the step they belong to, and the batch ids of a step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from gradwatch.checks.logged import losses
from gradwatch.record.guard import ErrorGuard, log
from gradwatch.record.recorder import Recorder
from gradwatch.record.tensors import is_number, number, on_accelerator
from gradwatch.run import Event, EventKind

MOST_KEPT = 64
LONGEST_KEPT = 1.0
"""Numbers wait for so many others, or so many seconds."""
BATCH = "batch"
"""`log(batch=ids)`: not a number, but which samples the step was fed with."""
ALIASES = {"valid_loss": "val_loss", "eval_loss": "val_loss"}

LoggedNumber = tuple[int, str, float]
"""Number of the step, name, value."""

_EVALUATED = ("val", "eval", "test")
"""Numbers of an evaluation belong to the training before it, even if one is made at the start."""


class Logs:
    """Puts what is logged to its step.

    After a backward pass that is the coming step. Between two optimizer steps with no backward pass
    a log may speak of the step just made (`loss.backward(); step(); log`) or of the coming one
    (`log` right after the loss is computed). The first log of a name tells: before anything was
    trained there is no step it could speak of but the coming one, and a loop does the same thing
    every time round.
    """

    def __init__(
        self,
        guard: ErrorGuard,
        recorder: Recorder,
        steps: Callable[[], tuple[int, int]],
        logged: Callable[[Sequence[LoggedNumber]], None],
    ) -> None:
        self._guard, self._timer, self._recorder = guard, guard.timer, recorder
        self._steps = steps
        """The steps that numbers logged now belong to: those logged early, and others."""
        self._logged = logged
        self._early: set[str] = set()
        """Names logged before the backward pass of the step they belong to."""
        self._placed: set[str] = set()
        """Names of which that is known."""
        self._plain: set[str] = set()
        """Names that stand for ordinary numbers, of which nothing but the number matters."""
        self._refused: set[str] = set()
        self._kept: list[LoggedNumber] = []
        self._since = 0.0
        self.samples = SampleIds()

    def keep(self, values: Mapping[str, Any]) -> bool:
        """Keep the values; False where they have to go the long way, through `log`.

        One function with next to no calls of its own: after a step's worth of somebody else's work
        our code is cold, and a walk through all of it for one number costs many times what it costs
        in a loop.
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
            self._logged(kept)
            self._recorder.numbers(kept)

    def log(self, values: dict[str, Any], *, before_all: bool, backward_ran: bool) -> None:
        """The long way: `before_all` says that neither a backward pass nor a step has been seen."""
        coming, made = self._steps()
        numbers: list[LoggedNumber] = []
        for given, value in values.items():
            name = ALIASES.get(given, given)
            if given not in self._placed:
                self._placed.add(given)
                if before_all and not backward_ran and not given.startswith(_EVALUATED):
                    self._early.add(given)
            step = coming if given in self._early else made
            if given == BATCH:
                self.samples.keep(step, value)
            elif not is_number(value):
                self._refuse(given, value, made)
            elif on_accelerator(value):
                self._recorder.number(step, name, value)
            else:
                numbers.append((step, name, number(value)))
                if name == given:
                    self._plain.add(name)
        of_training = losses([name for _, name, _ in numbers])
        for step in {at for at, name, v in numbers if name in of_training and not isfinite(v)}:
            numbers.append((step, "loss_nonfinite", 1.0))
            if self.samples.mark(step):
                self._recorder.note(self.samples.info())
        self._logged(numbers)
        self._recorder.numbers(numbers)

    def look_closely(self, name: str) -> None:
        """Of this one more than the number matters, for now: let it go the long way."""
        self._plain.discard(name)

    def _refuse(self, name: str, value: Any, step: int) -> None:
        if name not in self._refused and len(self._refused) < MOST_KEPT:
            self._refused.add(name)
            what = "text" if isinstance(value, str) else type(value).__name__
            text = f"log({name}=…) was given {what}, which is no single number: left out"
            self._recorder.event(Event(step, EventKind.NOT_RECORDED, text))
            log.warning("gradwatch: %s", text)


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


KEPT = 64
_MOST = 1024


class SampleIds:
    """The ids of the samples of the last 64 steps, at most 1,024 of each."""

    def __init__(self) -> None:
        self._kept: dict[int, list[int | str]] = {}
        self._bad: dict[str, Any] = {}

    def keep(self, step: int, ids: Any) -> None:
        """Remember what the step was fed with; a step of several batches has all of theirs."""
        kept = self._kept.setdefault(step, [])
        kept += plain_ids(ids)[: _MOST - len(kept)]
        if len(self._kept) > KEPT:
            del self._kept[min(self._kept)]

    def mark(self, step: int) -> bool:
        """The loss of this step is not finite: whether that is the first time it happens."""
        if self._bad or not self._kept:
            return False
        step = step if step in self._kept else max(self._kept)
        self._bad = {"step": step, "ids": self._kept[step]}
        return True

    def info(self) -> dict[str, Any]:
        """For `run.info`: `batches` ([step, ids] of the last steps) and the first `bad_batch`."""
        batches = [[step, ids] for step, ids in self._kept.items()]
        named = {"batches": batches, "bad_batch": self._bad}
        return {name: noted for name, noted in named.items() if noted}


def plain_ids(ids: Any) -> list[int | str]:
    """Whole numbers and words out of a tensor, an array, a list or a single id.

    Nothing of what lies on a device: reading it would wait for it.
    """
    if isinstance(ids, np.ndarray) or (isinstance(ids, Tensor) and ids.is_cpu):
        ids = ids.reshape(-1)[:_MOST].tolist()
    if isinstance(ids, str | Tensor) or not isinstance(ids, Iterable):
        ids = [ids]
    return [_plain(one) for one in islice(ids, _MOST) if not on_accelerator(one)]


def _plain(one: Any) -> int | str:
    if isinstance(one, Tensor) and one.is_cpu and one.numel() == 1:
        one = one.item()
    is_whole = isinstance(one, int | np.integer) or (isinstance(one, float) and one.is_integer())
    return int(one) if is_whole else str(one)[:200]
