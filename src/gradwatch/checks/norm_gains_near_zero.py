"""The gain of a normalisation layer is near zero.

What is seen: more than `share` of a gain's elements are below a thousandth in size.

Why it hurts: what passes through is multiplied by the gain; the branch is as good as switched
off, and its gradients with it.

What helps: no weight decay on gains; a check that a branch started at zero was really trained.

Threshold: four fifths of the elements are a warning, a tenth is mentioned (trained BatchNorms
lose some). If most gains of a model are near zero, they are stored as distances from one, as
some models do: then it is only mentioned.
"""

from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_norm_gain
from gradwatch.text import percent

NAME = "norm-gains-near-zero"
NEEDS = frozenset({Stat.WEIGHT_ABS_MAX})
_EXPONENT = -10  # 2^-10 is about a thousandth


def check(run: Run, *, share: float = 0.8, weak: float = 0.1) -> Outcome:
    """Yield one finding per severity."""
    tensors = checkpoint_of(run).tensors
    batch_norms = frozenset(s.tensor.layer for s in tensors if s.tensor.role == "running_var")
    gains = [stats for stats in tensors if is_norm_gain(stats.tensor, batch_norms)]
    shares = [_near_zero(stats) for stats in gains]
    grave = sum(near >= share for near in shares)
    # where most gains are near zero, they are stored as distances from one
    distances = grave > 2 and grave > len(gains) / 2
    faults = []
    for stats, near in zip(gains, shares, strict=True):
        if near >= weak:
            words = f"{percent(near)} of {stats.tensor.count} gains are below 0.001 in size"
            severity = Severity.WARNING if near >= share and not distances else Severity.INFO
            faults.append(TensorFault(stats, near, words, severity))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.WARNING: share, Severity.INFO: share},
        stat=Stat.WEIGHT_ABS_MEAN,
        cause="The branch behind this layer is multiplied by almost nothing.",
        advice=(
            "Leave gains out of the weight decay.",
            "If the gain started at zero, check that it was trained.",
        ),
    )


def _near_zero(stats: TensorStats) -> float:
    """Share of the elements below a thousandth; from statistics, all of them or the zeros."""
    histogram = stats.histogram
    if not stats.tensor.count:
        return 0.0
    if histogram is None:
        all_small = stats.finite and float(stats.moments["abs_max"]) < 2.0**_EXPONENT
        return 1.0 if all_small else stats.zero_fraction
    below = max(0, _EXPONENT - histogram.first_exponent)
    small = int(histogram.negative[:below].sum()) + int(histogram.positive[:below].sum())
    return (small + histogram.zeros) / stats.tensor.count
