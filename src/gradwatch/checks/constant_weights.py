"""A weight matrix in which every element is the same number.

What is seen: a trained matrix whose smallest and largest element are equal. Vectors are not
judged: biases of zero and gains of one are usual.

Why it hurts: all units of such a layer do the same and get the same gradient. A matrix of zeros
passes nothing on; as the second matrix of an adapter it means that the adapter was never
trained.

What helps: random initialisation; for adapters, check that they were given to the optimizer.

Threshold: none; smallest and largest element are the same number.
"""

from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_matrix
from gradwatch.text import number

NAME = "constant-weights"
NEEDS = frozenset({Stat.WEIGHT_MIN, Stat.WEIGHT_MAX})


def check(run: Run) -> Outcome:
    """Yield one finding for all constant matrices."""
    faults = [
        TensorFault(stats, 0.0, f"all {stats.tensor.count} elements are {number(value)}")
        for stats in checkpoint_of(run).tensors
        if is_matrix(stats.tensor)
        and stats.finite > 1
        and (value := float(stats.moments["min"])) == float(stats.moments["max"])
    ]
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.CRITICAL: 0.0},
        stat=Stat.WEIGHT_STD,
        cause="The layer was initialised with a constant and never trained, or it was zeroed.",
        advice=(
            "Initialise at random.",
            "Check that the optimizer has this parameter, and that its gradient is not zero.",
        ),
    )
