"""All units of a layer are copies of each other and stay so.

What is seen: the largest distance between (up to 16 fixed) rows of a trainable weight,
relative to the largest row, at most `spread` both at the start and at the end.

Why it hurts: equal rows get equal gradients and remain equal; the layer has one unit,
however wide it is.

What helps: random initialisation. Zeros are right only for the last layer of a residual
branch.

Threshold: 1e-4 relative at both ends, ten steps apart; rounding leaves about 1e-6.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context
from gradwatch.text import number, several

NAME = "symmetric-weights"
NEEDS = frozenset({Stat.WEIGHT_ROW_SPREAD})


def check(run: Run, *, spread: float = 1e-4, apart: int = 10) -> Outcome:
    """Yield one finding for all symmetric weights, in forward order."""
    ctx = context(run)
    steps = ctx.steps[ctx.rows(Stat.WEIGHT_ROW_SPREAD)]
    if len(steps) < 2 or steps[-1] - steps[0] < apart:
        return
    first, last = ctx.first(Stat.WEIGHT_ROW_SPREAD), ctx.last(Stat.WEIGHT_ROW_SPREAD)
    equal = (first <= spread) & (last <= spread) & ctx.trainable & ctx.several_rows
    columns = ctx.in_forward_order(equal)
    if not columns:
        return
    layers, name, value = ctx.layers(columns), run.names[columns[0]], last[columns[0]]
    yield finding(
        NAME,
        Severity.CRITICAL,
        layers,
        steps,
        f"all rows of {name} are equal (spread {number(value)}) at the start and at step "
        f"{steps[-1]}",
        Evidence(Stat.WEIGHT_ROW_SPREAD, name, steps[-1], value, spread),
        cause=f"{several(layers)} started with equal units, and equal units learn the same.",
        advice=("Initialise at random (the layer's default, He or Xavier).",),
    )
