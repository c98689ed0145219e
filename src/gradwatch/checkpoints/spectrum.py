"""Singular values of weight matrices: whole for small ones, the largest ones for large ones."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.access import Access
from gradwatch.checkpoints.blocks import blocks
from gradwatch.checkpoints.elements import as_floats
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.checkpoints.measuring import Item

EXACT = 1024
"""Up to this smaller side the whole spectrum is computed, from the Gram matrix in float64."""
KEPT = 64
"""Singular values kept for larger ones, by a randomised projection with one power step."""
_OVERSAMPLED = 16
_HELD = 1 << 25
"""Elements of a wide matrix that may be held at once."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values, largest first, and what they say."""

    values: tuple[float, ...]
    exact: bool
    """Whether all of them are there."""
    full_rank: int
    """The smaller side of the matrix."""
    effective_rank: float
    """exp of the entropy of the normalised squares where all are known, else NaN."""
    stable_rank: float
    """Sum of the squares divided by the largest square."""
    rank_90: int | None
    """Singular values that carry 90 % of the sum of squares; None where more than are known."""
    tail_exponent: float
    """Hill's estimate of the exponent of the eigenvalues' density, upper half; NaN if few."""


def spectrum_of(item: Item, access: Access) -> Spectrum | None:
    """Of one whole tensor seen as rows × the rest; None where it is no matrix of finite numbers."""
    rows, columns = item.piece.lines, item.piece.line
    if len(item.whole_shape) < 2 or min(rows, columns) < 2 or columns > BLOCK:
        return None
    small = min(rows, columns) <= EXACT and (columns <= rows or rows * columns <= _HELD)
    found = _all_squares(item, access) if small else _largest_squares(item, access)
    if found is None:
        return None
    squares, total = found
    return _summary(squares, total, small, min(rows, columns)) if total > 0 else None


def _tables(item: Item, access: Access) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(first row, rows as float64), a few MB at a time."""
    step = max(1, (1 << 20) // item.piece.line)
    for block in blocks(access, item.file, item.piece, item.element, 0, item.piece.lines):
        table = block.bits.reshape(block.lines, item.piece.line)
        for first in range(0, block.lines, step):
            part = as_floats(table[first : first + step], item.element)
            yield block.first_line + first, part.astype(np.float64)


def _all_squares(item: Item, access: Access) -> tuple[NDArray[np.float64], float] | None:
    """Eigenvalues of AᵀA or AAᵀ, whichever is smaller."""
    rows, columns = item.piece.lines, item.piece.line
    if columns <= rows:
        gram = np.zeros((columns, columns))
        for _, table in _tables(item, access):
            gram += table.T @ table
    else:
        whole = np.empty((rows, columns), np.float32)
        for first, table in _tables(item, access):
            whole[first : first + len(table)] = table
        gram = np.zeros((rows, rows))
        for first in range(0, columns, 4096):
            wide = whole[:, first : first + 4096].astype(np.float64)
            gram += wide @ wide.T
    if not np.isfinite(gram).all():
        return None
    squares = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
    return squares, float(squares.sum())


def _largest_squares(item: Item, access: Access) -> tuple[NDArray[np.float64], float] | None:
    """Randomised: a Gaussian sketch of the range, sharpened by one power step, then projected."""
    rows, columns = item.piece.lines, item.piece.line
    width = KEPT + _OVERSAMPLED
    probe = np.random.default_rng(0).standard_normal((columns, width))
    total = 0.0
    for _ in range(2):
        image = np.empty((rows, width))
        total = 0.0
        for first, table in _tables(item, access):
            image[first : first + len(table)] = table @ probe
            total += float(np.vdot(table, table))
        if not math.isfinite(total):
            return None
        basis = np.linalg.qr(image)[0]
        probe = np.zeros((columns, width))
        for first, table in _tables(item, access):
            probe += table.T @ basis[first : first + len(table)]
        probe, triangle = np.linalg.qr(probe)
    values = np.linalg.svd(triangle, compute_uv=False)
    return values[:KEPT] ** 2, total


def _summary(squares: NDArray[np.float64], total: float, exact: bool, rank: int) -> Spectrum:
    shares = squares / total
    positive = shares[shares > 0]
    carried = np.flatnonzero(np.cumsum(shares) >= 0.9)
    return Spectrum(
        tuple(float(value) for value in np.sqrt(squares[:KEPT])),
        exact,
        rank,
        float(np.exp(-(positive * np.log(positive)).sum())) if exact else math.nan,
        float(total / squares[0]),
        int(carried[0]) + 1 if len(carried) else None,
        _tail(squares[squares > 0], rank),
    )


def _tail(squares: NDArray[np.float64], rank: int) -> float:
    """Hill's estimator over the upper half (at most what is known): 1 + k / Σ ln(λ_i / λ_k)."""
    upper = squares[: max(1, min(len(squares), rank // 2))]
    if len(upper) < 8:
        return math.nan
    logs = np.log(upper / upper[-1]).sum()
    return float(1.0 + len(upper) / logs) if logs > 0 else math.inf
