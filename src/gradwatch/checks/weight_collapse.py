"""A layer's weights shrink towards nothing.

What is seen: the norm of a weight or of a norm layer's gain falls to `share` of its start
or below.

Why it hurts: a layer near zero passes nothing on, and its neighbours receive no gradient
through it.

What helps: less weight decay (and none on norm gains and biases), a lower learning rate, a
look at whether decay is applied twice (L2 in the loss and in the optimizer).

Threshold: a tenth of the start (half is mentioned); in one trial of each healthy family of
the zoo every weight kept at least 85 %.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, since, worst_first
from gradwatch.checks.weight_explosion import norms_against_start
from gradwatch.text import number, percent, several

NAME = "weight-collapse"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(run: Run, *, share: float = 0.1, weak: float = 0.5, least: int = 3) -> Outcome:
    """Yield one finding for all collapsed weights, the smallest first."""
    ctx = context(run)
    rows, ratio = ctx.rows(Stat.WEIGHT_NORM), norms_against_start(ctx, least)
    left = np.nan_to_num(ratio, nan=1.0)
    limit = share if (left <= share).any() else weak
    columns = worst_first(left <= limit, -ratio)
    if not len(columns):
        return
    layers, worst = ctx.layers(columns), columns[0]
    name, start = run.names[worst], ctx.first(Stat.WEIGHT_NORM)[worst]
    end, last = ratio[worst] * start, ctx.steps[rows[-1]]
    beyond = run.at(Stat.WEIGHT_NORM, rows, worst) <= weak * start
    yield finding(
        NAME,
        Severity.WARNING if limit == share else Severity.INFO,
        layers,
        ctx.steps[rows[since(beyond) :]],
        f"the norm of {name} fell from {number(start)} to {number(end)}, "
        f"{percent(ratio[worst])} of its start (limit {percent(limit)})",
        Evidence(Stat.WEIGHT_NORM, name, last, end, limit * start),
        cause=f"Decay or the gradient pulls {several(layers)} to zero faster than it learns.",
        advice=(
            "Lower the weight decay; leave norm gains and biases out. It helped if the norm stays.",
            "Check that decay is not applied twice.",
            "Lower the learning rate.",
        ),
    )
