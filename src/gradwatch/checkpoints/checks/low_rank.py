"""A weight matrix uses only a few of its directions.

What is seen (with --spectrum): the effective rank, exp of the entropy of the squared singular
values, or for large matrices the sum of the squares divided by the largest, is below `share` of
the smaller side.

Why it hurts: the layer has collapsed to a few directions; what it passes on has no more. For
adapters and deliberately factored layers it is expected.

What helps: a lower learning rate, less weight decay, normalisation; or replace the matrix by
two thin ones.

Threshold: 2 % of a side of at least 64. Trained layers of our healthy checkpoints keep more
than 35 %.
"""

from gradwatch.checkpoints.checks.form import Case, Patient, Said, is_matrix, said
from gradwatch.finding import Severity, Skipped
from gradwatch.stats import Stat
from gradwatch.text import number

NAME = "low-rank"


def check(patient: Patient, *, share: float = 0.02, least: int = 64) -> Said:
    """One finding for all; skipped without spectra."""
    if patient.spectra is None:
        yield Skipped(NAME, "singular values are computed with --spectrum")
        return
    cases = []
    for measured in patient.tensors:
        spectrum = patient.spectra.get(measured.name)
        if spectrum is None or not is_matrix(measured) or spectrum.full_rank < least:
            continue
        rank = spectrum.effective_rank if spectrum.exact else spectrum.stable_rank
        if rank < share * spectrum.full_rank:
            words = f"effective rank {number(rank)} of {spectrum.full_rank}"
            cases.append(Case(measured, rank / spectrum.full_rank, words))
    yield from said(
        NAME,
        Severity.WARNING,
        patient,
        sorted(cases, key=lambda case: case.measured),
        stat=Stat.WEIGHT_NORM,
        limit=share,
        cause="Almost all of this matrix lies in a few directions.",
        advice=(
            "Lower the learning rate or the weight decay.",
            "If it is meant to be so, store it as two thin matrices.",
        ),
    )
