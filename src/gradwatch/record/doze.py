"""Stretches of steps that record nothing: they are counted and otherwise let pass.

After a step's worth of somebody else's work our code is cold, and everything it does costs several
times what it costs in a loop of its own. So on these steps the hooks do next to nothing.
"""

import weakref

from torch.optim import Optimizer

from gradwatch.record.clock import StepClock

LONGEST = 256
"""So many steps at once, so that the pace is looked at now and then."""


class Doze:
    """While `left` is not 0, steps of the one optimizer are only counted."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.left = 0
        self._steps = 0
        self._ref: weakref.ref[Optimizer] | None = None

    def begin(self, optimizer: Optimizer, steps: int) -> None:
        """Let `steps` steps of this optimizer pass, or as many as are sensible at once."""
        self._ref = weakref.ref(optimizer)
        self._steps = self.left = min(steps, LONGEST)

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether a step of this optimizer is only to be counted."""
        return self.left > 0 and self._ref is not None and self._ref() is optimizer

    def end(self) -> int:
        """Wake up; how many steps have passed."""
        passed = self._steps - self.left
        self._steps = self.left = 0
        return passed
