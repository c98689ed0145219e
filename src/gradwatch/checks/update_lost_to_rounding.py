"""In half precision most updates are too small to change a single bit.

What is seen: in bfloat16 or float16 weights, the share of coordinates that have a gradient
and yet keep their bits is above `lost` over the second half, while the loss stands still
away from zero.

Why it hurts: bfloat16 keeps eight bits: a change below 1/256 of a weight is rounded away,
whatever the optimizer wanted. The loss goes flat although gradients are fine.

What helps: float32 master weights (autocast instead of `model.bfloat16()`), stochastic
rounding, or Kahan summation in the optimizer.

Threshold: half of the coordinates. Healthy low-precision runs also lose some; the standing
loss decides.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import percent, several

NAME = "update-lost-to-rounding"
NEEDS = frozenset({Stat.UPDATE_LOST_FRACTION})


def check(run: Run, *, lost: float = 0.5, still: float = 0.05, least: int = 8) -> Outcome:
    """Yield one finding for all weights that lose their updates."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_LOST_FRACTION)
    judged = ctx.weights & ctx.low_precision
    if len(rows) < least or not judged.any():
        return
    late = np.where(judged, np.nan_to_num(ctx.late(Stat.UPDATE_LOST_FRACTION, 0.5)), 0.0)
    columns = np.flatnonzero(late > lost)
    if len(columns) < 0.5 * judged.sum():
        return
    loss = ctx.loss
    stands = loss is not None and abs(loss.gain(0.5)) < still and not loss.converged
    columns = columns[np.argsort(-late[columns], kind="stable")]
    layers, worst = ctx.layers(columns), int(columns[0])
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if stands else Severity.INFO,
        layers=layers[:8],
        first_step=int(run.steps[rows[0]]),
        last_step=last,
        message=(
            f"{percent(float(late[worst]))} of the updates of {run.names[worst]} are rounded away "
            f"in {ctx.parameters[worst].dtype}"
        ),
        evidence=(
            Evidence(Stat.UPDATE_LOST_FRACTION, run.names[worst], last, float(late[worst]), lost),
        ),
        cause=f"Steps in {several(layers)} are under half a unit in the last place.",
        advice=(
            "Keep float32 master weights: use autocast instead of a half-precision model.",
            "Use stochastic rounding or Kahan summation.",
        ),
    )
