"""How the training turned out, by its own numbers: losses, rewards, accuracies, validations.

`bearable` asks it which true statements about a training that works are no warnings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from weakref import WeakKeyDictionary

import numpy as np

from gradwatch.checks.context import CheckContext, Curve
from gradwatch.checks.logged import REWARD, SHARES, rises, words
from gradwatch.finding import Skipped
from gradwatch.stats.medians import Array
from gradwatch.text import number

LEAST = 10
"""Values of a number that an outcome is read from."""
SURE = 0.95
"""Share of (early, late) pairs of values that must agree on the direction."""
SHOWN = 0.2
"""Share of the starting loss that must have gone before we say that a training improves."""
FEWEST = 5
"""The same of validations, rewards and means of epochs, of which there are fewer."""
FEEBLE = 0.05
"""Share of what a rising number could gain below which it stands still."""
HIGH = 0.9
"""Share of its top at which an accuracy is good, wherever it began."""


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
    results = [of_rising(ctx, curve) for curve in _curves(ctx, rises)]
    results += [of_falling(loss, _least(ctx, loss)) for loss in ctx.judged]
    results += [of_falling(ctx.validation, FEWEST)] if ctx.validation is not None else []
    return max(
        results, key=lambda result: result.learning, default=TrainingOutcome(Learning.UNKNOWN)
    )


def _least(ctx: CheckContext, loss: Curve) -> int:
    """Few values say enough where each is the mean of an epoch, logged once in many steps."""
    return FEWEST if LEAST * len(loss) <= ctx.run.step_count else LEAST


def rewards(ctx: CheckContext) -> list[TrainingOutcome]:
    """What each reward or return says that was logged."""
    named = _curves(ctx, lambda name: rises(name) and bool(words(name) & REWARD))
    return [of_rising(ctx, curve) for curve in named]


def _curves(ctx: CheckContext, wanted: Callable[[str], bool]) -> list[Curve]:
    found = (ctx.curve(name) for name in ctx.run.scalars if wanted(name))
    return [curve for curve in found if curve is not None]


def of_falling(loss: Curve, least: int = LEAST) -> TrainingOutcome:
    """What a number says that is better when it falls."""
    start, late = loss.start, loss.late
    if len(loss) < least:
        learning = Learning.UNKNOWN
    elif falls_on(loss):
        learning = Learning.STANDS  # something is maximised without bound: that is no success
    elif loss.converged or (loss.trained_before and late <= max(start, 0.7 * (loss.chance or 0.0))):
        learning = Learning.WORKS
    elif loss.progress >= SHOWN and agreement(-loss.values) >= _sure(loss) and not at_chance(loss):
        learning = Learning.IMPROVES
    elif late > max(start, loss.chance or start) + 0.3 * max(abs(start), loss.chance or 0.0):
        learning = Learning.WORSE
    else:
        learning = Learning.STANDS
    return TrainingOutcome(learning, loss.name, start, late)


def lower_bound(loss: Curve) -> float:
    """Where a loss is that is usually maximised by mistake, not learnt from."""
    return -20 * max(abs(loss.start), 1.0)


def falls_on(loss: Curve) -> bool:
    """Whether a loss goes on falling far below zero."""
    return len(loss) >= 8 and loss.late < lower_bound(loss) and loss.gain(0.25) > 0


def of_rising(ctx: CheckContext, curve: Curve) -> TrainingOutcome:
    """What a number says that is better when it rises; a share of all also by being high."""
    part = max(3, len(curve) // 10) if len(curve) >= LEAST else 2
    early, late = (float(np.median(v)) for v in (curve.values[:part], curve.values[-part:]))
    top = _top(curve)
    to_gain = max(abs(early), abs(late)) if top is None else top - early
    gained = (late - early) / max(to_gain, 1e-30)
    up, down = agreement(curve.values), agreement(-curve.values)
    if len(curve) < FEWEST:
        learning = Learning.UNKNOWN
    elif _high(ctx, late, top) or _rose_at_once(curve):
        learning = Learning.WORKS
    elif up >= _sure(curve) and gained >= FEEBLE:
        learning = Learning.WORKS if gained >= SHOWN else Learning.IMPROVES
    elif up >= beyond_noise(curve) and gained >= SHOWN:
        learning = Learning.IMPROVES
    elif down >= min(_sure(curve), beyond_noise(curve)) and gained <= -SHOWN:
        learning = Learning.WORSE
    else:
        learning = Learning.STANDS
    return TrainingOutcome(learning, curve.name, early, late)


def _high(ctx: CheckContext, late: float, top: float | None) -> bool:
    """Near its top, and not by guessing the class that is most frequent."""
    return top is not None and late >= HIGH * top and not any(map(at_chance, ctx.judged))


def _rose_at_once(curve: Curve) -> bool:
    """Whether nearly all values lie above the first five: learnt quickly, and held since."""
    if len(curve) < 2 * LEAST:
        return False
    first, later = curve.values[:5], curve.values[5:]
    low, usual = float(np.median(first)), float(np.median(later))
    clearly = usual - low >= SHOWN * max(abs(low), abs(usual))
    return clearly and float((later[:, None] > first[None, :]).mean()) >= SURE


def at_chance(loss: Curve) -> bool:
    """Whether a loss ends where a constant guess would stand."""
    return loss.chance is not None and loss.late > 0.95 * loss.chance


def _top(curve: Curve) -> float | None:
    """The most a share can reach, one or a hundred per cent; None for any other number."""
    low, high = float(curve.values.min()), float(curve.values.max())
    if not words(curve.name) & SHARES or low < 0 or high > 100:
        return None
    return 1.0 if high <= 1 else 100.0


def agreement(values: Array) -> float:
    """Share of pairs of an early and a late value in which the late one is larger.

    Of few values every one is held against all that come after it.
    """
    if len(values) < LEAST:
        first, second = np.triu_indices(len(values), 1)
        return float((values[second] > values[first]).mean())
    part = max(3, len(values) // 5)
    early, late = values[:part], values[-part:]
    return float((late[:, None] > early[None, :]).mean())


def _sure(curve: Curve) -> float:
    """Agreement that noise hardly ever reaches: of five values one pair may disagree (4 %)."""
    return SURE if len(curve) >= LEAST else 0.9


def beyond_noise(curve: Curve, deviations: float = 4.0) -> float:
    """Agreement so many standard deviations above a half, as of a rank test on the two parts."""
    part = max(3, len(curve) // 5)
    least = 0.7 if deviations >= 4 else 0.5
    return float(max(least, 0.5 + deviations * np.sqrt((2 * part + 1) / 12) / part))


_OUTCOMES: "WeakKeyDictionary[CheckContext, TrainingOutcome]" = WeakKeyDictionary()
