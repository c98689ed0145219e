"""A weight matrix in which every element is the same number.

What is seen: a trained matrix whose smallest and largest element are equal. Vectors are not
judged: biases of zero and gains of one are usual.

Why it hurts: all units of such a layer do the same and get the same gradient. A matrix of zeros
passes nothing on; as the second matrix of an adapter it means that the adapter was never
trained.

What helps: random initialisation; for adapters, check that they were given to the optimizer.
"""

from gradwatch.checkpoints.checks.form import Case, Patient, Said, is_matrix, said
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import number

NAME = "constant-weights"


def check(patient: Patient) -> Said:
    """One finding for all constant matrices."""
    cases = [
        Case(measured, 0.0, f"all {measured.tensor.count} elements are {number(value)}")
        for measured in patient.tensors
        if is_matrix(measured)
        and measured.finite > 1
        and (value := float(measured.moments["min"])) == float(measured.moments["max"])
    ]
    yield from said(
        NAME,
        Severity.CRITICAL,
        patient,
        cases,
        stat=Stat.WEIGHT_STD,
        limit=0.0,
        cause="The layer was initialised with a constant and never trained, or it was zeroed.",
        advice=(
            "Initialise at random.",
            "Check that the optimizer has this parameter, and that its gradient is not zero.",
        ),
    )
