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

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.checks.curve import Curve
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import medians
from gradwatch.text import number

NAME = "update-leads-loss"
NEEDS = frozenset({Stat.UPDATE_NORM, "loss"})


def check(run: Run, *, times: float = 2.0, ahead: int = 20) -> Outcome:
    """Yield one information with the layer that moved first."""
    ctx = context(run)
    loss = ctx.loss
    rise = _rise(loss) if loss is not None else None
    if loss is None or rise is None:
        return
    step = int(loss.steps[rise])
    rows = ctx.rows(Stat.UPDATE_NORM)
    near = rows[(ctx.steps[rows] < step) & (ctx.steps[rows] >= step - ahead)]
    usual = rows[ctx.steps[rows] < step - ahead][-30:]
    if len(near) < 1 or len(usual) < 10:
        return
    base = medians(ctx.values(Stat.UPDATE_NORM, usual))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(ctx.weights & (base > 0), ctx.values(Stat.UPDATE_NORM, near) / base, 0)
    high = np.nan_to_num(ratio) > times
    if not high.any():
        return
    row = int(high.any(axis=1).argmax())
    column = int(np.where(high[row], ratio[row], 0).argmax())
    began = int(ctx.steps[near[row]])
    yield Finding(
        check=NAME,
        severity=Severity.INFO,
        layers=(ctx.layer(column),),
        first_step=began,
        last_step=step,
        message=(
            f"the update of {run.names[column]} was {number(float(ratio[row, column]))} times the "
            f"usual at step {began}, the loss rose at step {step}"
        ),
        evidence=(
            Evidence(
                Stat.UPDATE_NORM,
                run.names[column],
                began,
                float(ratio[row, column] * base[column]),
                float(times * base[column]),
            ),
        ),
        cause="The instability began in this layer.",
        advice=("Look at this layer's inputs and learning rate at that step.",),
    )


def _rise(loss: Curve) -> int | None:
    """First place where the loss is three times the highest of the 60 before it."""
    for at in range(20, len(loss)):
        if loss.values[at] > 3 * loss.values[max(0, at - 60) : at].max() > 0:
            return at
    return None
