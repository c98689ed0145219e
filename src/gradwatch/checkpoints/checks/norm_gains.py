"""The gain of a normalisation layer is near zero.

What is seen: more than `share` of a gain's elements are below a thousandth in size.

Why it hurts: what passes through is multiplied by the gain; the branch is as good as switched
off, and its gradients with it.

What helps: no weight decay on gains; a check that a branch started at zero was really trained.

Threshold: four fifths of the elements are a warning, a tenth is mentioned (trained BatchNorms
lose some). If most gains of a model are near zero, they are stored as distances from one, as
some models do: then it is only mentioned.
"""

from gradwatch.checkpoints.checks.check import (
    Outcome,
    TensorFault,
    finding,
    is_norm_gain,
    worst_first,
)
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import percent

NAME = "norm-gains-near-zero"
_EXPONENT = -10  # 2^-10 is about a thousandth


def check(checkpoint: Checkpoint, *, share: float = 0.8, weak: float = 0.1) -> Outcome:
    """One finding per severity."""
    tensors = [stats.tensor for stats in checkpoint.tensors]
    batch_norms = frozenset(t.layer for t in tensors if t.role == "running_var")
    gains = [stats for stats in checkpoint.tensors if is_norm_gain(stats.tensor, batch_norms)]
    faults = []
    for stats in gains:
        near = _near_zero(stats)
        if near >= weak:
            words = f"{percent(near)} of {stats.tensor.count} gains are below 0.001 in size"
            faults.append(TensorFault(stats, near, words))
    faults = worst_first(faults)
    grave = [fault for fault in faults if fault.value >= share]
    if len(grave) > 2 and len(grave) > len(gains) / 2:
        grave = []  # distances from one
    for severity, group in (
        (Severity.WARNING, grave),
        (Severity.INFO, [fault for fault in faults if fault not in grave]),
    ):
        yield from finding(
            NAME,
            severity,
            checkpoint,
            group,
            stat=Stat.WEIGHT_ABS_MEAN,
            limit=share,
            cause="The branch behind this layer is multiplied by almost nothing.",
            advice=(
                "Leave gains out of the weight decay.",
                "If the gain started at zero, check that it was trained.",
            ),
        )


def _near_zero(stats: TensorStats) -> float:
    """Share of the elements below a thousandth."""
    histogram = stats.histogram
    if histogram is None or not stats.tensor.count:
        return 0.0
    below = max(0, _EXPONENT - histogram.first_exponent)
    small = int(histogram.negative[:below].sum()) + int(histogram.positive[:below].sum())
    return (small + histogram.zeros) / stats.tensor.count
