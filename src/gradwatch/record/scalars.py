"""Numbers the user logs: which step each belongs to, and how they are kept until handed over."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

from torch import Tensor

from gradwatch.record.clock import StepClock
from gradwatch.record.guard import ErrorGuard

MOST_KEPT = 64
LONGEST_KEPT = 1.0
"""They wait for so many others, or so many seconds: no longer than the writer lets rows wait."""

LoggedScalar = tuple[int, str, float]
"""Number of the step last made, name, value."""

_EVALUATED = ("val", "eval", "test")
"""Numbers of an evaluation belong to the training before it, even if one is made at the start."""


class ScalarBuffer:
    """Keeps what is logged during idle steps until `hand_over` takes it, many at a time.

    After a step's worth of somebody else's work our code is cold, and a walk through all of it for
    one number costs many times what it costs in a loop.
    """

    def __init__(
        self,
        guard: ErrorGuard,
        clock: StepClock,
        hand_over: Callable[[Sequence[LoggedScalar]], None],
    ) -> None:
        self._guard, self._clock, self._hand_over = guard, clock, hand_over
        self._timer = guard.timer
        self._plain: set[str] = set()
        self._kept: list[LoggedScalar] = []
        self._since = 0.0

    def learn(self, names: Iterable[str]) -> None:
        """These names stand for ordinary numbers, of which nothing but the number matters."""
        self._plain.update(names)

    def take(self, values: Mapping[str, Any]) -> bool:
        """Keep the values; False where they have to go the long way.

        One function without calls of its own, because of the cold code above.
        """
        if not self._clock.idle_left:
            return False
        start = perf_counter()
        step, plain, logged = self._clock.number, self._plain, []
        try:
            for name, value in values.items():
                if name not in plain:
                    return False
                if type(value) is Tensor:
                    if not value.is_cpu:
                        return False
                    value = value.item()
                elif type(value) is not float:
                    value = float(value)
                if value - value != 0.0:  # NaN or Inf
                    return False
                logged.append((step, name, value))
        except Exception:
            return False  # the long way knows what to do
        kept = self._kept
        if not kept:
            self._since = start
        kept += logged
        if len(kept) < MOST_KEPT and start - self._since < LONGEST_KEPT:
            self._timer.add(perf_counter() - start)
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
