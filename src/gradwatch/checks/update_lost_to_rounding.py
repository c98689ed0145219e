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

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, worst_first
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
    late = ctx.late_half(Stat.UPDATE_LOST_FRACTION, judged)
    columns = worst_first(late > lost, late)
    if len(columns) < 0.5 * judged.sum():
        return
    loss = ctx.level
    stands = loss is not None and abs(loss.gain(0.5)) < still and not loss.converged
    layers, worst = ctx.layers(columns), columns[0]
    name, last = run.names[worst], ctx.steps[rows[-1]]
    yield finding(
        NAME,
        Severity.WARNING if stands else Severity.INFO,
        layers,
        ctx.steps[rows],
        f"{percent(late[worst])} of the updates of {name} are rounded away in "
        f"{ctx.parameters[worst].dtype}",
        Evidence(Stat.UPDATE_LOST_FRACTION, name, last, late[worst], lost),
        cause=f"Steps in {several(layers)} are under half a unit in the last place.",
        advice=(
            "Keep float32 master weights: use autocast instead of a half-precision model.",
            "Use stochastic rounding or Kahan summation.",
        ),
    )
