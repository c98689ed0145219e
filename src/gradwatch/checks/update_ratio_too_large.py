"""Each step changes weights by a large part of themselves.

What is seen, after step ten: a weight with ‖update‖ ÷ ‖weight‖ above `ratio` on at least
`share` of the steps, or a quarter of all weights above one at a single step. A weight that
starts at zero, or far below what its layer's default initialisation gives, is held against
that instead: anything is large against nothing.

Why it hurts: the network forgets at each step what it learnt; the loss bounces or diverges,
ReLUs die.

What helps: a lower learning rate, warm-up, gradient clipping.

Threshold: 0.3 on a tenth of the steps (0.1 is mentioned); in one trial of each healthy
family of the zoo the median late ratio was 4e-3, the largest of any weight 0.05.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Rows, context, worst_first
from gradwatch.checks.limits import usual_norms
from gradwatch.stats.medians import Array
from gradwatch.text import number, percent, several

NAME = "update-ratio-too-large"
NEEDS = frozenset({Stat.UPDATE_RATIO})
TINY = 0.1
"""A weight that starts below this share of the usual norm says little by itself."""


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
    ratios = against_usual(ctx, rows)
    if not (ratios > weak).any():  # the usual case, and it costs one look
        return
    values = np.nan_to_num(ratios, posinf=np.inf)
    values[:, ~ctx.weights] = 0.0
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
    worst = columns[0]
    layers = () if 2 * len(columns) > counted else ctx.layers(columns)
    over = (values[:, columns] > limit).any(axis=1)
    peak = int(values[:, worst].argmax())
    name, highest = run.names[worst], values[peak, worst]
    yield finding(
        NAME,
        Severity.WARNING if limit == ratio else Severity.INFO,
        layers,
        [
            _since(ctx, columns, limit, int(ctx.steps[rows[over.argmax()]])),
            ctx.steps[rows[over]][-1],
        ],
        f"a step changes {name} by up to {number(highest)} times its norm, "
        f"by more than {number(limit)} on {percent(often[worst])} of steps; "
        f"{len(columns)} of {counted} weights move as far; about 0.001 is usual",
        Evidence(Stat.UPDATE_RATIO, name, ctx.steps[rows[peak]], highest, limit),
        cause=f"The learning rate is too large for {several(layers)}.",
        advice=(
            "Lower the learning rate by ten. It helped if a step changes weights by about 0.1 %.",
            "Add warm-up.",
            "Clip the gradient norm.",
        ),
        tensors=[run.names[column] for column in columns],
    )


def _since(ctx: CheckContext, columns: Rows, limit: float, seen: int) -> int:
    """The step it began at: before it was judged, if it was so from the first steps on."""
    rows = ctx.rows(Stat.UPDATE_RATIO)
    early = rows[ctx.steps[rows] < seen]
    over = np.flatnonzero((against_usual(ctx, early)[:, columns] > limit).any(axis=1))
    lasted = len(over) > 0 and len(over) >= 0.5 * (len(early) - over[0])
    return int(ctx.steps[early[over[0]]]) if lasted else seen


def against_usual(ctx: CheckContext, rows: Rows) -> Array:
    """‖update‖ ÷ ‖weight‖; for weights that start tiny, the usual norm where that is larger."""
    ratio = ctx.values(Stat.UPDATE_RATIO, rows)
    if Stat.WEIGHT_NORM not in ctx.run.recorded:
        return ratio
    usual = usual_norms(ctx)
    start = np.nan_to_num(ctx.first(Stat.WEIGHT_NORM), nan=np.inf)
    tiny = np.flatnonzero(start < TINY * usual)
    steps = ctx.run.at(Stat.UPDATE_NORM, *np.ix_(rows, tiny))  # NaN where it is not recorded
    ratio[:, tiny] = np.minimum(ratio[:, tiny], steps / usual[tiny])
    return ratio
