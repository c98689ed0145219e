"""The form of a check: a module with a name, its needs, a function and a docstring."""

from collections.abc import Callable, Iterator
from typing import Protocol

from gradwatch.finding import Finding, Skipped
from gradwatch.run import Run

Outcome = Iterator[Finding | Skipped]
"""What a check yields: what is wrong, or why it could not look."""


class Check(Protocol):
    """What the catalogue holds. A plugin is a module of the same form."""

    @property
    def NAME(self) -> str:
        """The fault in kebab-case: the same word in code, command line, documentation and page."""
        ...

    @property
    def NEEDS(self) -> frozenset[str]:
        """Statistics and scalars without which the check cannot look."""
        ...

    @property
    def check(self) -> Callable[[Run], Outcome]:
        """Yield what is wrong, or why one cannot tell. Keyword defaults are the thresholds."""
        ...

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The documentation: what is seen, why it hurts, what helps."""
        ...
