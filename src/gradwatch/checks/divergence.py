"""The loss ends higher than it began, or falls without bound.

What is seen: the late loss above `times` the larger of the first loss and chance; or a loss
that goes on falling far below zero; or NaN after the loss had grown tenfold.

Why it hurts: the network is worse than before training.

What helps: a lower learning rate, warm-up, clipping; a look at the sign of the loss (a loss
that falls below zero without end is usually maximised); scaled targets.

Threshold: twice (1.3 times, or twice at any time, is mentioned).
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import Curve, context
from gradwatch.checks.loss_spike import jumped
from gradwatch.text import number

NAME = "divergence"
NEEDS = frozenset({"loss"})


def check(run: Run, *, times: float = 2.0, weak: float = 1.3, least: int = 8) -> Outcome:
    """Yield a finding when the run ends worse than it began."""
    ctx = context(run)
    loss = ctx.loss
    if loss is None:
        return
    start = max(abs(loss.start), loss.chance or 0.0)
    final = float(np.median(loss.values[-3:])) if ctx.went_bad else loss.late
    blown = ctx.went_bad and float(loss.values[-3:].max()) > 10 * start
    severity = Severity.CRITICAL
    floor = -20 * max(abs(loss.start), 1.0)
    if loss.late < floor and loss.gain(0.25) > 0 and len(loss) >= 8:
        limit, value, step = floor, loss.late, loss.steps[len(loss) // 2]
        message = f"falls without bound, from {number(loss.start)} to {number(value)}"
    else:
        if not blown and len(loss) < least:
            return
        if blown or final > times * start:
            limit = times * start
        elif final > weak * start or float(loss.smooth.max()) > times * start:
            severity, limit = Severity.INFO, weak * start
        else:
            return
        value, step = float(loss.values[-3:].max()) if blown else final, _onset(loss, limit)
        then = ", then NaN" if ctx.went_bad else ""
        message = f"rose from {number(loss.start)} to {number(value)}{then}"
    yield finding(
        NAME,
        severity,
        jumped(ctx, int(step)),
        (step, loss.steps[-1]),
        f"the loss {message}",
        Evidence("loss", None, loss.steps[-1], value, limit),
        cause="Steps too large, or a loss with the wrong sign.",
        advice=(
            "Lower the learning rate by ten; add warm-up.",
            "Clip the gradient norm.",
            "Check the sign of the loss and the scale of the targets.",
        ),
    )


def _onset(loss: Curve, limit: float) -> int:
    """The step from which on the loss stays over the limit; else the first over it."""
    under, over = np.flatnonzero(loss.values <= limit), np.flatnonzero(loss.values > limit)
    settled = int(under[-1]) + 1 if len(under) else 0
    at = settled if settled < len(loss) else int(over[0]) if len(over) else len(loss) - 1
    return int(loss.steps[at])
