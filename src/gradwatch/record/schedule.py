"""Which step it is, what is due on it, and how often the budget lets us record.

A step ends when an optimizer that has stepped in it steps again. Families are due on powers of two
of its number, stretched where the budget asks for it.
"""

import weakref
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
        self.first = self.number = first
        self._stepped: set[Hashable] = set()
        self._expected: frozenset[Hashable] = frozenset()
        self.idle_left = self._idle_steps = 0
        """Idle steps still to come; 0 outside a stretch of them."""
        self.idle_optimizer: Callable[[], Optimizer | None] = lambda: None
        """Whose steps they are."""

    def expect(self, optimizers: Iterable[Hashable]) -> None:
        """Before anything was seen: each of these is assumed to step once per step."""
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


class StepPlan(NamedTuple):
    """What is to be measured on a step."""

    step: int
    due: frozenset[Family]
    full: bool
    """Histograms are taken, and the model is looked at anew."""


class Schedule:
    """The families that are due on a step.

    With `every` everything is recorded on its multiples. Otherwise what ranks record depends on the
    step number and a power of two alone, so ranks that stretch differently share the coarser steps.
    """

    def __init__(self, families: frozenset[Family], first: int, every: int | None) -> None:
        self.every = every
        self._first = first
        self._due = {
            kind: frozenset(f for f in families if kind and kind % _FACTOR[f.cadence] == 0)
            for kind in (0, 1, 4, 16)
        }

    def plan(self, step: int, k: int) -> StepPlan:
        """Of this step, with `k` steps from one recorded step to the next."""
        if self.every is None:
            kind = _kind(step, k, self._first)
        else:
            kind = 0 if step % self.every and step != self._first else 16
        return StepPlan(step, self._due[kind], kind == 16)

    def idle(self, step: int, k: int) -> int:
        """How many steps from this one on record nothing."""
        if self.every is None and (step < OPENING or step == self._first):
            return 0
        return -step % (self.every or k)


def _kind(step: int, k: int, first: int = 0) -> int:
    """16: everything is due; 4: updates too; 1: what is due on every recorded step; 0: nothing."""
    if step < OPENING or step == first:
        return 16
    turn, between = divmod(step, k)
    if between:
        return 0
    return 16 if turn % 16 == 0 else 4 if turn % 4 == 0 else 1


ALLOWANCE = 2.0
"""Seconds that are free, so that short runs are recorded whole."""
LONGEST_STRETCH = 1 << 14

_BARE = -1
_WEIGHT = 0.1
_REVIEW = 32
_CROWDED = 0.5
"""A queue that is so full fills faster than the writer empties it."""
_LONGEST_UNREVIEWED = 2.0
"""Seconds: where steps are slow, 32 of them are a long time to be over the budget."""


class Pace:
    """Chooses `k`, a power of two, from what the kinds of steps have cost so far.

    Of every 16 recorded steps one records everything, three more the updates, the rest gradients
    only; between them lie steps that record nothing but still pass through the hooks.
    """

    def __init__(self, timer: OverheadTimer, budget: float, backlog: Callable[[], float]) -> None:
        self.k = 1
        self._timer, self._budget, self._backlog = timer, budget, backlog
        self._cost = {0: 0.0, 1: 0.0, 4: 0.0, 16: 0.0, _BARE: 0.0}
        """Seconds per step of each kind, and of the training alone."""
        self._last_spent = 0.0
        self._steps = 0
        self._last_wall = self._reviewed = self._charged_from = timer.wall
        """When it was looked at and reviewed last; and when the free seconds were used up: from
        then on the budget holds."""

    def after(self, step: int, recorded: bool) -> bool:
        """Take the step that just ended into account; whether `k` has changed."""
        self._learn(_kind(step, self.k) or 1 if recorded else 0, 1)
        self._steps += 1
        long_ago = self._last_wall - self._reviewed > _LONGEST_UNREVIEWED
        return step >= OPENING and (long_ago or self._steps % _REVIEW == 0) and self._review()

    def after_idle(self, steps: int) -> bool:
        """The same for a stretch of steps that recorded nothing."""
        if steps:
            self._learn(0, steps)
        return steps > 0 and self._review()

    @property
    def overhead(self) -> Overhead:
        """What recording has cost so far: the free seconds, and the share after them."""
        wall = self._timer.wall
        return Overhead(self._timer.spent, wall, ALLOWANCE, wall - self._charged_from)

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
        share = self._budget * (0.8 if spent > allowed else 1.0) * self._cost[_BARE]
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

    def _learn(self, kind: int, steps: int) -> None:
        """What steps of this kind cost each, from the ones just made, in running averages."""
        wall, spent = self._timer.wall, self._timer.spent
        cost = (spent - self._last_spent) / steps
        bare = max((wall - self._last_wall) / steps - cost, 0.0)
        self._last_wall, self._last_spent = wall, spent
        weight = 1.0 - (1.0 - _WEIGHT) ** steps
        for of, new in ((kind, cost), (_BARE, bare)):
            old = self._cost[of] or new  # the first value counts whole
            self._cost[of] = old + weight * (new - old)


_FACTOR = {Cadence.STEP: 1, Cadence.K: 1, Cadence.K4: 4, Cadence.K16: 16}
