"""A few rows or columns of a weight matrix are far larger than all others.

What is seen: the root mean square of at most a twentieth of the rows or columns is at least
`strong` times the median one. Rows of embeddings are not judged: they follow how often a token
occurs.

Why it hurts: one scale per tensor (8-bit quantisation, fp8) must cover the outlier, and
everything else loses its precision; large language models get such channels in long trainings.

What helps: scales per channel, or smoothing them into the layer before; weight decay,
normalisation of queries and keys.

Threshold: 100 × is a warning, 10 × is mentioned. Trained layers of our healthy checkpoints stay
under 2; large language models and depthwise convolutions can reach 30 and still work. Sizes in
large tensors come from 32 columns or 64 rows.
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
from gradwatch.checkpoints.joining import Lines
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import listed, number

NAME = "outlier-channels"


def check(
    patient: Patient, *, strong: float = 100.0, weak: float = 10.0, few: float = 0.05
) -> Said:
    """One finding per severity."""
    cases = []
    for measured in patient.tensors:
        if not is_matrix(measured):
            continue
        for lines, word in ((measured.rows, "row"), (measured.columns, "column")):
            if lines is None or len(lines.rms) < 32 or (word == "row" and is_embedding(measured)):
                continue
            ratio, words = _outliers(lines, word, weak, few)
            if ratio:
                cases.append(Case(measured, ratio, words))
    cases = worst_first(cases)
    for severity, low, high in (
        (Severity.WARNING, strong, np.inf),
        (Severity.INFO, weak, strong),
    ):
        yield from said(
            NAME,
            severity,
            patient,
            [case for case in cases if low <= case.measured < high],
            stat=Stat.WEIGHT_ABS_MAX,
            limit=low,
            cause="A few channels carry far more than the rest.",
            advice=(
                "Quantise with one scale per channel, or smooth the outliers away beforehand.",
            ),
        )


def _outliers(lines: Lines, word: str, weak: float, few: float) -> tuple[float, str]:
    typical = float(np.median(lines.rms))
    if typical <= 0:
        return 0.0, ""
    ratios = lines.rms / typical
    large = np.flatnonzero(ratios >= weak)
    if not 0 < len(large) <= max(1, few * len(ratios)):
        return 0.0, ""
    worst = float(ratios.max())
    large = large[np.argsort(-ratios[large], kind="stable")]
    many = f"{len(large)} of {len(ratios)} {word}s"
    return worst, f"{many} up to {number(worst)} × the median: {listed(large.tolist())}"
