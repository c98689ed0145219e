"""How far each weight's norm has moved from its start: shared by collapse and explosion."""

import numpy as np

from gradwatch.checks.facts import Facts, Mask
from gradwatch.stats import Stat
from gradwatch.stats.medians import Array


def against_start(known: Facts) -> Array:
    """Late norm ÷ first norm of weights and norm gains; NaN for zero starts and tiny tensors."""
    first, late = known.first(Stat.WEIGHT_NORM), _end(known)
    counted = np.array([p.count >= 4 or not p.count for p in known.parameters], bool)
    judged = (known.weights | (known.norm_gains & known.trainable)) & counted
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Array = np.where(judged & (first > 0), late / first, np.nan)
    return ratio


def _end(known: Facts) -> Array:
    """Median of the last three samples, or the last one before the run went bad."""
    went_bad = known.end < len(known.steps)
    rows = known.rows(Stat.WEIGHT_NORM)[-1 if went_bad else -3 :]
    values = known.values(Stat.WEIGHT_NORM, rows)
    return np.array([np.nan if np.isnan(c).all() else float(np.nanmedian(c)) for c in values.T])


def onset(known: Facts, column: int, passed: Mask) -> int:
    """Step at which the norm last crossed its limit for good."""
    rows = known.rows(Stat.WEIGHT_NORM)
    outside = np.flatnonzero(~passed)
    return int(known.steps[rows[min(int(outside[-1]) + 1 if len(outside) else 0, len(rows) - 1)]])
