"""All units of a layer are copies of each other and stay so.

What is seen: the largest distance between (up to 16 fixed) rows of a trainable weight,
relative to the largest row, at most `spread` both at the start and at the end.

Why it hurts: equal rows get equal gradients and remain equal; the layer has one unit,
however wide it is.

What helps: random initialisation. Zeros are right only for the last layer of a residual
branch.

Threshold: 1e-4 relative at both ends, ten steps apart; rounding leaves about 1e-6.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number, several

NAME = "symmetric-weights"
NEEDS = frozenset({Stat.WEIGHT_ROW_SPREAD})


def check(run: Run, *, spread: float = 1e-4, apart: int = 10) -> Outcome:
    """Yield one finding for all symmetric weights, in forward order."""
    ctx = context(run)
    rows = ctx.rows(Stat.WEIGHT_ROW_SPREAD)
    if len(rows) < 2 or ctx.steps[rows[-1]] - ctx.steps[rows[0]] < apart:
        return
    first, last = ctx.first(Stat.WEIGHT_ROW_SPREAD), ctx.last(Stat.WEIGHT_ROW_SPREAD)
    several_rows = np.array([len(p.shape) >= 2 and p.shape[0] > 1 for p in ctx.parameters], bool)
    columns = np.flatnonzero((first <= spread) & (last <= spread) & ctx.trainable & several_rows)
    if not len(columns):
        return
    order = ctx.forward_order
    columns = np.array(sorted(columns, key=lambda c: order.get(ctx.layer(int(c)), 1 << 30)))
    layers, column = ctx.layers(columns), int(columns[0])
    end = int(ctx.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.CRITICAL,
        layers=layers[:8],
        first_step=int(ctx.steps[rows[0]]),
        last_step=end,
        message=(
            f"all rows of {run.names[column]} are equal (spread {number(float(last[column]))}) "
            f"at the start and at step {end}"
        ),
        evidence=(
            Evidence(Stat.WEIGHT_ROW_SPREAD, run.names[column], end, float(last[column]), spread),
        ),
        cause=f"{several(layers)} started with equal units, and equal units learn the same.",
        advice=("Initialise at random (the layer's default, He or Xavier).",),
    )
