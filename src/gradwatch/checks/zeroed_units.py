"""Rows or columns of a weight matrix that hold nothing but zeros.

What is seen: rows (outputs) or columns (inputs) of exact zeros in a trained matrix that is not
zero as a whole. Embeddings have a check of their own. Where only statistics of the weights were
kept, rows alone are judged.

Why it hurts: a row of zeros is a unit that never fires; a column of zeros is an input that is
ignored. The layer is as narrow as what is left. After pruning this is what one wanted.

What helps: a lower learning rate, leaky or smooth activations, less weight decay; or cut the
dead units out.

Threshold: half of the rows or columns is critical, a twentieth a warning, less is mentioned.
Trained layers have none: weight decay shrinks but does not reach zero.
"""

from collections.abc import Iterator
from math import prod

from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.check import Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import (
    TensorFault,
    checkpoint_of,
    findings,
    has_elements,
    is_embedding,
    is_matrix,
)
from gradwatch.text import listed, percent

NAME = "zeroed-units"
NEEDS = frozenset({Stat.WEIGHT_ZERO_ROWS})


def check(run: Run, *, critical: float = 0.5, warning: float = 0.05) -> Outcome:
    """Yield one finding per severity."""
    counted = _zeroed if has_elements(run) else _counted
    faults = []
    for stats in checkpoint_of(run).tensors:
        if not is_matrix(stats.tensor) or is_embedding(stats.tensor) or stats.moments["norm"] == 0:
            continue
        for zeroed, total, words in counted(stats):
            share = zeroed / total
            words = f"{zeroed} of {total} {words.format(percent(share))}"
            faults.append(TensorFault(stats, share, words))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.CRITICAL: critical, Severity.WARNING: warning, Severity.INFO: 0.0},
        stat=Stat.WEIGHT_ZERO_ROWS,
        cause="These units died or were pruned: their weights are exactly zero.",
        advice=(
            "Lower the learning rate or the weight decay, or use LeakyReLU, GELU or SiLU.",
            "If they were pruned, cut them out: they cost time and do nothing.",
        ),
    )


def _zeroed(stats: TensorStats) -> Iterator[tuple[int, int, str]]:
    """Zeroed rows and columns, of how many, and which they are."""
    for lines, word in ((stats.rows, "rows"), (stats.columns, "columns")):
        if lines is not None and not lines.alive.all():
            zeroed = (~lines.alive).nonzero()[0].tolist()
            yield len(zeroed), len(lines.alive), f"{word} ({{}}) are all zero: {listed(zeroed)}"


def _counted(stats: TensorStats) -> Iterator[tuple[int, int, str]]:
    """The same from statistics, which count rows but do not know which."""
    rows, zeroed = stats.tensor.shape[0], int(stats.moments["zero_rows"])
    if zeroed and rows > 1 and prod(stats.tensor.shape[1:]) > 1:
        yield zeroed, rows, "rows ({}) are all zero"
