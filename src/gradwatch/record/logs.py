"""What the user logs: numbers, put to the step they belong to, and the batch ids of a step."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np
import torch
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
        self.batches = Batches()

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
                self.batches.keep(step, value)
            elif not is_number(value):
                self._refuse(given, value, made)
            elif on_accelerator(value):
                self._recorder.number(step, name, value)
            else:
                numbers.append((step, name, number(value)))
                if name == given:
                    self._plain.add(name)
        of_training = losses([name for _, name, _ in numbers])
        bad = {step for step, name, v in numbers if name in of_training and not isfinite(v)}
        for step in bad:
            numbers.append((step, "loss_nonfinite", 1.0))
            if found := self.batches.mark(step):
                self._recorder.note(found)
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
    if isinstance(sample, torch.Tensor) and sample.is_cpu and sample.numel() == 1:
        sample = sample.detach().numpy().reshape(()).item()
    if isinstance(sample, (int, np.integer)) or (isinstance(sample, float) and sample.is_integer()):
        return int(sample)
    return str(sample)[:200]
