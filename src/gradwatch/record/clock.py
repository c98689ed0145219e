"""Which step it is, and what is due on it.

A step ends when an optimizer that has stepped in it steps again. Families are due on powers of two
of its number, stretched where the budget asks for it.
"""

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from torch.optim import Optimizer

from gradwatch.record.guard import Overhead, OverheadTimer
from gradwatch.stats import Cadence, Family

LONGEST_IDLE = 256
"""Idle steps at once, so that the pace is looked at now and then."""


class StepClock:
    """Counts steps from the optimizers' steps, several optimizers included.

    D, G, D, G counts 0, 0, 1, 1. Which optimizers belong to a step is learned from the step before.

    Idle steps record nothing: the hooks count them here and do nothing else. After a step's worth
    of somebody else's work our code is cold, and everything it does costs several times what it
    costs in a loop of its own.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.number = first
        self._stepped: set[Hashable] = set()
        self._expected: frozenset[Hashable] = frozenset()
        self.idle_left = 0
        """Idle steps still to come; 0 outside a stretch of them."""
        self.idle_optimizer: Callable[[], Optimizer | None] = lambda: None
        """Whose steps they are."""
        self._idle_steps = 0

    def expect(self, optimizers: Iterable[Hashable]) -> None:
        """Before anything was seen: each of these is assumed to step once per step."""
        if self.number == self.first and not self._stepped:
            self._expected = frozenset(optimizers)

    def replace(self, old: Hashable, new: Hashable) -> None:
        """One optimizer has taken another's place: it has stepped where the other had."""
        self._expected = frozenset(new if key == old else key for key in self._expected)
        self._stepped = {new if key == old else key for key in self._stepped}

    def forget(self, key: Hashable) -> None:
        """This optimizer only passes on to another: it neither steps nor is waited for."""
        self._expected -= {key}
        self._stepped.discard(key)

    def enter(self, optimizer: Hashable) -> bool:
        """This optimizer steps now; whether that begins a new step."""
        begins = optimizer in self._stepped or not self._stepped
        if optimizer in self._stepped:
            self.advance()
        self._stepped.add(optimizer)
        return begins

    def has_stepped(self, optimizer: Hashable) -> bool:
        """Whether this optimizer has stepped in the present step: another would begin the next."""
        return optimizer in self._stepped

    def advance(self) -> None:
        """The present step is over."""
        if self._stepped:
            self._expected = frozenset(self._stepped)
        self._stepped = set()
        self.number += 1

    @property
    def begun(self) -> bool:
        """Whether an optimizer has stepped in the present step."""
        return bool(self._stepped)

    @property
    def complete(self) -> bool:
        """Whether every optimizer that is expected to has stepped in the present step."""
        return bool(self._stepped) and self._expected <= self._stepped

    @property
    def coming(self) -> int:
        """The step the next optimizer step will belong to, as far as one can know."""
        return self.number + 1 if self.complete else self.number

    @property
    def made(self) -> int:
        """The step last made; the first one where none was."""
        return self.number if self._stepped else max(self.first, self.number - 1)

    # -- idle steps ------------------------------------------------------------------------------

    def begin_idle(self, optimizer: Optimizer, steps: int) -> None:
        """Only count the next `steps` steps of this optimizer, or as many as are sensible.

        The hooks do it: `number` goes up before each, `idle_left` down after it. Who has stepped
        stays as the last step left it: these are made by one optimizer, and each is complete.
        """
        self.idle_optimizer = weakref.ref(optimizer)
        self._idle_steps = self.idle_left = min(steps, LONGEST_IDLE)

    def end_idle(self) -> int:
        """No more idle steps; how many there were."""
        passed = self._idle_steps - self.idle_left
        self._idle_steps = self.idle_left = 0
        return passed


OPENING = 10
"""The first steps record everything."""
ALLOWANCE = 2.0
"""Seconds that are free, so that short runs are recorded whole."""
LONGEST_STRETCH = 1 << 14

_WEIGHT = 0.1
_REVIEW = 32
_CROWDED = 0.5
"""A queue that is so full fills faster than the writer empties it."""
_LONGEST_UNREVIEWED = 2.0
"""Seconds: where steps are slow, 32 of them are a long time to be over the budget."""
_FACTOR = {Cadence.STEP: 1, Cadence.K: 1, Cadence.K4: 4, Cadence.K16: 16}


