"""How far each weight's norm has moved from its start: shared by collapse and explosion."""

import numpy as np

from gradwatch.checks.context import CheckContext, Mask
from gradwatch.stats import Stat
from gradwatch.stats.medians import Array


def against_start(ctx: CheckContext) -> Array:
    """Late norm ÷ first norm of weights and norm gains; NaN for zero starts and tiny tensors."""
    first, late = ctx.first(Stat.WEIGHT_NORM), _end(ctx)
    counted = np.array([p.count >= 4 or not p.count for p in ctx.parameters], bool)
    judged = (ctx.weights | (ctx.norm_gains & ctx.trainable)) & counted
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Array = np.where(judged & (first > 0), late / first, np.nan)
    return ratio


def _end(ctx: CheckContext) -> Array:
    """Median of the last three samples, or the last one before the run went bad."""
    went_bad = ctx.end < len(ctx.steps)
    rows = ctx.rows(Stat.WEIGHT_NORM)[-1 if went_bad else -3 :]
    values = ctx.values(Stat.WEIGHT_NORM, rows)
    return np.array([np.nan if np.isnan(c).all() else float(np.nanmedian(c)) for c in values.T])


def onset(ctx: CheckContext, column: int, passed: Mask) -> int:
    """Step at which the norm last crossed its limit for good."""
    rows = ctx.rows(Stat.WEIGHT_NORM)
    outside = np.flatnonzero(~passed)
    return int(ctx.steps[rows[min(int(outside[-1]) + 1 if len(outside) else 0, len(rows) - 1)]])
