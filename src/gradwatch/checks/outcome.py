"""How the training turned out, by its own numbers; and what it can bear because of that.

A dead quarter of units, a weight that grows, an odd first loss are true of many trainings that
work. The outcome decides whether such a thing is a warning or an information: `severity` asks it,
and every door takes its severities from there. Calibrated on healthy trainings only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from weakref import WeakKeyDictionary

import numpy as np

from gradwatch.checks.context import CheckContext, Curve
from gradwatch.checks.logged import rises
from gradwatch.finding import Severity, Skipped
from gradwatch.stats.medians import Array
from gradwatch.text import number

LEAST = 10
"""Values of a number that an outcome is read from."""
SURE = 0.95
"""Share of (early, late) pairs of values that must agree on the direction."""
SHOWN = 0.2
"""Share of the starting loss that must have gone before we say that a training improves."""


class Learning(IntEnum):
    """How well a training learns; larger is better."""

    UNKNOWN = 0
    WORSE = 1
    STANDS = 2
    IMPROVES = 3
    WORKS = 4


@dataclass(frozen=True)
class TrainingOutcome:
    """The outcome of a training, and the number that shows it."""

    learning: Learning
    name: str = ""
    """The logged number that says so; empty where nothing does."""
    start: float = float("nan")
    late: float = float("nan")

    def __str__(self) -> str:
        if not self.name:
            return "no logged number says how the training turned out"
        return f"{self.name} went from {number(self.start)} to {number(self.late)}"


def unjudged(ctx: CheckContext, check: str) -> Iterator[Skipped]:
    """Why a check that compares losses with their start cannot look; nothing where it can."""
    if ctx.losses and not ctx.judged:
        yield Skipped(check, next(iter(ctx.no_level.values())))


def outcome(ctx: CheckContext) -> TrainingOutcome:
    """The best that any logged number says of the training; a rising reward outweighs its loss."""
    known = _OUTCOMES.get(ctx)
    if known is None:
        known = _OUTCOMES[ctx] = _outcome(ctx)
    return known


def _outcome(ctx: CheckContext) -> TrainingOutcome:
    results = [
        _rising(name, curve)
        for name in ctx.run.scalars
        if rises(name) and (curve := ctx.curve(name)) is not None
    ]
    results += [_falling(loss) for loss in ctx.judged]
    return max(
        results, key=lambda result: result.learning, default=TrainingOutcome(Learning.UNKNOWN)
    )


def _falling(loss: Curve) -> TrainingOutcome:
    start, late = loss.start, loss.late
    if len(loss) < LEAST:
        learning = Learning.UNKNOWN
    elif loss.converged or loss.trained_before:
        learning = Learning.WORKS
    elif loss.progress >= SHOWN and agreement(-loss.values) >= SURE:
        learning = Learning.IMPROVES
    elif late > 1.3 * max(start, loss.chance or 0.0):
        learning = Learning.WORSE
    else:
        learning = Learning.STANDS
    return TrainingOutcome(learning, loss.name, start, late)


def _rising(name: str, curve: Curve) -> TrainingOutcome:
    part = max(3, len(curve) // 10)
    early, late = (float(np.median(v)) for v in (curve.values[:part], curve.values[-part:]))
    if len(curve) < LEAST:
        learning = Learning.UNKNOWN
    elif agreement(curve.values) >= SURE:
        learning = Learning.WORKS
    else:
        learning = Learning.WORSE if agreement(-curve.values) >= SURE else Learning.STANDS
    return TrainingOutcome(learning, name, early, late)


def agreement(values: Array) -> float:
    """Share of pairs of an early and a late value in which the late one is larger."""
    part = max(3, len(values) // 5)
    early, late = values[:part], values[-part:]
    return float((late[:, None] > early[None, :]).mean())


BEARABLE: dict[str, Learning] = {}
"""Check → the outcome from which on what it finds is an information and no warning."""


def severity(ctx: CheckContext, check: str, degree: Severity) -> Severity:
    """How grave a finding of this degree is in a training that turned out as this one did."""
    needed = BEARABLE.get(check)
    if needed is None or degree <= Severity.INFO:
        return degree
    return Severity.INFO if outcome(ctx).learning >= needed else degree


_OUTCOMES: "WeakKeyDictionary[CheckContext, TrainingOutcome]" = WeakKeyDictionary()
