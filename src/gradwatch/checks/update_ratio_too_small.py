"""The weights hardly move, although there is still much to learn.

What is seen: the late median over all weights of ‖update‖ ÷ ‖weight‖ below `ratio`, while
the loss has not moved far from where it began. Weights that do not move at all have a check
of their own, not-updated.

Why it hurts: at 1e-6 per step a weight needs a million steps to change by its own size.

What helps: a larger learning rate, a scheduler that has not yet decayed, Adam's ε below the
gradient's size, clipping that is not far below the usual norm.

Threshold: 1e-6 (1e-5 is mentioned); in one trial of each healthy family of the zoo the
median over weights lay between 2e-4 and 2e-2. Decay to zero at the end does not count,
since the median is over the second half.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, since, worst_first
from gradwatch.checks.update_ratio_too_large import against_usual
from gradwatch.stats.medians import medians, thinned
from gradwatch.text import number

NAME = "update-ratio-too-small"
NEEDS = frozenset({Stat.UPDATE_RATIO})


def check(
    run: Run, *, ratio: float = 1e-6, weak: float = 1e-5, moved: float = 0.3, least: int = 10
) -> Outcome:
    """Yield one finding for the whole network, smallest layer first."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_RATIO)
    if len(rows) < least:
        return
    late = medians(against_usual(ctx, thinned(rows[-max(5, len(rows) // 2) :])))
    moved_once = (against_usual(ctx, thinned(rows)) > 0).any(axis=0)
    columns = worst_first(ctx.weights & moved_once & np.isfinite(late), -late)
    if not len(columns):
        return
    typical = float(np.median(late[columns]))
    loss = ctx.level
    much_to_learn = (
        loss is not None
        and loss.progress < moved
        and not loss.converged
        and not loss.trained_before
    )
    if typical >= weak or (loss is not None and not much_to_learn):
        return
    strong = typical < ratio and much_to_learn
    limit = ratio if strong else weak
    middle = columns[len(columns) // 2]
    ratios = run.at(Stat.UPDATE_RATIO, rows, middle)
    steps = ctx.steps[rows[since(~(ratios >= limit)) :]]
    yield finding(
        NAME,
        Severity.WARNING if strong else Severity.INFO,
        (),
        steps,
        f"since step {steps[0]} a step changes the weights by {number(typical)} times their norm "
        f"(median of {len(columns)} weights, limit {number(limit)}); about 0.001 is usual",
        Evidence(Stat.UPDATE_RATIO, run.names[middle], steps[-1], typical, limit),
        cause="The learning rate is far too small for these gradients.",
        advice=(
            "Raise the learning rate by ten, and again, until that is near 0.001. "
            "It helped if the loss falls.",
            "Check the scheduler and the warm-up.",
        ),
    )
