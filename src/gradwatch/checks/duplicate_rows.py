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

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import Access, ReadBytes, close_all
from gradwatch.checkpoints.index import Index, TensorEntry
from gradwatch.checkpoints.measure import TensorStats
from gradwatch.checks.check import ELEMENTS, Outcome, Run, Severity, Stat
from gradwatch.checks.tensors import TensorFault, checkpoint_of, findings, is_embedding, is_matrix
from gradwatch.text import percent

NAME = "duplicate-rows"
NEEDS = frozenset({ELEMENTS})
_VERIFIED = 4096


def check(run: Run, *, warning: float = 0.05, shortest: int = 16) -> Outcome:
    """Yield one finding per severity; embeddings are only mentioned."""
    checkpoint = checkpoint_of(run)
    faults = []
    for stats in checkpoint.tensors:
        if is_matrix(stats.tensor) and stats.tensor.shards[0].row_size >= shortest:
            copies = _copies(checkpoint.index, checkpoint.access, stats)
            if copies.size and stats.row_spread > 1e-4:
                total, share = copies.shape[1], copies.shape[1] / stats.tensor.shape[0]
                words = f"{total} rows ({percent(share)}) are copies: {_in_words(copies)}"
                grave = share >= warning and not is_embedding(stats.tensor)
                severity = Severity.WARNING if grave else Severity.INFO
                faults.append(TensorFault(stats, share, words, severity))
    yield from findings(
        NAME,
        run,
        faults,
        {Severity.WARNING: warning, Severity.INFO: warning},
        stat=Stat.WEIGHT_ROW_SPREAD,
        cause="These rows were copied, or were never told apart by training.",
        advice=(
            "Initialise copied units with noise, so that they can become different.",
            "Heads repeated on purpose (grouped attention) can be shared instead of stored.",
        ),
    )


def _copies(index: Index, access: Access, stats: TensorStats) -> NDArray[np.int64]:
    """[origin | copy] of the rows that equal an earlier one."""
    if stats.row_hashes is None or stats.rows is None:
        return np.empty((2, 0), np.int64)
    live = np.flatnonzero(stats.rows.alive & (stats.rows.rms > 0))
    _, first, inverse = np.unique(stats.row_hashes[live], return_index=True, return_inverse=True)
    origin = live[first[inverse]]
    copied = origin != live
    pairs = np.stack([origin[copied], live[copied]])
    if stats.rows.exact:
        return pairs
    # only sampled elements were compared so far
    equal = list(_equal_rows(index, access, stats.tensor, pairs.T[:_VERIFIED].tolist()))
    return np.array(equal, np.int64).reshape(-1, 2).T


def _equal_rows(
    index: Index, access: Access, tensor: TensorEntry, pairs: Sequence[Sequence[int]]
) -> Iterator[Sequence[int]]:
    """Those of the pairs of rows that are equal bit by bit; none where rows do not lie open."""
    here, there = access(), access()
    try:
        for pair in pairs:
            left = _row(index, tensor, pair[0], here)
            if left is not None and left == _row(index, tensor, pair[1], there):
                yield pair
    finally:
        close_all()


def _row(index: Index, tensor: TensorEntry, number: int, read: ReadBytes) -> bytes | None:
    for shard in tensor.shards:
        inner = number - shard.first_row
        if 0 <= inner < shard.rows and shard.row_access:
            size = shard.row_size * tensor.element.size
            return read(index.files[shard.file], shard.offset + inner * size, size).tobytes()
    return None


def _in_words(pairs: NDArray[np.int64]) -> str:
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
