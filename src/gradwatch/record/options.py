"""The arguments of `watch`, checked before anything starts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from gradwatch.checks.logged import LossLevel
from gradwatch.errors import Exit, GradwatchError
from gradwatch.record.recorder import StepMonitor
from gradwatch.record.sampler import LossScaling
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
    keep: Retention | None
    """What is kept of the full rows; None for all of them."""
    step: int | None
    """Number of the coming step, where a training is resumed."""
    loss: LossLevel
    scaling: LossScaling
    monitor: StepMonitor | None

    @cached_property
    def families(self) -> frozenset[Family]:
        """The families of statistics that the chosen parts consist of."""
        return frozenset(f for part in self.record for f in _FAMILIES.get(part, ()))


def options(
    *,
    record: Iterable[str] = ALL,
    every: int | None = None,
    budget: float = 0.01,
    include: Patterns = None,
    exclude: Patterns = None,
    keep: str = "2GB",
    step: int | None = None,
    loss: str = LossLevel.AUTO,
    scaler: Any = None,
    monitor: StepMonitor | None = None,
) -> Options:
    """The checked options, or a GradwatchError that says what is wrong."""
    parts = [record] if isinstance(record, str) else list(record)
    known, levels = list(Record), list(LossLevel)
    if not all(part in known for part in parts) or not {*parts} - {Record.HISTOGRAMS}:
        some = ", ".join(known)
        raise usage_error(f"`record` names one or more of {some} (which need others), got {parts}.")
    if every is not None and not _whole(every, least=1):
        raise usage_error(f"`every` must be a whole number of steps from 1 on, got {every!r}.")
    if step is not None and not _whole(step, least=0):
        raise usage_error(f"`step` must be the number of the coming step, 0 or more, got {step!r}.")
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= 1:
        raise usage_error(f"`budget` must be a share of the run from 0 up to 1, got {budget!r}.")
    if loss not in levels:
        raise usage_error(f"`loss` says what its level means: {', '.join(levels)}; got {loss!r}.")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise usage_error(f"`scaler` must be a GradScaler, got {type(scaler).__name__}.")
    taken, left = _patterns("include", include), _patterns("exclude", exclude)

    def wanted(name: str) -> bool:
        return (not taken or _matches(name, taken)) and not _matches(name, left)

    return Options(
        frozenset(map(Record, parts)),
        every,
        float(budget),
        wanted,
        retention(keep),
        step,
        LossLevel(loss),
        LossScaling(scaler),
        monitor,
    )


def _whole(given: object, *, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


def _patterns(what: str, given: Patterns) -> list[str]:
    some = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    patterns = [] if given is None else some
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise usage_error(f"`{what}` takes parameter or layer names with * and ?, got {given!r}.")
    return patterns


def _matches(name: str, patterns: list[str]) -> bool:
    """A pattern fits the name itself or a layer above it: `encoder` takes `encoder.0.weight`."""
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def usage_error(message: str) -> GradwatchError:
    """For wrong arguments of `watch`."""
    return GradwatchError(message, Exit.USAGE)
