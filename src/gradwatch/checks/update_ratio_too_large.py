"""Each step changes weights by a large part of themselves.

What is seen, after step ten: a weight with ‖update‖ ÷ ‖weight‖ above `ratio` on at least
`share` of the steps, or a quarter of all weights above one at a single step. Weights that
start at zero are judged from the second half on: at first anything is large against
nothing.

Why it hurts: the network forgets at each step what it learnt; the loss bounces or diverges,
ReLUs die.

What helps: a lower learning rate, warm-up, gradient clipping.

Threshold: 0.3 on a tenth of the steps (0.1 is mentioned); in one trial of each healthy
family of the zoo the median late ratio was 4e-3, the largest of any weight 0.05.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, worst_first
from gradwatch.text import number, percent, several

NAME = "update-ratio-too-large"
NEEDS = frozenset({Stat.UPDATE_RATIO})


def check(
    run: Run, *, ratio: float = 0.3, weak: float = 0.1, share: float = 0.1, after: int = 10,
    least: int = 4,
) -> Outcome:  # fmt: skip
    """Yield one finding for all weights that move too far, the worst first."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_RATIO)
    rows = rows[ctx.steps[rows] > after]
    if len(rows) < least:
        return
    values = np.nan_to_num(ctx.values(Stat.UPDATE_RATIO, rows), posinf=np.inf)
    values[:, ~ctx.weights] = 0.0
    if Stat.WEIGHT_NORM in run.recorded:
        from_zero = np.nan_to_num(ctx.first(Stat.WEIGHT_NORM), nan=1.0) * ctx.rms_gradient < 1e-6
        values[: len(values) // 2, from_zero] = 0.0
    often = (values > ratio).mean(axis=0)
    often[(values > ratio).sum(axis=0) < 3] = 0.0  # one odd sample of few is no habit
    counted = int(ctx.weights.sum())
    jumps = (values > 1).sum(axis=1) >= max(1, -(-counted // 4))
    moved = (often >= share) | (values[jumps] > 1).any(axis=0)
    limit = ratio
    if not moved.any():
        often, limit = (values > weak).mean(axis=0), weak
        moved = often >= share
    columns = worst_first(moved, often)
    if not len(columns):
        return
    layers, worst = ctx.layers(columns), columns[0]
    over = (values[:, columns] > limit).any(axis=1)
    peak = int(values[:, worst].argmax())
    name, highest = run.names[worst], values[peak, worst]
    yield finding(
        NAME,
        Severity.WARNING if limit == ratio else Severity.INFO,
        layers,
        ctx.steps[rows[over]],
        f"a step changes {name} by up to {number(highest)} of its norm, "
        f"by more than {number(limit)} on {percent(often[worst])} of steps",
        Evidence(Stat.UPDATE_RATIO, name, ctx.steps[rows[peak]], highest, limit),
        cause=f"The learning rate is too large for {several(layers)}.",
        advice=("Lower the learning rate by ten.", "Add warm-up.", "Clip the gradient norm."),
    )
