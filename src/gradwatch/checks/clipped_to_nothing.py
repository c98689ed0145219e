"""Gradient clipping leaves next to nothing of the gradient.

What is seen: the typical factor by which gradients are clipped before the optimizer is below
`tiny`, the optimizer is plain SGD, the weights hardly move and the loss stands still.

Why it hurts: with SGD such a factor is the learning rate: 0.1 clipped by a thousandth works like
0.0001, and nothing is learned.

What helps: a limit of a few times the usual norm of the gradient, or no clipping.

Threshold: a thousandth, a hundredth to mention it; steps of less than a thousandth of the weights.
Adam and others that divide by the gradient's own size take the same step whatever the clipping. A
factor that is the same on every step is no clipping: the loop divides by a number of its own.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Rows, context
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.checks.ownership import optimizers
from gradwatch.stats.medians import Array
from gradwatch.text import number, percent

NAME = "clipped-to-nothing"
NEEDS = frozenset({"clip_factor"})
STANDS = 1e-3
SAME = 1e-6


def check(run: Run, *, tiny: float = 1e-3, small: float = 1e-2, least: int = 20) -> Outcome:
    """Yield one finding for the whole run."""
    ctx = context(run)
    factors = run.scalars["clip_factor"][: ctx.end]
    every = np.flatnonzero(np.isfinite(factors))
    rows = every[-max(least, len(every) // 2) :]
    learning = outcome(ctx).learning
    if len(rows) < least or learning >= Learning.IMPROVES or not _is_plain_sgd(run):
        return
    factor, movement = float(np.median(factors[rows])), ctx.typical(Stat.UPDATE_RATIO, 0.5)
    moves = movement is not None and movement > STANDS
    if factor >= small or moves or _is_constant(ctx, factors, rows):
        return
    stands = learning in (Learning.STANDS, Learning.WORSE)
    grave = Severity.CRITICAL if factor < tiny else Severity.WARNING
    rate = float(np.nanmax(ctx.late(Stat.LR, 0.5))) if Stat.LR in run.recorded else float("nan")
    norm = float(np.nanmedian(ctx.total_gradient[rows]))
    often = float((factors[rows] < 0.999).mean())
    works_like = f": a learning rate of {number(rate)} works like {number(rate * factor)}"
    yield finding(
        NAME,
        grave if stands else Severity.WARNING,
        (),
        ctx.steps[every[int((factors[every] < small).argmax()) :]],
        f"clipping cuts the gradient's norm from {number(norm)} to {number(norm * factor)}, a "
        f"factor of {number(factor)}, on {percent(often)} of steps"
        f"{works_like if np.isfinite(rate) else ''}; {outcome(ctx)}",
        Evidence("clip_factor", None, ctx.steps[rows[-1]], factor, tiny),
        cause="The clipping limit is far below the usual norm of the gradient, and with SGD the "
        "step shrinks with it.",
        advice=(
            f"Raise the limit (max_norm) to about {number(3 * norm)}, a few times the usual norm, "
            "or take the clipping out; then clip_factor is 1 on most steps and the loss moves.",
            "If norms of that size come from the scale of the loss or the targets, mend that.",
        ),
    )


def _is_plain_sgd(run: Run) -> bool:
    """Whether the step of every optimizer is in proportion to the gradient."""
    kinds = [str(item["optimizer"]) for item in optimizers(run)]
    kinds = kinds or str(run.info.get("optimizer", "")).split(", ")
    return all("sgd" in kind.lower() for kind in kinds)


def _is_constant(ctx: CheckContext, factors: Array, rows: Rows) -> bool:
    """One factor whatever the gradient: a loss scale taken out by hand, or an average."""
    norms = ctx.total_gradient[rows]
    norms = norms[np.isfinite(norms)]
    varies = len(norms) > 0 and norms.max() > (1 + 100 * SAME) * norms.min()
    return bool(varies and factors[rows].max() < (1 + SAME) * factors[rows].min())
