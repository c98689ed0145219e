"""The loss ends higher than it began, or falls without bound.

What is seen: the late loss above `times` the larger of the first loss and chance; or a loss
that goes on falling far below zero; or NaN after the loss had grown tenfold. Of losses whose
level says nothing (of a policy, of two networks against each other) only one that runs away is
told, each on its own: at the end `far` times as large as at first, up or down, no reward rising.

Why it hurts: the network is worse than before training.

What helps: a lower learning rate, warm-up, clipping; a look at the sign of the loss (a loss
that falls below zero without end is usually maximised); scaled targets.

Threshold: twice (1.3 times, or twice at any time, is mentioned). A loss that may be negative
has to rise by ten times its usual change from step to step as well. Twenty times its first
values, and twenty at least, beside a reward that does not rise where the level says nothing; a
hundred times without a reward, since losses of agents grow with it. Terms weighed against another
loss, and losses that `watch` was told to be relative, are left out.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, finding
from gradwatch.checks.context import CheckContext, Curve, context
from gradwatch.checks.logged import PART, LossLevel, words
from gradwatch.checks.loss_spike import jumped
from gradwatch.checks.outcome import Learning, falls_on, lower_bound, rewards, unjudged
from gradwatch.text import number

NAME = "divergence"
NEEDS = frozenset({"loss"})

_SIGN = (
    "Check the sign of the loss: what should grow must be subtracted.",
    "Bound what the loss rewards (a log of a density, an output without limit).",
    "It helped if the loss levels off while the validation gets better.",
)
_SIZE = (
    "Lower the learning rate by ten; add warm-up. It helped if the loss stays below its start.",
    "Clip the gradient norm.",
    "Check the sign of the loss and the scale of the targets.",
)
_BOUND = (
    "Bound what the loss is made of: clip or penalise a critic's gradient, or slow its targets. "
    "It helped if the loss stays within ten times its first values.",
    "Lower the learning rates by three.",
)


def check(
    run: Run, *, times: float = 2.0, weak: float = 1.3, far: float = 20.0, least: int = 8
) -> Outcome:
    """Yield a finding when the run ends worse than it began."""
    ctx = context(run)
    known = rewards(ctx)
    far *= 1.0 if known else 5.0
    away = [loss for loss in ctx.losses if loss.name in ctx.no_level and _ran_away(loss, far)]
    told = run.info.get("loss_level") == LossLevel.RELATIVE
    if away and not told and all(reward.learning <= Learning.STANDS for reward in known):
        for loss in away:
            yield _runaway(ctx, loss, far)
    else:
        yield from unjudged(ctx, NAME)
    for loss in ctx.judged:
        yield from (
            _unbounded(ctx, loss) if falls_on(loss) else _risen(ctx, loss, times, weak, least)
        )


def _unbounded(ctx: CheckContext, loss: Curve) -> Outcome:
    step = loss.steps[len(loss) // 2]
    yield finding(
        NAME,
        Severity.CRITICAL,
        jumped(ctx, int(step)),
        (step, loss.steps[-1]),
        f"{loss.called} falls without bound, from {number(loss.start)} to {number(loss.late)}",
        Evidence(loss.name, None, loss.steps[-1], loss.late, lower_bound(loss)),
        cause="Something is maximised that has no upper limit: often a loss with the wrong sign.",
        advice=_SIGN,
    )


def _risen(ctx: CheckContext, loss: Curve, times: float, weak: float, least: int) -> Outcome:
    size = max(abs(loss.start), loss.chance or 0.0, 10 * loss.scatter if loss.below_zero else 0.0)
    base = max(loss.start, loss.chance or loss.start)
    final = float(np.median(loss.values[-3:])) if ctx.went_bad else loss.late
    highest = float(loss.values[-3:].max())
    blown = ctx.went_bad and highest > 10 * size
    if not blown and len(loss) < least:
        return
    strong, mentioned = base + (times - 1) * size, base + (weak - 1) * size
    peak = float(loss.smooth.max())
    then = ", then NaN" if ctx.went_bad else ""
    if blown or final > strong:
        severity, limit, value = Severity.CRITICAL, strong, highest if blown else final
    elif final > mentioned:
        severity, limit, value = Severity.INFO, mentioned, final
    elif peak > strong:
        severity, limit, value = Severity.INFO, strong, peak
        then = f" in between, and is now {number(final)}{then}"
    else:
        return
    step = _onset(loss, limit)
    yield finding(
        NAME,
        severity,
        jumped(ctx, step),
        (step, loss.steps[-1]),
        f"{loss.called} rose from {number(loss.start)} to {number(value)}{then}",
        Evidence(loss.name, None, loss.steps[-1], value, limit),
        cause="Steps too large, or a loss with the wrong sign.",
        advice=_SIZE,
    )


def _ran_away(loss: Curve, far: float) -> bool:
    """Whether a loss ends far from zero, on one side of it, and began near it."""
    if len(loss) < 20 or words(loss.name) & PART:
        return False
    last, half = loss.values[-5:], loss.values[len(loss) // 2 :]
    one_side = abs(float(np.median(half))) > 0.5 * float(np.median(np.abs(half)))
    return one_side and float(np.median(np.abs(last))) >= far * _first_size(loss)


def _first_size(loss: Curve) -> float:
    return max(1.0, float(np.median(np.abs(loss.values[:5]))))


def _runaway(ctx: CheckContext, loss: Curve, far: float) -> Finding:
    size, limit = Curve(loss.steps, np.abs(loss.values)), far * _first_size(loss)
    step = _onset(size, 0.1 * limit)
    below = loss.late < 0
    return finding(
        NAME,
        Severity.CRITICAL,
        jumped(ctx, step),
        (step, loss.steps[-1]),
        f"{loss.name} {'falls' if below else 'rises'} without bound, from {number(loss.start)} to "
        f"{number(loss.late)}",
        Evidence(loss.name, None, loss.steps[-1], size.late, limit),
        cause="What one network gains another must lose, or the targets grow with the estimates; "
        "here nothing holds them back.",
        advice=(_SIGN if below else _SIZE)[:1] + _BOUND,
    )


def _onset(loss: Curve, limit: float) -> int:
    """The step from which on the loss stays over the limit; else the first over it."""
    under, over = np.flatnonzero(loss.values <= limit), np.flatnonzero(loss.values > limit)
    settled = int(under[-1]) + 1 if len(under) else 0
    at = settled if settled < len(loss) else int(over[0]) if len(over) else len(loss) - 1
    return int(loss.steps[at])
