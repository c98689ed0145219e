"""Rows of a weight matrix, or whole attention heads, that are exact copies of others.

What is seen: rows with the same bits (rows of zeros apart). In large tensors candidates come
from 32 elements of each row, and at most 4,096 are compared whole. Copies that lie at one
distance in a block are named as a block: this is how repeated attention heads look.

Why it hurts: copies compute the same thing and, with equal gradients, stay copies. In
embeddings it means tokens that share one vector, often ones that were added and never trained.

What helps: random initialisation of what was copied, or a little noise; for heads repeated from
grouped attention, nothing: they can be shared.

Threshold: a warning from a twentieth of the rows on, fewer are mentioned. Rows shorter than 16
elements are not compared, since short ones can agree by chance in narrow types.
"""

import numpy as np
from numpy.typing import NDArray

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
from gradwatch.checkpoints.same import equal_rows
from gradwatch.finding import Severity
from gradwatch.stats import Stat
from gradwatch.text import percent

NAME = "duplicate-rows"
_VERIFIED = 4096


def check(patient: Patient, *, warning: float = 0.05, shortest: int = 16) -> Said:
    """One finding per severity; embeddings are only mentioned."""
    cases = []
    for measured in patient.tensors:
        if is_matrix(measured) and measured.tensor.pieces[0].line >= shortest:
            copies, words = copied(patient, measured)
            if copies and measured.spread > 1e-4:
                cases.append(Case(measured, copies / measured.tensor.shape[0], words))
    cases = worst_first(cases)
    grave = [c for c in cases if c.measured >= warning and not is_embedding(c.tensor)]
    for severity, group in (
        (Severity.WARNING, grave),
        (Severity.INFO, [case for case in cases if case not in grave]),
    ):
        yield from said(
            NAME,
            severity,
            patient,
            group,
            stat=Stat.WEIGHT_ROW_SPREAD,
            limit=warning,
            cause="These rows were copied, or were never told apart by training.",
            advice=(
                "Initialise copied units with noise, so that they can become different.",
                "Heads repeated on purpose (grouped attention) can be shared instead of stored.",
            ),
        )


def copied(patient: Patient, measured: Measured) -> tuple[int, str]:
    """How many rows are copies of an earlier one, and which, in words."""
    if measured.row_prints is None or measured.rows is None:
        return 0, ""
    live = np.flatnonzero(measured.rows.alive & (measured.rows.rms > 0))
    prints = measured.row_prints[live]
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    origin = live[first[inverse]]
    copies = origin != live
    pairs = np.stack([origin[copies], live[copies]])
    if not measured.rows.exact and copies.any():  # only sampled elements were compared so far
        listed = [(int(a), int(b)) for a, b in pairs.T[:_VERIFIED]]
        equal = list(equal_rows(patient.index, measured.tensor, listed))
        pairs = np.array(equal, np.int64).reshape(-1, 2).T
    total = pairs.shape[1]
    if not total:
        return 0, ""
    share = percent(total / measured.tensor.shape[0])
    return total, f"{total} rows ({share}) are copies: {_blocks(pairs)}"


def _blocks(pairs: NDArray[np.int64]) -> str:
    """`rows 64–127 of rows 0–63` where whole blocks were copied, else single rows."""
    order = np.lexsort((pairs[1], pairs[1] - pairs[0]))
    origin, copy = pairs[:, order]
    breaks = np.flatnonzero((np.diff(copy) != 1) | (np.diff(origin) != 1)) + 1
    runs = sorted(
        zip(np.split(origin, breaks), np.split(copy, breaks), strict=True), key=lambda r: -len(r[0])
    )
    words = [
        f"row {b[0]} of row {a[0]}"
        if len(a) == 1
        else f"rows {b[0]}–{b[-1]} of rows {a[0]}–{a[-1]}"
        for a, b in runs[:3]
    ]
    return ", ".join(words) + (" …" if len(runs) > 3 else "")
