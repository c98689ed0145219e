"""Which step it is: a step ends when an optimizer that has stepped in it steps again."""

import weakref
from collections.abc import Hashable, Iterable

from torch.optim import Optimizer

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
        self._idle_steps = 0
        self._idle_optimizer: weakref.ref[Optimizer] | None = None

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
        """Only count the next `steps` steps of this optimizer, or as many as are sensible."""
        self._idle_optimizer = weakref.ref(optimizer)
        self._idle_steps = self.idle_left = min(steps, LONGEST_IDLE)

    def enter_idle(self, optimizer: Optimizer) -> bool:
        """This optimizer is about to step: whether that is an idle step, which is then counted."""
        ref = self._idle_optimizer
        if self.idle_left > 0 and ref is not None and ref() is optimizer:
            # `_stepped` stays as the last step left it: idle steps are made by one optimizer, and
            # each of them is complete.
            self.number += 1
            return True
        return False

    def leave_idle(self, optimizer: Optimizer) -> bool:
        """This optimizer has stepped: whether that was an idle step."""
        ref = self._idle_optimizer
        if self.idle_left > 0 and ref is not None and ref() is optimizer:
            self.idle_left -= 1
            return True
        return False

    def end_idle(self) -> int:
        """No more idle steps; how many there were."""
        passed = self._idle_steps - self.idle_left
        self._idle_steps = self.idle_left = 0
        return passed
