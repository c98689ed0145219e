"""The arguments of `watch`, checked before anything starts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from gradwatch.errors import Exit, GradwatchError
from gradwatch.stats import Family
from gradwatch.store.retention import Retention, retention

Patterns = str | Iterable[str] | None


class Record(StrEnum):
    """The parts of a recording; each can be left out, so that its cost can be seen alone."""

    GRADIENTS = "gradients"
    WEIGHTS = "weights"
    UPDATES = "updates"
    HISTOGRAMS = "histograms"
    ACTIVATIONS = "activations"


ALL = frozenset(Record)

_FAMILIES = {
    Record.GRADIENTS: (Family.GRAD, Family.GROUP),
    Record.WEIGHTS: (Family.WEIGHT,),
    Record.UPDATES: (Family.UPDATE, Family.OPTIM),
    Record.ACTIVATIONS: (Family.ACT, Family.PROBE),
}


@dataclass(frozen=True)
class Options:
    """How to record."""

    record: frozenset[Record]
    every: int | None
    budget: float
    wanted: Callable[[str], bool]
    """Whether a parameter of this name is watched."""
    keep: Retention | None = None
    """What is kept of the full rows; None for all of them."""

    @cached_property
    def families(self) -> frozenset[Family]:
        """The families of statistics that the chosen parts consist of."""
        return frozenset(f for part in self.record for f in _FAMILIES.get(part, ()))


def options(
    *,
    record: Iterable[str],
    every: int | None,
    budget: float,
    include: Patterns,
    exclude: Patterns,
    keep: str = "2GB",
) -> Options:
    """The checked options, or a GradwatchError that says what is wrong."""
    parts = _parts(record)
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise usage_error(f"`every` must be a whole number of steps from 1 on, got {every!r}.")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 < budget <= 1:
        raise usage_error(
            f"`budget` must be a share of the run above 0 and up to 1, got {budget!r}."
        )
    wanted = _filter(include, exclude)
    return Options(parts, every, float(budget), wanted, retention(keep))


def _parts(record: Iterable[str]) -> frozenset[Record]:
    names = [record] if isinstance(record, str) else list(record)
    known = ", ".join(Record)
    try:
        parts = frozenset(Record(name) for name in names)
    except ValueError:
        raise usage_error(f"`record` may hold {known}; got {names!r}.") from None
    if not parts - {Record.HISTOGRAMS}:
        raise usage_error(f"`record` names nothing to record: give some of {known}.")
    return parts


def _filter(include: Patterns, exclude: Patterns) -> Callable[[str], bool]:
    taken, left = _patterns("include", include), _patterns("exclude", exclude)

    def wanted(name: str) -> bool:
        return (not taken or _matches(name, taken)) and not _matches(name, left)

    return wanted


def _patterns(what: str, given: Patterns) -> tuple[str, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    patterns: tuple[Any, ...] = () if given is None else tuple(given) if several else (given,)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise usage_error(
                f"`{what}` takes parameter or layer names with * and ?, got {pattern!r}."
            )
    return patterns


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """A pattern fits the name itself or a layer above it: `encoder` takes `encoder.0.weight`."""
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def usage_error(message: str) -> GradwatchError:
    """For wrong arguments of `watch`."""
    return GradwatchError(message, Exit.USAGE)
