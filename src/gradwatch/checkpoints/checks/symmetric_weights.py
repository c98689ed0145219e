"""All rows of a weight matrix are copies of each other.

What is seen: up to 16 fixed rows differ from row 0 by at most `spread` of the largest row's
norm, in a matrix that is not constant.

Why it hurts: equal rows compute the same and get equal gradients; the layer has one unit,
however wide it is.

What helps: random initialisation.

Threshold: 1e-4; rounding leaves about 1e-6, and trained rows differ by about 1.
"""

from gradwatch.checkpoints.checks.check import Outcome, TensorFault, finding, is_matrix
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Severity
from gradwatch.stats import Stat

NAME = "symmetric-weights"


def check(checkpoint: Checkpoint, *, spread: float = 1e-4) -> Outcome:
    """One finding for all symmetric matrices."""
    faults = [
        TensorFault(stats, stats.row_spread, f"all {stats.tensor.shape[0]} rows are equal")
        for stats in checkpoint.tensors
        if is_matrix(stats.tensor)
        and stats.tensor.shape[0] > 1
        and stats.row_spread <= spread
        and float(stats.moments["std"]) > 0
    ]
    yield from finding(
        NAME,
        Severity.CRITICAL,
        checkpoint,
        faults,
        stat=Stat.WEIGHT_ROW_SPREAD,
        limit=spread,
        cause="Rows that start equal get equal gradients and stay equal.",
        advice=("Initialise at random.",),
    )
