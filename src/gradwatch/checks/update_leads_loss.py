"""A layer's updates grew before the loss did.

What is seen: before the loss left its range (a spike or a lasting rise), the update norm of
a weight had at least doubled against its own recent median. The layer that was first, and
by how many steps, is said.

Why it hurts: it does not by itself; it tells where an instability began, which the loss
cannot tell.

What helps: look at the named layer first: its learning rate, its normalisation, its inputs
at that step.

Threshold: twice the median of the 30 samples before, at most 20 steps ahead; always an
information.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import Curve, context
from gradwatch.checks.outcome import unjudged
from gradwatch.text import number

NAME = "update-leads-loss"
NEEDS = frozenset({Stat.UPDATE_NORM, "loss"})


def check(run: Run, *, times: float = 2.0, ahead: int = 20) -> Outcome:
    """Yield one information with the layer that moved first."""
    ctx = context(run)
    yield from unjudged(ctx, NAME)
    step = _rise(ctx.level) if ctx.level is not None else None
    if step is None:
        return
    compared = ctx.beside_usual(Stat.UPDATE_NORM, step - ahead, step - 1, window=30, least=10)
    if compared is None:
        return
    near, usual = compared
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(ctx.weights & (usual > 0), ctx.values(Stat.UPDATE_NORM, near) / usual, 0)
    high = np.nan_to_num(ratio) > times
    if not high.any():
        return
    row = int(high.any(axis=1).argmax())
    column = int(np.where(high[row], ratio[row], 0).argmax())
    began, factor = ctx.steps[near[row]], ratio[row, column]
    norm, limit = factor * usual[column], times * usual[column]
    yield finding(
        NAME,
        Severity.INFO,
        ctx.layers([column]),
        (began, step),
        f"the update of {run.names[column]} was {number(factor)} times the usual at step {began}, "
        f"the loss rose at step {step}",
        Evidence(Stat.UPDATE_NORM, run.names[column], began, norm, limit),
        cause="The instability began in this layer.",
        advice=("Look at this layer's inputs and learning rate at that step.",),
    )


def _rise(loss: Curve) -> int | None:
    """First step at which the loss is three times the highest of the 60 before it."""
    for at in range(20, len(loss)):
        if loss.values[at] > 3 * loss.values[max(0, at - 60) : at].max() > 0:
            return int(loss.steps[at])
    return None
