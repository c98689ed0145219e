"""The form of a check: a module with a name, its needs, a function and a docstring.

What every check is written with can be had from here in one line.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.run import Run
from gradwatch.stats import Stat

__all__ = [
    "ELEMENTS",
    "Check",
    "Evidence",
    "Finding",
    "Outcome",
    "Run",
    "Severity",
    "Skipped",
    "Stat",
    "finding",
]

ELEMENTS = "weight_elements"
"""What a check needs that looks at the weights themselves, which few runs still have."""

Outcome = Iterator[Finding | Skipped]
"""What a check yields: what is wrong, or why it could not look."""


class Check(Protocol):
    """What the catalogue holds. A plugin is a module of the same form."""

    @property
    def NAME(self) -> str:
        """The fault in kebab-case: the same word in code, command line, documentation and page."""

    @property
    def NEEDS(self) -> frozenset[str]:
        """Statistics and scalars without which the check cannot look."""

    @property
    def check(self) -> Callable[[Run], Outcome]:
        """Yield what is wrong, or why that is not known. Keyword defaults are the thresholds."""

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The documentation: what is seen, why it hurts, what helps."""


def finding(
    check: str,
    severity: Severity,
    layers: Sequence[str],
    steps: Sequence[int] | NDArray[np.int64],
    message: str,
    evidence: Evidence | Sequence[Evidence],
    *,
    cause: str,
    advice: tuple[str, ...],
    tensors: Sequence[str] = (),
) -> Finding:
    """A check's finding; `steps` are those it was seen on, of which the first and last are kept.

    `layers` and `tensors` are complete: every other door asks them who is meant. Numpy's numbers
    become plain ones here, so that checks can hand over what they computed.
    """
    pieces = [evidence] if isinstance(evidence, Evidence) else evidence
    return Finding(
        check=check,
        severity=severity,
        layers=tuple(layers),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        message=message,
        evidence=tuple(_plain(piece) for piece in pieces),
        cause=cause,
        advice=advice,
        tensors=tuple(tensors),
    )


def _plain(piece: Evidence) -> Evidence:
    limit = None if piece.limit is None else float(piece.limit)
    return Evidence(piece.stat, piece.subject, int(piece.step), float(piece.measured), limit)
