"""All rows of a checkpoint's weight matrix are copies of each other.

What is seen: up to 16 fixed rows differ from row 0 by at most `spread` of the largest row's
norm, in a matrix that is not constant.

Why it hurts: equal rows compute the same and get equal gradients; the layer has one unit,
however wide it is.

What helps: random initialisation.

Threshold: 1e-4; rounding leaves about 1e-6, and trained rows differ by about 1.
"""

from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_matrix

NAME = "identical-units"
NEEDS = frozenset({Stat.WEIGHT_ROW_SPREAD})


def check(run: Run, *, spread: float = 1e-4) -> Outcome:
    """Yield one finding for all matrices with equal rows."""
    faults = [
        TensorFault(stats, stats.row_spread, f"all {stats.tensor.shape[0]} rows are equal")
        for stats in checkpoint_of(run).tensors
        if is_matrix(stats.tensor)
        and stats.tensor.shape[0] > 1
        and stats.row_spread <= spread
        and float(stats.moments["std"]) > 0
    ]
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.CRITICAL: spread},
        stat=Stat.WEIGHT_ROW_SPREAD,
        cause="Rows that start equal get equal gradients and stay equal.",
        advice=("Initialise at random.",),
        below=True,
    )
