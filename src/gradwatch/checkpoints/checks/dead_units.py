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
from gradwatch.text import listed, percent

NAME = "dead-units"


def check(patient: Patient, *, critical: float = 0.5, warning: float = 0.05) -> Said:
    """One finding per severity."""
    cases = []
    for measured in patient.tensors:
        if (
            not is_matrix(measured)
            or is_embedding(measured)
            or float(measured.moments["norm"]) == 0
        ):
            continue
        for lines, word in ((measured.rows, "rows"), (measured.columns, "columns")):
            if lines is not None and not lines.alive.all():
                share, words = _dead(lines, word)
                cases.append(Case(measured, share, words))
    cases = worst_first(cases)
    for severity, low, high in (
        (Severity.CRITICAL, critical, 2.0),
        (Severity.WARNING, warning, critical),
        (Severity.INFO, 0.0, warning),
    ):
        yield from said(
            NAME,
            severity,
            patient,
            [case for case in cases if low <= case.measured < high],
            stat=Stat.WEIGHT_ZERO_ROWS,
            limit=low,
            cause="These units died or were pruned: their weights are exactly zero.",
            advice=(
                "Lower the learning rate or the weight decay, or use LeakyReLU, GELU or SiLU.",
                "If they were pruned, cut them out: they cost time and do nothing.",
            ),
        )


def _dead(lines: Lines, word: str) -> tuple[float, str]:
    dead = (~lines.alive).nonzero()[0].tolist()
    share = len(dead) / len(lines.alive)
    many = f"{len(dead)} of {len(lines.alive)} {word}"
    return share, f"{many} ({percent(share)}) are all zero: {listed(dead)}"
