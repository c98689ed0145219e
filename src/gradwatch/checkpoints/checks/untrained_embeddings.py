"""Rows of an embedding that were never trained.

What is seen: rows of an embedding (by its name) that are all zero, one padding row apart, or
smaller than a twentieth of the median row: weight decay shrinks what no gradient ever moves.

Why it hurts: tokens that use these rows give the model nothing it has ever seen, and can make
it say anything. Usually the vocabulary is larger than the data.

What helps: a vocabulary that fits the data; initialise added tokens with the mean of the
others.

Threshold: a warning from a tenth of the rows on; fewer are mentioned, since vocabularies are
often padded to a round number.
"""

import numpy as np

from gradwatch.checkpoints.checks.form import (
    Case,
    Patient,
    Said,
    is_embedding,
    is_matrix,
    said,
    worst_first,
)
from gradwatch.checkpoints.joining import Measured
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import listed, percent

NAME = "untrained-embeddings"


def check(patient: Patient, *, warning: float = 0.1, small: float = 0.05) -> Said:
    """One finding per severity."""
    cases = [
        case
        for measured in patient.tensors
        if is_embedding(measured) and is_matrix(measured) and measured.rows is not None
        for case in _cases(measured, small)
    ]
    cases = worst_first(cases)
    for severity, low, high in ((Severity.WARNING, warning, 2.0), (Severity.INFO, 0.0, warning)):
        yield from said(
            NAME,
            severity,
            patient,
            [case for case in cases if low <= case.measured < high],
            stat=Stat.WEIGHT_ZERO_ROWS,
            limit=low,
            cause="No sample of the training used these rows.",
            advice=(
                "Use a vocabulary that fits the data.",
                "Initialise tokens added later with the mean of the others, and train them.",
            ),
        )


def _cases(measured: Measured, small: float) -> list[Case]:
    assert measured.rows is not None
    rms = measured.rows.rms
    if len(rms) < 16:
        return []
    live = rms[measured.rows.alive]
    typical = float(np.median(live)) if len(live) else 0.0
    unused = np.flatnonzero(~measured.rows.alive | (rms < small * typical))
    if len(unused) <= 1:  # a padding row
        return []
    share = len(unused) / len(rms)
    many = f"{len(unused)} of {len(rms)} rows ({percent(share)})"
    return [Case(measured, share, f"{many} were never trained: {listed(unused.tolist())}")]
