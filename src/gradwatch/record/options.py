"""The arguments of `watch`, checked before anything starts."""

from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from gradwatch.checks.logged import LossLevel
from gradwatch.errors import Exit, GradwatchError
from gradwatch.record.recorder import StepMonitor
from gradwatch.record.sampler import LossScaling
from gradwatch.stats import Family
from gradwatch.store.retention import retention

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


class Options:
    """How to record: the arguments of `watch`, or a GradwatchError that says what is wrong."""

    def __init__(
        self,
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
    ) -> None:
        parts = [record] if isinstance(record, str) else list(record)
        known, levels = ", ".join(Record), ", ".join(LossLevel)
        if not all(part in [*Record] for part in parts) or not {*parts} - {Record.HISTOGRAMS}:
            raise usage_error(f"`record` names some of {known}, not histograms alone; got {parts}.")
        if every is not None and not _is_whole(every, least=1):
            raise usage_error(f"`every` must be a whole number of steps from 1 on, got {every!r}.")
        if step is not None and not _is_whole(step, least=0):
            raise usage_error(f"`step` must be the coming step's number, 0 or more, got {step!r}.")
        if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget <= 1:
            raise usage_error(f"`budget` must be a share of the run, 0 to 1, got {budget!r}.")
        if loss not in [*LossLevel]:
            raise usage_error(f"`loss` says what its level means: {levels}; got {loss!r}.")
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise usage_error(f"`scaler` must be a GradScaler, got {type(scaler).__name__}.")
        self.record = frozenset(map(Record, parts))
        self.families = frozenset(f for part in self.record for f in _FAMILIES.get(part, ()))
        """The families of statistics that the chosen parts consist of."""
        self.every, self.budget, self.step = every, float(budget), step
        self.keep = retention(keep)
        """What is kept of the full rows; None for all of them."""
        self.loss, self.scaling, self.monitor = LossLevel(loss), LossScaling(scaler), monitor
        self._included = _patterns("include", include)
        self._excluded = _patterns("exclude", exclude)

    def wanted(self, name: str) -> bool:
        """Whether a parameter of this name is watched."""
        included = not self._included or _matches(name, self._included)
        return included and not _matches(name, self._excluded)


def _is_whole(given: object, *, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least


def _patterns(what: str, given: Any) -> list[str]:
    some = [] if given is None else given
    patterns = [some] if isinstance(some, str) or not isinstance(some, Iterable) else list(some)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise usage_error(f"`{what}` takes parameter or layer names with * and ?, got {some!r}.")
    return patterns


def _matches(name: str, patterns: list[str]) -> bool:
    """A pattern fits the name itself or a layer above it: `encoder` takes `encoder.0.weight`."""
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def usage_error(message: str) -> GradwatchError:
    """For wrong arguments of `watch`."""
    return GradwatchError(message, Exit.USAGE)
