"""Which step it is: a step ends when an optimizer that has stepped in it steps again."""

from collections.abc import Hashable, Iterable


class StepClock:
    """Counts steps from the optimizers' steps, several optimizers included.

    D, G, D, G counts 0, 0, 1, 1. Which optimizers belong to a step is learned from the step before.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.number = first
        self._stepped: set[Hashable] = set()
        self._expected: frozenset[Hashable] = frozenset()

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