def families_due(
    step: int, families: Iterable[Family], *, k: int, every: int | None
) -> frozenset[Family]:
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


def takes_histograms(step: int, *, k: int, every: int | None) -> bool:
    """Whether this step also takes histograms and looks at the model's parameters anew."""
    if every is not None:
        return step % every == 0
    return step < OPENING or step % (16 * k) == 0


def takes_sketches(step: int, *, k: int, every: int | None) -> tuple[bool, bool]:
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

    def __init__(self, timer: OverheadTimer, budget: float, backlog: Callable[[], float]) -> None:
        self.k = 1
        self._timer, self._budget, self._backlog = timer, budget, backlog
        self._cost = {0: 0.0, 1: 0.0, 4: 0.0, 16: 0.0}
        self._step_time = self._last_spent = 0.0
        self._last_wall = self._reviewed = timer.wall
        self._steps = 0
        self._charged_from = timer.wall
        """When the free seconds were used up: from then on the budget holds."""
        self._recent: deque[_RecordedStep] = deque(maxlen=_REVIEW)

    def after(self, step: int, recorded: bool) -> bool:
        """Take the step that just ended into account; whether `k` has changed."""
        kind = self._kind(step) if recorded else 0
        weight = _WEIGHT if self._cost[kind] else 1.0
        cost = self._learn(kind, 1)
        if recorded:
            self._recent.append(_RecordedStep(step, kind, cost, weight))
        self._steps += 1
        long_ago = self._last_wall - self._reviewed > _LONGEST_UNREVIEWED
        due = self._steps % _REVIEW == 0 or long_ago
        return step >= OPENING and due and self._review()

    def after_idle(self, steps: int) -> bool:
        """The same for a stretch of steps that recorded nothing."""
        if steps == 0:
            return False
        self._learn(0, steps)
        return self._review()

    def on_device(self, step: int, seconds: float) -> None:
        """It is known by now how long devices worked for a step: the larger time counts for it."""
        known = next((one for one in self._recent if one.step == step), None)
        if known is None:
            known = _RecordedStep(step, 1, 0.0, _WEIGHT)
        self._timer.on_devices += seconds
        excess = max(seconds - known.cost, 0.0)
        self._timer.spent += excess
        self._last_spent += excess
        # As if it had been there when the step was taken into account.
        self._cost[known.kind] += known.weight * excess

    @property
    def overhead(self) -> Overhead:
        """What recording has cost so far: the free seconds, and the share after them."""
        wall = self._timer.wall
        charged = wall - self._charged_from
        return Overhead(self._timer.spent, wall, allowance=ALLOWANCE, charged=charged)

    def _review(self) -> bool:
        self._reviewed = self._last_wall
        old, self.k = self.k, self.choose(self._last_spent, self._last_wall)
        if self._backlog() > _CROWDED:  # rows come faster than they are written: fewer of them
            self.k = min(max(self.k, 2 * old), LONGEST_STRETCH)
        return old != self.k

    def choose(self, spent: float, wall: float) -> int:
        """The `k` that keeps to the budget, from what was spent of the wall time so far."""
        if spent < ALLOWANCE:
            self._charged_from = wall
            return 1
        allowed = ALLOWANCE + self._budget * (wall - self._charged_from)
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

    def _learn(self, kind: int, steps: int) -> float:
        """What steps of this kind cost each; that of the ones just made."""
        wall, spent = self._timer.wall, self._timer.spent
        cost = (spent - self._last_spent) / steps
        bare = max((wall - self._last_wall) / steps - cost, 0.0)
        self._last_wall, self._last_spent = wall, spent
        weight = 1.0 - (1.0 - _WEIGHT) ** steps
        self._cost[kind] = _blend(self._cost[kind], cost, weight)
        self._step_time = _blend(self._step_time, bare, weight)
        return cost


class _RecordedStep(NamedTuple):
    step: int
    kind: int
    cost: float
    """Seconds inside our hooks."""
    weight: float
    """With which the cost went into the average of its kind."""


def _blend(average: float, new: float, weight: float) -> float:
    """A running average; the first value counts whole."""
    return new if average == 0.0 else average + weight * (new - average)


_NOTHING: frozenset[Family] = frozenset()
