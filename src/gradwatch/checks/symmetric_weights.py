"""All units of a layer are copies of each other and stay so.

What is seen: the largest distance between (up to 16 fixed) rows of a trainable weight,
relative to the largest row, at most `spread` both at the start and at the end.

Why it hurts: equal rows get equal gradients and remain equal; the layer has one unit,
however wide it is.

What helps: random initialisation. Zeros are right for the last layer of a residual branch,
for a head, for the second factor of a low-rank adapter: such a weight leaves zero with its
first gradient. Two factors of one product that are both zero never do, since each waits for
the other. A zero weight that merely waits (no gradient comes, or no step is taken) stays
zero for another reason, and is said as what follows from that.

Threshold: 1e-4 relative at both ends, ten steps apart; rounding leaves about 1e-6.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.stats import State
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
    waits = equal & _waits(ctx)
    for mask in (equal & ~waits, waits):
        columns = ctx.in_forward_order(mask)
        if not columns:
            continue
        layers, name, value = ctx.layers(columns), run.names[columns[0]], last[columns[0]]
        waiting = mask is waits
        yield finding(
            NAME,
            Severity.WARNING if waiting else Severity.CRITICAL,
            layers,
            steps,
            f"{name} is zero at the start and still at step {steps[-1]}"
            if waiting
            else f"all rows of {name} are equal (spread {number(value)} of their size) at the "
            f"start and at step {steps[-1]}",
            Evidence(Stat.WEIGHT_ROW_SPREAD, name, steps[-1], value, spread),
            cause=f"{several(layers)} may start at zero, but nothing moves it."
            if waiting
            else f"{several(layers)} started with equal units, and equal units learn the same.",
            advice=("See why no gradient or no step reaches it; its start is no fault.",)
            if waiting
            else ("Initialise at random (the layer's default, He or Xavier).",),
            tensors=[run.names[column] for column in columns],
        )


def _waits(ctx: CheckContext) -> Mask:
    """Weights that are and stay zero, but not because another zero is multiplied with them."""
    recorded = ctx.run.recorded
    if Stat.WEIGHT_NORM not in recorded or Stat.GRAD_NORM not in recorded:
        return np.zeros(len(ctx.parameters), bool)
    zero = (ctx.first(Stat.WEIGHT_NORM) == 0) & (ctx.last(Stat.WEIGHT_NORM) == 0)
    columns = np.flatnonzero(zero)
    rows = ctx.run.sampled(Stat.GRAD_NORM)
    cells = rows[: np.searchsorted(rows, ctx.end), None], columns
    there = ctx.run.states_at(Stat.GRAD_NORM, *cells) != State.NO_GRADIENT
    norms = np.nan_to_num(ctx.run.at(Stat.GRAD_NORM, *cells))
    held = columns[there.any(axis=0) & (norms == 0).all(axis=0)]
    factors = [column for column in held if not ctx.parameters[column].name.endswith("bias")]
    if len(factors) >= 2:
        zero[held] = False
    return np.asarray(zero, bool)
