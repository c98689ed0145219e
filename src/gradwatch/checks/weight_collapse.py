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

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.checks.weight_norms import against_start, onset
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number, percent, several

NAME = "weight-collapse"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(run: Run, *, share: float = 0.1, weak: float = 0.5, least: int = 3) -> Outcome:
    """Yield one finding for all collapsed weights, the smallest first."""
    ctx = context(run)
    rows = ctx.rows(Stat.WEIGHT_NORM)
    if len(rows) < (2 if ctx.end < len(run.steps) else least):
        return
    ratio = against_start(ctx)
    limit = share if (np.nan_to_num(ratio, nan=1.0) <= share).any() else weak
    columns = np.flatnonzero(np.nan_to_num(ratio, nan=1.0) <= limit)
    if not len(columns):
        return
    columns = columns[np.argsort(ratio[columns], kind="stable")]
    layers, worst = ctx.layers(columns), int(columns[0])
    norms = run.series[Stat.WEIGHT_NORM][rows, worst]
    start = float(ctx.first(Stat.WEIGHT_NORM)[worst])
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if limit == share else Severity.INFO,
        layers=layers[:8],
        first_step=onset(ctx, worst, norms <= weak * start),
        last_step=last,
        message=(
            f"the norm of {run.names[worst]} fell from {number(start)} to "
            f"{percent(float(ratio[worst]))} of it"
        ),
        evidence=(
            Evidence(
                Stat.WEIGHT_NORM, run.names[worst], last, float(ratio[worst]) * start, limit * start
            ),
        ),
        cause=f"Decay or the gradient pulls {several(layers)} to zero faster than it learns.",
        advice=(
            "Lower the weight decay; leave norm gains and biases out of it.",
            "Check that decay is not applied twice.",
            "Lower the learning rate.",
        ),
    )
