"""What is recorded when: powers of two of the step number, stretched by `k` to fit the budget."""

from collections.abc import Iterable

from gradwatch.record.guard import OverheadTimer
from gradwatch.stats import Cadence, Family

OPENING = 10
"""The first steps record everything."""
ALLOWANCE = 2.0
"""Seconds that are free, so that short runs are recorded whole."""
LONGEST_STRETCH = 1 << 14

_WEIGHT = 0.1
_REVIEW = 32
_FACTOR = {Cadence.STEP: 1, Cadence.K: 1, Cadence.K4: 4, Cadence.K16: 16}


def due(step: int, families: Iterable[Family], *, k: int, every: int | None) -> frozenset[Family]:
    """The families to record on this step.

    With `every` everything is recorded on its multiples. Otherwise what ranks record depends on
    the step number and a power of two alone, so ranks that stretch
    differently share the coarser ones.
    """
    if every is not None:
        return frozenset(families) if step % every == 0 else _NOTHING
    if step < OPENING:
        return frozenset(families)
    if step % k:
        return _NOTHING
    turn = step // k
    return frozenset(f for f in families if turn % _FACTOR[f.cadence] == 0)


def idle_steps(step: int, *, k: int, every: int | None) -> int:
    """How many steps from this one on record nothing."""
    period = k if every is None else every
    return 0 if every is None and step < OPENING else -step % period


def full(step: int, *, k: int, every: int | None) -> bool:
    """Whether this step also takes histograms and looks at the model's parameters anew."""
    if every is not None:
        return step % every == 0
    return step < OPENING or step % (16 * k) == 0


def sketched(step: int, *, k: int, every: int | None) -> tuple[bool, bool]:
    """Whether the gradients are sketched on this step, and whether the cosine to the last is taken.

    On disk a sketch takes more room than all other statistics of a gradient together. Two
    neighbouring recorded steps out of four have one, so that a cosine is one between neighbours.
    """
    if every is not None or step < OPENING:
        return True, True
    turn = step // k % 4
    return turn in (0, 3), turn == 0


class Pace:
    """Chooses `k`, a power of two, from what the kinds of steps have cost so far.

    Of every 16 recorded steps one records everything, three more the updates, the rest gradients
    only; between them lie steps that record nothing but still pass through the hooks.
    """

    def __init__(self, timer: OverheadTimer, budget: float) -> None:
        self.k = 1
        self._timer = timer
        self._budget = budget
        self._cost = {0: 0.0, 1: 0.0, 4: 0.0, 16: 0.0}
        self._step_time = 0.0
        self._last_wall = timer.wall
        self._last_spent = 0.0
        self._steps = 0

    def after(self, step: int, recorded: bool) -> bool:
        """Take the step that just ended into account; whether `k` has changed."""
        self._learn(self._kind(step) if recorded else 0, 1)
        self._steps += 1
        return step >= OPENING and self._steps % _REVIEW == 0 and self._review()

    def after_idle(self, steps: int) -> bool:
        """The same for a stretch of steps that recorded nothing."""
        if steps == 0:
            return False
        self._learn(0, steps)
        return self._review()

    def _review(self) -> bool:
        old, self.k = self.k, self.choose(self._last_spent, self._last_wall)
        return old != self.k

    def choose(self, spent: float, wall: float) -> int:
        """The `k` that keeps to the budget, from what was spent of the wall time so far."""
        allowed = ALLOWANCE + self._budget * wall
        if spent < allowed and self.k == 1:
            return 1
        # Somewhat under the budget while we are over what is allowed, up to it otherwise.
        share = self._budget * (0.8 if spent > allowed else 1.0) * self._step_time
        # What every step costs, logging above all, no cadence can save: recording keeps a quarter.
        room = max(share - self._cost[0], share / 4)
        k = 1
        while k < LONGEST_STRETCH and self._rate(k) > room:
            k *= 2
        if k < self.k and self._rate(k) > 0.8 * room:
            return self.k  # not worth changing back and forth
        return k

    def _rate(self, k: int) -> float:
        """Seconds per step that recording adds with this `k`."""
        c = self._cost
        return max(c[16] + 3 * c[4] + 12 * c[1] - 16 * c[0], 0.0) / (16 * k)

    def _kind(self, step: int) -> int:
        turn = step // self.k
        return 16 if step < OPENING or turn % 16 == 0 else 4 if turn % 4 == 0 else 1

    def _learn(self, kind: int, steps: int) -> None:
        wall, spent = self._timer.wall, self._timer.spent
        cost = (spent - self._last_spent) / steps
        bare = max((wall - self._last_wall) / steps - cost, 0.0)
        self._last_wall, self._last_spent = wall, spent
        weight = 1.0 - (1.0 - _WEIGHT) ** steps
        self._cost[kind] = _blend(self._cost[kind], cost, weight)
        self._step_time = _blend(self._step_time, bare, weight)


def _blend(average: float, new: float, weight: float) -> float:
    """A running average; the first value counts whole."""
    return new if average == 0.0 else average + weight * (new - average)


_NOTHING: frozenset[Family] = frozenset()
