"""The gain of a normalisation layer is near zero.

What is seen: more than `share` of a gain's elements are below a thousandth in size.

Why it hurts: what passes through is multiplied by the gain; the branch is as good as switched
off, and its gradients with it.

What helps: no weight decay on gains; a check that a branch started at zero was really trained.

Threshold: four fifths of the elements are a warning, a tenth is mentioned (trained BatchNorms
lose some). If most gains of a model are near zero, they are stored as distances from one, as
some models do: then it is only mentioned.
"""

from gradwatch.checkpoints.checks.form import (
    Case,
    Patient,
    Said,
    is_norm_gain,
    said,
    worst_first,
)
from gradwatch.checkpoints.joining import Measured
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import percent

NAME = "norm-gains-near-zero"
_EXPONENT = -10  # 2^-10 is about a thousandth


def check(patient: Patient, *, share: float = 0.8, weak: float = 0.1) -> Said:
    """One finding per severity."""
    batch = frozenset(m.layer for m in patient.tensors if m.role == "running_var")
    gains = [measured for measured in patient.tensors if is_norm_gain(measured, batch)]
    cases = worst_first(
        [
            Case(m, value, f"{percent(value)} of {m.tensor.count} gains are below 0.001 in size")
            for m in gains
            if (value := _near_zero(m)) >= weak
        ]
    )
    grave = [case for case in cases if case.measured >= share]
    if len(grave) > 2 and len(grave) > len(gains) / 2:
        grave = []  # distances from one
    for severity, group in (
        (Severity.WARNING, grave),
        (Severity.INFO, [case for case in cases if case not in grave]),
    ):
        yield from said(
            NAME,
            severity,
            patient,
            group,
            stat=Stat.WEIGHT_ABS_MEAN,
            limit=share,
            cause="The branch behind this layer is multiplied by almost nothing.",
            advice=(
                "Leave gains out of the weight decay.",
                "If the gain started at zero, check that it was trained.",
            ),
        )


def _near_zero(measured: Measured) -> float:
    histogram = measured.histogram
    if histogram is None or not measured.tensor.count:
        return 0.0
    below = max(0, _EXPONENT - histogram.first_exponent)
    small = int(histogram.negative[:below].sum()) + int(histogram.positive[:below].sum())
    return (small + histogram.zeros) / measured.tensor.count
