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

from gradwatch.checkpoints.measure import MatrixLines
from gradwatch.checks.check import ELEMENTS, Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_embedding, is_matrix
from gradwatch.text import listed, number

NAME = "outlier-channels"
NEEDS = frozenset({ELEMENTS})


def check(run: Run, *, strong: float = 100.0, weak: float = 10.0, few: float = 0.05) -> Outcome:
    """Yield one finding per severity."""
    faults = []
    for stats in checkpoint_of(run).tensors:
        if not is_matrix(stats.tensor):
            continue
        rows = None if is_embedding(stats.tensor) else stats.rows
        for lines, word in ((rows, "row"), (stats.columns, "column")):
            if lines is None or len(lines.rms) < 32:
                continue
            ratio, words = _outliers(lines, word, weak, few)
            if ratio:
                faults.append(TensorFault(stats, ratio, words))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.WARNING: strong, Severity.INFO: weak},
        stat=Stat.WEIGHT_ABS_MAX,
        cause="A few channels carry far more than the rest.",
        advice=("Quantise with one scale per channel, or smooth the outliers away beforehand.",),
    )


def _outliers(lines: MatrixLines, word: str, weak: float, few: float) -> tuple[float, str]:
    """How far the largest is from the median, and which they are; 0 where there are none."""
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
