"""The two rule books, and the histories the original one works on."""

from enum import StrEnum

import numpy as np

from gradwatch.analysis.layers import LayerSeries
from gradwatch.run import Run


class Rules(StrEnum):
    """`gradwatch`: ours, the default. `original`: what the original program itself would say."""

    GRADWATCH = "gradwatch"
    ORIGINAL = "original"


def histories(run: Run) -> dict[str, tuple[list[float], list[int]]]:
    """Per layer its norms and steps, in forward order; a non-finite gradient is a NaN there."""
    series = LayerSeries.of(run)
    found = {}
    for column, name in enumerate(series.names):
        bad = series.nonfinite[:, column] > 0
        kept = np.isfinite(series.norms[:, column]) | bad
        norms = np.where(bad, np.nan, series.norms[:, column])[kept]
        found[name] = (norms.tolist(), series.steps[kept].tolist())
    return found
