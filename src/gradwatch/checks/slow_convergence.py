"""The loss falls far too slowly, or has stopped where there is much left to gain.

What is seen: less than `share` of the starting loss gone, together with a reason to believe
that more was possible: the loss never left the level of a constant guess; or it still falls
with very small updates; or successive gradients agree, so that larger steps would have
paid. The lowest reachable loss is unknown to us, so a run that is level far from zero
without such a reason is only mentioned, unless another finding explains it.

Why it hurts: time, and often the sign of another fault, which is then named first.

What helps: a larger learning rate, Adam instead of plain SGD, normalisation, a look at the
other findings.

Threshold: a fifth of the start (half is mentioned), after at least 40 logged steps.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number, percent

NAME = "slow-convergence"
NEEDS = frozenset({"loss"})


def check(run: Run, *, share: float = 0.2, stuck: float = 0.05, least: int = 40) -> Outcome:
    """Yield a finding when little was learnt and more was possible."""
    ctx = context(run)
    loss = ctx.loss
    if loss is None or len(loss) < least or loss.start <= 0:
        return
    reference = loss.start
    gone = loss.progress
    level = loss.gain(0.5) < 0.02 and loss.late > 0.3 * loss.start
    if (gone >= share and not level) or loss.converged:
        return
    reason = (
        _reason(run, ctx, gone, stuck, share) if gone < share and not loss.trained_before else ""
    )
    last = int(loss.steps[-1])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if reason else Severity.INFO,
        layers=(),
        first_step=int(loss.steps[0]),
        last_step=last,
        message=(
            f"the loss went from {number(loss.start)} to {number(loss.late)}: "
            f"{percent(max(gone, 0.0))} of the way to zero"
        ),
        evidence=(Evidence("loss", None, last, loss.late, (1 - share) * reference),),
        cause=reason or "Perhaps the task allows no more.",
        advice=(
            "Raise the learning rate by three to ten.",
            "Try Adam instead of plain SGD; check the scheduler.",
            "See the other findings: one of them may hold the network back.",
        ),
    )


def _reason(run: Run, ctx: CheckContext, gone: float, stuck: float, share: float) -> str:
    """Why more was possible; empty when nothing says so."""
    loss = ctx.loss
    assert loss is not None
    if loss.chance is not None and gone < share and loss.late > (1 - stuck) * loss.chance:
        return "The loss never left the level of a constant guess."
    moves = _movement(run, ctx)
    if moves is not None and moves < 1e-4 and gone < 0.2:
        return f"A step changes the weights by only {number(moves)} of their norm."
    if Stat.GRAD_COSINE in run.recorded:
        cosine = ctx.late(Stat.GRAD_COSINE, 0.5)[ctx.weights]
        agree = float(np.nanmedian(cosine)) if np.isfinite(cosine).any() else 0.0
        if agree > 0.5 and moves is not None and moves < 1e-3:
            return f"Successive gradients agree (cosine {agree:.2f}): larger steps would pay."
    return ""


def _movement(run: Run, ctx: CheckContext) -> float | None:
    """Median update ratio of the weights over the whole run."""
    if Stat.UPDATE_RATIO not in run.recorded:
        return None
    ratio = ctx.whole(Stat.UPDATE_RATIO)[ctx.weights]
    return float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else None
