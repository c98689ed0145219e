"""Gradient clipping acts on every step.

What is seen: the factor by which the gradient was scaled before the optimizer is below one
on at least `share` of the steps of the second half.

Why it hurts: with plain SGD all steps then have the same length, whatever the gradient
says, and the learning rate means something else; a factor far below one hides exploding
gradients.

What helps: raise the limit to a few times the usual norm, or lower the learning rate and
keep it.

Threshold: 95 % of steps; a warning only when the typical factor is below `tiny` (a
hundredth) and the weights hardly move: Adam takes the same step whatever the clipping. Where it
is why SGD does not learn, see clipped-to-nothing.
"""

import numpy as np

from gradwatch.checks import clipped_to_nothing
from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context
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
    if often < share or any(clipped_to_nothing.check(run)):
        return
    movement = ctx.typical(Stat.UPDATE_RATIO, 0.5)
    stands = movement is not None and movement < 1e-5
    yield finding(
        NAME,
        Severity.WARNING if factor < tiny and stands else Severity.INFO,
        (),
        ctx.steps[rows],
        f"clipping acts on {percent(often)} of steps, typical factor {number(factor)}",
        Evidence("clip_factor", None, ctx.steps[rows[-1]], factor, tiny),
        cause="The clipping limit is below the usual gradient norm.",
        advice=("Raise the limit to a few times the usual norm.", "Look for exploding gradients."),
    )
