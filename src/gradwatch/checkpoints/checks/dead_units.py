"""Rows or columns of a weight matrix that hold nothing but zeros.

What is seen: rows (outputs) or columns (inputs) of exact zeros in a trained matrix that is not
zero as a whole. Embeddings have a check of their own.

Why it hurts: a row of zeros is a unit that never fires; a column of zeros is an input that is
ignored. The layer is as narrow as what is left. After pruning this is what one wanted.

What helps: a lower learning rate, leaky or smooth activations, less weight decay; or cut the
dead units out.

Threshold: half of the rows or columns is critical, a twentieth a warning, less is mentioned.
Trained layers have none: weight decay shrinks but does not reach zero.
"""

from gradwatch.checkpoints.checks.check import (
    Outcome,
    TensorFault,
    graded,
    is_embedding,
    is_matrix,
)
from gradwatch.checkpoints.scanning import Checkpoint
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import listed, percent

NAME = "dead-units"


def check(checkpoint: Checkpoint, *, critical: float = 0.5, warning: float = 0.05) -> Outcome:
    """One finding per severity."""
    faults = []
    for stats in checkpoint.tensors:
        if not is_matrix(stats.tensor) or is_embedding(stats.tensor) or stats.moments["norm"] == 0:
            continue
        for lines, word in ((stats.rows, "rows"), (stats.columns, "columns")):
            if lines is not None and not lines.alive.all():
                dead, total = (~lines.alive).nonzero()[0].tolist(), len(lines.alive)
                share = len(dead) / total
                words = f"{len(dead)} of {total} {word} ({percent(share)}) are all zero"
                faults.append(TensorFault(stats, share, f"{words}: {listed(dead)}"))
    yield from graded(
        NAME,
        checkpoint,
        faults,
        {Severity.CRITICAL: critical, Severity.WARNING: warning, Severity.INFO: 0.0},
        stat=Stat.WEIGHT_ZERO_ROWS,
        cause="These units died or were pruned: their weights are exactly zero.",
        advice=(
            "Lower the learning rate or the weight decay, or use LeakyReLU, GELU or SiLU.",
            "If they were pruned, cut them out: they cost time and do nothing.",
        ),
    )
