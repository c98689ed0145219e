"""Gradient clipping acts on every step.

What is seen: the factor by which the gradient was scaled before the optimizer is below one
on at least `share` of the steps of the second half.

Why it hurts: with plain SGD all steps then have the same length, whatever the gradient
says, and the learning rate means something else; a factor far below one hides exploding
gradients.

What helps: raise the limit to a few times the usual norm, or lower the learning rate and
keep it.

Threshold: 95 % of steps; a warning only when the typical factor is below `tiny` (a
hundredth) and the weights hardly move: Adam takes the same step whatever the clipping.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number, percent

NAME = "clipping-every-step"
NEEDS = frozenset({"clip_factor"})


def check(run: Run, *, share: float = 0.95, tiny: float = 0.01, least: int = 20) -> Outcome:
    """Yield one finding for the whole run."""
    ctx = context(run)
    values = run.scalars["clip_factor"][: ctx.end]
    rows = np.flatnonzero(np.isfinite(values))
    rows = rows[len(rows) // 2 :]
    if len(rows) < least:
        return
    often, factor = float((values[rows] < 0.999).mean()), float(np.median(values[rows]))
    if often < share:
        return
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if factor < tiny and _stands(run) else Severity.INFO,
        layers=(),
        first_step=int(run.steps[rows[0]]),
        last_step=last,
        message=f"clipping acts on {percent(often)} of steps, typical factor {number(factor)}",
        evidence=(Evidence("clip_factor", None, last, factor, tiny),),
        cause="The clipping limit is below the usual gradient norm.",
        advice=("Raise the limit to a few times the usual norm.", "Look for exploding gradients."),
    )


def _stands(run: Run) -> bool:
    """Whether the weights move by less than 1e-5 of themselves per step."""
    if Stat.UPDATE_RATIO not in run.recorded:
        return False
    ctx = context(run)
    ratio = ctx.late(Stat.UPDATE_RATIO, 0.5)[ctx.weights]
    return bool(np.isfinite(ratio).any() and float(np.nanmedian(ratio)) < 1e-5)
