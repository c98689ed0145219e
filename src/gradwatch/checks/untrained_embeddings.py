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

from gradwatch.checks.check import ELEMENTS, Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_embedding, is_matrix
from gradwatch.text import listed, percent

NAME = "untrained-embeddings"
NEEDS = frozenset({ELEMENTS})


def check(run: Run, *, warning: float = 0.1, small: float = 0.05) -> Outcome:
    """Yield one finding per severity."""
    faults = []
    for stats in checkpoint_of(run).tensors:
        rows = stats.rows if is_embedding(stats.tensor) and is_matrix(stats.tensor) else None
        if rows is None or len(rows.rms) < 16:
            continue
        live = rows.rms[rows.alive]
        typical = float(np.median(live)) if len(live) else 0.0
        unused = np.flatnonzero(~rows.alive | (rows.rms < small * typical)).tolist()
        if len(unused) > 1:  # a single one is a padding row
            share = len(unused) / len(rows.rms)
            words = f"{len(unused)} of {len(rows.rms)} rows ({percent(share)}) were never trained"
            faults.append(TensorFault(stats, share, f"{words}: {listed(unused)}"))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.WARNING: warning, Severity.INFO: 0.0},
        stat=Stat.WEIGHT_ZERO_ROWS,
        cause="No sample of the training used these rows.",
        advice=(
            "Use a vocabulary that fits the data.",
            "Initialise tokens added later with the mean of the others, and train them.",
        ),
    )
