"""All rows of a weight matrix are copies of each other.

What is seen: up to 16 fixed rows differ from row 0 by at most `spread` of the largest row's
norm, in a matrix that is not constant.

Why it hurts: equal rows compute the same and get equal gradients; the layer has one unit,
however wide it is.

What helps: random initialisation.

Threshold: 1e-4; rounding leaves about 1e-6, and trained rows differ by about 1.
"""

from gradwatch.checkpoints.checks.form import Case, Patient, Said, is_matrix, said
from gradwatch.finding import Severity
from gradwatch.stats import Stat

NAME = "symmetric-weights"


def check(patient: Patient, *, spread: float = 1e-4) -> Said:
    """One finding for all symmetric matrices."""
    cases = [
        Case(measured, measured.spread, f"all {measured.tensor.shape[0]} rows are equal")
        for measured in patient.tensors
        if is_matrix(measured)
        and measured.tensor.shape[0] > 1
        and measured.spread <= spread
        and float(measured.moments["std"]) > 0
    ]
    yield from said(
        NAME,
        Severity.CRITICAL,
        patient,
        cases,
        stat=Stat.WEIGHT_ROW_SPREAD,
        limit=spread,
        cause="Rows that start equal get equal gradients and stay equal.",
        advice=("Initialise at random.",),
    )
