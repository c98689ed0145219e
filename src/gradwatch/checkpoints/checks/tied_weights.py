"""Tensors that are the same bytes under several names, or equal copies of each other.

What is seen: names that share one storage, and tensors with equal shape, type and bits
(constant ones apart, and vectors, which are often alike).

Why it hurts: tied weights do not (an embedding and its output layer often are); equal copies
cost disk and memory, or show that layers were copied and never trained apart.

What helps: tie them in the model if they are meant to be one; otherwise check that training
reached both.
"""

from collections.abc import Iterable

from gradwatch.checkpoints.checks.form import Case, Patient, Said, is_matrix, said
from gradwatch.checkpoints.joining import Measured
from gradwatch.checkpoints.same import same_bytes
from gradwatch.finding import Severity
from gradwatch.stats import Stat

NAME = "tied-weights"


def check(patient: Patient) -> Said:
    """Only mentioned."""
    cases = [
        Case(measured, 0.0, f"is also named {', '.join(measured.tensor.aliases[:3])}")
        for measured in patient.tensors
        if measured.tensor.aliases
    ]
    for group in _alike(patient.tensors):
        first, *others = group
        cases.extend(
            Case(other, 0.0, f"is an equal copy of {first.name}")
            for other in others
            if same_bytes(patient.index, first.tensor, other.tensor)
        )
    yield from said(
        NAME,
        Severity.INFO,
        patient,
        cases,
        stat=Stat.WEIGHT_NORM,
        limit=None,
        cause="The tensors are tied, or one was copied from the other.",
        advice=("If they are meant to differ, look at how the copy was made.",),
    )


def _alike(tensors: Iterable[Measured]) -> list[list[Measured]]:
    """Matrices that agree in everything that was measured."""
    groups: dict[object, list[Measured]] = {}
    for measured in tensors:
        if is_matrix(measured) and float(measured.moments["std"]) > 0:
            key = (measured.tensor.shape, measured.tensor.element, measured.moments.tobytes())
            groups.setdefault(key, []).append(measured)
    return [group for group in groups.values() if len(group) > 1]
