"""A layer's weights grow without need.

What is seen: the norm of a weight or of a norm layer's gain rises to `times` its start or
more, and is large for its size: it amplifies (RMS × √fan-in) by more than `gain`, so that
weights which only leave a very small start are not meant.

Why it hurts: outputs and gradients grow with it; in low precision they overflow, with tanh
they saturate.

What helps: a lower learning rate, weight decay, gradient clipping, normalisation.

Threshold: ten times the start (three is mentioned); in one trial of each healthy family of
the zoo the largest growth was fourfold.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.weight_norms import against_start, onset
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import Array
from gradwatch.text import number, several

NAME = "weight-explosion"
NEEDS = frozenset({Stat.WEIGHT_NORM})


def check(
    run: Run, *, times: float = 10.0, weak: float = 3.0, gain: float = 1.0, least: int = 3
) -> Outcome:
    """Yield one finding for all grown weights, the largest growth first."""
    ctx = context(run)
    rows = ctx.rows(Stat.WEIGHT_NORM)
    if len(rows) < (2 if ctx.end < len(run.steps) else least):
        return
    ratio = against_start(ctx)
    ratio[_amplification(ctx) < gain] = np.nan
    grown = np.nan_to_num(ratio)
    limit = times if (grown >= times).any() else weak
    columns = np.flatnonzero(grown >= limit)
    if not len(columns):
        return
    columns = columns[np.argsort(-grown[columns], kind="stable")]
    layers, worst = ctx.layers(columns), int(columns[0])
    norms = run.series[Stat.WEIGHT_NORM][rows, worst]
    start = float(ctx.first(Stat.WEIGHT_NORM)[worst])
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if limit == times else Severity.INFO,
        layers=layers[:8],
        first_step=onset(ctx, worst, norms >= weak * start),
        last_step=last,
        message=(
            f"the norm of {run.names[worst]} grew from {number(start)} to "
            f"{number(float(ratio[worst]) * start)}, {number(float(ratio[worst]))} times its start"
        ),
        evidence=(
            Evidence(
                Stat.WEIGHT_NORM, run.names[worst], last, float(ratio[worst]) * start, limit * start
            ),
        ),
        cause=f"The updates of {several(layers)} keep pushing the same way.",
        advice=(
            "Lower the learning rate.",
            "Add weight decay or clip the gradient norm.",
            "Check the scale of inputs and targets.",
        ),
    )


def _amplification(ctx: CheckContext) -> Array:
    """RMS × √fan-in at the end; of norm gains and embeddings the RMS itself."""
    rms = ctx.last(Stat.WEIGHT_NORM) * ctx.rms_gradient
    fan = np.where(ctx.norm_gains | ctx.embeddings, 1.0, np.sqrt(ctx.fan_in))
    return np.where(np.isfinite(fan), rms * fan, np.inf)
