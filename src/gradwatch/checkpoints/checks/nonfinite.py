"""NaN or infinity among the weights.

What is seen: elements that are NaN or infinite, with the place of the first one. Masks, which
may hold minus infinity on purpose, are passed over.

Why it hurts: one NaN weight makes every output that touches it NaN. The training broke before
this checkpoint was written, or the file was damaged or badly converted.

What helps: an earlier checkpoint; `gradwatch diagnose` on the run's record to see where it
began; a conversion that checks for overflow (float16 ends at 65504).
"""

import numpy as np

from gradwatch.checkpoints.checks.form import Case, Patient, Said, said, worst_first
from gradwatch.checkpoints.joining import Measured
from gradwatch.finding import Severity
from gradwatch.stats import Stat

NAME = "nonfinite"


def check(patient: Patient) -> Said:
    """One finding for all tensors that hold any."""
    cases = [
        Case(measured, float(measured.bad), _words(measured))
        for measured in patient.tensors
        if measured.bad and measured.tensor.element.floating and not _masked(measured)
    ]
    yield from said(
        NAME,
        Severity.CRITICAL,
        patient,
        worst_first(cases),
        stat=Stat.WEIGHT_NAN,
        limit=0.0,
        cause="The training broke before this checkpoint was written, or a conversion overflowed.",
        advice=(
            "Go back to an earlier checkpoint.",
            "Run gradwatch diagnose on the run's record to see where it began.",
        ),
    )


def _masked(measured: Measured) -> bool:
    only_negative = measured.bad == int(measured.moments["neg_inf"])
    return only_negative and ("mask" in measured.role.lower() or measured.role == "bias")


def _words(measured: Measured) -> str:
    nan = int(measured.moments["nan"])
    kinds = [f"{nan} NaN"] if nan else []
    if measured.bad > nan:
        kinds.append(f"{measured.bad - nan} infinite")
    place = ""
    if measured.first_bad is not None:
        at = np.unravel_index(measured.first_bad, measured.tensor.shape)
        place = f", the first at {[int(i) for i in at]}"
    return f"{' and '.join(kinds)} of {measured.tensor.count} elements{place}"
