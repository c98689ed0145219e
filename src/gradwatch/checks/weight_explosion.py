"""A layer's weights grow without need.

What is seen: the norm of a weight or of a norm layer's gain rises to `times` its start or
more, and is large for its size: it amplifies (RMS × √fan-in) by more than `gain`. A weight
that starts far below what its layer's default initialisation gives is held against that, so
that weights which only leave a very small start are not meant.

Why it hurts: outputs and gradients grow with it; in low precision they overflow, with tanh
they saturate.

What helps: a lower learning rate, weight decay, gradient clipping, normalisation.

Threshold: ten times the start (three is mentioned); in one trial of each healthy family of
the zoo the largest growth was fourfold.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context, since, worst_first
from gradwatch.checks.limits import usual_norms
from gradwatch.stats.medians import Array
from gradwatch.text import number, several

NAME = "weight-explosion"
NEEDS = frozenset({Stat.WEIGHT_NORM})
TINY = 0.3
"""A start below this share of the usual norm is taken as this share."""


def check(
    run: Run, *, times: float = 10.0, weak: float = 3.0, gain: float = 1.0, least: int = 3
) -> Outcome:
    """Yield one finding for all grown weights, the largest growth first."""
    ctx = context(run)
    rows, ratio = ctx.rows(Stat.WEIGHT_NORM), norms_against_start(ctx, least)
    ratio[_amplification(ctx) < gain] = np.nan
    start = ctx.first(Stat.WEIGHT_NORM)
    grown = np.nan_to_num(ratio * start / np.maximum(start, TINY * usual_norms(ctx)))
    limit = times if (grown >= times).any() else weak
    columns = worst_first(grown >= limit, grown)
    if not len(columns):
        return
    worst, judged = columns[0], int(np.isfinite(norms_against_start(ctx, least)).sum())
    layers = () if len(columns) > max(1, judged // 2) else ctx.layers(columns)
    name, first = run.names[worst], start[worst]
    end, last = ratio[worst] * first, ctx.steps[rows[-1]]
    beyond = run.at(Stat.WEIGHT_NORM, rows, worst) >= weak * first
    yield finding(
        NAME,
        Severity.WARNING if limit == times else Severity.INFO,
        layers,
        ctx.steps[rows[since(beyond) :]],
        f"the norm of {name} grew from {number(first)} to {number(end)}, "
        f"{number(ratio[worst])} times its start (limit {number(limit)})"
        + (f"; {len(columns)} of {judged} weights grew as far" if len(columns) > 1 else ""),
        Evidence(Stat.WEIGHT_NORM, name, last, end, limit * first),
        cause=f"The updates of {several(layers)} keep pushing the same way.",
        advice=(
            "Lower the learning rate. It helped if the norm levels off.",
            "Add weight decay or clip the gradient norm.",
            "Check the scale of inputs and targets.",
        ),
        tensors=[run.names[column] for column in columns],
    )


def norms_against_start(ctx: CheckContext, least: int) -> Array:
    """Late norm ÷ first norm of weights and norm gains; NaN for zero starts and tiny tensors.

    NaN for all where fewer than `least` norms were recorded, or two in a run that went bad.
    """
    rows = ctx.rows(Stat.WEIGHT_NORM)
    if len(rows) < (2 if ctx.went_bad else least):
        return np.full(len(ctx.parameters), np.nan)
    first = ctx.first(Stat.WEIGHT_NORM)
    # the median of the last three samples; the last one before a run went bad, or on the way
    values = ctx.values(Stat.WEIGHT_NORM, rows[-1 if ctx.went_bad else -3 :])
    late = np.array([np.nan if np.isnan(c).all() else float(np.nanmedian(c)) for c in values.T])
    turns = np.diff(values, axis=0)
    late = np.where((turns > 0).all(axis=0) | (turns < 0).all(axis=0), values[-1], late)
    counted = np.array([p.count >= 4 or not p.count for p in ctx.parameters], bool)
    judged = (ctx.weights | (ctx.norm_gains & ctx.trainable)) & counted
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(judged & (first > 0), late / first, np.nan)


def _amplification(ctx: CheckContext) -> Array:
    """RMS × √fan-in at the end; of norm gains and embeddings the RMS itself."""
    rms = ctx.last(Stat.WEIGHT_NORM) * ctx.rms_gradient
    fan = np.where(ctx.norm_gains | ctx.embeddings, 1.0, np.sqrt(ctx.fan_in))
    return np.where(np.isfinite(fan), rms * fan, np.inf)
