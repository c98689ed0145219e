"""When a loop logs a number: learnt from the first time it does.

Between two optimizer steps with no backward pass a log may speak of the step just made (the usual
`loss.backward(); step(); log`) or of the coming one (`log` right after the loss is computed). The
first log of a name tells: before anything was trained there is no step it could speak of but the
coming one, and a loop does the same thing every time round.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_EVALUATED = ("val", "eval", "test")
"""Numbers of an evaluation belong to the training before it, even if one is made at the start."""


class Habits:
    """Which names are logged before the backward pass."""

    def __init__(self) -> None:
        self.early: set[str] = set()
        """Names logged before the backward pass of the step they belong to."""
        self._known: set[str] = set()

    def seen(self, names: Iterable[str]) -> None:
        """Logged after a backward pass: nothing to learn for the next time."""
        self._known.update(names)

    def parted(
        self, values: Mapping[str, Any], *, before_all: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values for the coming step and those for the step just made.

        `before_all` says that neither a backward pass nor a step has been seen yet.
        """
        for name in values:
            if name not in self._known:
                self._known.add(name)
                if before_all and not name.startswith(_EVALUATED):
                    self.early.add(name)
        early = {name: value for name, value in values.items() if name in self.early}
        late = {name: value for name, value in values.items() if name not in self.early}
        return early, late
