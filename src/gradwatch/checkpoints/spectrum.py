"""Singular values of weight matrices: all of small ones, the largest of large ones."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import Access, ReadBytes, blocks
from gradwatch.checkpoints.elements import Element, as_floats
from gradwatch.checkpoints.index import FileId, Index, Shard, TensorEntry
from gradwatch.checkpoints.limits import BLOCK
from gradwatch.checkpoints.parallel import ScanOptions, WorkUnit, do_work

_Tables = Iterator[tuple[int, NDArray[np.float64]]]
EXACT = 1024
"""Up to this smaller side the whole spectrum is computed, from the Gram matrix in float64."""
KEPT = 64
"""Singular values kept for larger ones, by a randomised projection with one power step."""
_OVERSAMPLED = 16
_HELD = 1 << 25
"""Elements of a wide matrix that may be held at once."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values and what they say; its fields are those of the JSON."""

    exact: bool
    """Whether all singular values were computed."""
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
    singular_values: list[float]
    """The largest 64, largest first."""


def spectra(index: Index, options: ScanOptions) -> dict[str, Spectrum]:
    """By name, of every floating matrix that lies in one shard."""
    tensors = [
        tensor
        for tensor in index.tensors
        if len(tensor.shape) >= 2 and tensor.element.floating and len(tensor.shards) == 1
    ]
    units = []
    for tensor in tensors:
        file = index.files[tensor.shards[0].file]
        units.append(WorkUnit(spectrum_of, (file, tensor), tensor.bytes, frozenset((file,))))
    results = do_work(units, options, index.path, index.reach)
    return {t.name: result for t, result in zip(tensors, results, strict=True) if result}


@np.errstate(invalid="ignore", over="ignore")  # such a matrix has no spectrum
def spectrum_of(access: Access, file: FileId, tensor: TensorEntry) -> Spectrum | None:
    """Of a tensor seen as rows × the rest; None where it is no matrix of finite numbers."""
    (shard,) = tensor.shards
    rows, columns = shard.rows, shard.row_size
    if min(rows, columns) < 2 or columns > BLOCK:
        return None
    tables = partial(_tables, access(), file, shard, tensor.element)
    small = min(rows, columns) <= EXACT and (columns <= rows or rows * columns <= _HELD)
    squares_and_sum = (_all_squares if small else _largest_squares)(tables, rows, columns)
    if squares_and_sum is None:
        return None
    squares, total = squares_and_sum
    return _summary(squares, total, small, min(rows, columns)) if total > 0 else None


def _tables(read: ReadBytes, file: FileId, shard: Shard, element: Element) -> _Tables:
    """(first row, rows as float64), a few MB at a time; a matrix is passed over several times."""
    step = max(1, (1 << 20) // shard.row_size)
    for block in blocks(read, file, shard, element):
        table = block.bits.reshape(block.rows, shard.row_size)
        for first in range(0, block.rows, step):
            part = as_floats(table[first : first + step], element)
            yield block.first_row + first, part.astype(np.float64)


def _all_squares(
    tables: Callable[[], _Tables], rows: int, columns: int
) -> tuple[NDArray[np.float64], float] | None:
    """Eigenvalues of AᵀA or AAᵀ, whichever is smaller."""
    if columns <= rows:
        gram = np.zeros((columns, columns))
        for _, table in tables():
            gram += table.T @ table
    else:
        held = np.empty((rows, columns), np.float32)
        for first, table in tables():
            held[first : first + len(table)] = table
        gram = np.zeros((rows, rows))
        for first in range(0, columns, 4096):
            wide = held[:, first : first + 4096].astype(np.float64)
            gram += wide @ wide.T
    if not np.isfinite(gram).all():
        return None
    # Rounding makes some eigenvalues of a rank-deficient matrix slightly negative.
    squares = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)
    return squares, float(squares.sum())


def _largest_squares(
    tables: Callable[[], _Tables], rows: int, columns: int
) -> tuple[NDArray[np.float64], float] | None:
    """Randomised: a Gaussian sample of the range, sharpened by one power step, then projected."""
    width = KEPT + _OVERSAMPLED
    probe = np.random.default_rng(0).standard_normal((columns, width))
    total = 0.0
    for _ in range(2):
        image = np.empty((rows, width))
        total = 0.0
        for first, table in tables():
            image[first : first + len(table)] = table @ probe
            total += float(np.vdot(table, table))
        if not math.isfinite(total):
            return None
        # Made orthogonal after each pass: otherwise all columns would turn to the largest one.
        basis = np.linalg.qr(image)[0]
        probe = np.zeros((columns, width))
        for first, table in tables():
            probe += table.T @ basis[first : first + len(table)]
        probe, triangle = np.linalg.qr(probe)
    values = np.linalg.svd(triangle, compute_uv=False)
    return values[:KEPT] ** 2, total


def _summary(squares: NDArray[np.float64], total: float, exact: bool, rank: int) -> Spectrum:
    shares = squares / total
    positive = shares[shares > 0]
    carried = np.flatnonzero(np.cumsum(shares) >= 0.9)
    return Spectrum(
        exact,
        rank,
        float(np.exp(-(positive * np.log(positive)).sum())) if exact else math.nan,
        float(total / squares[0]),
        int(carried[0]) + 1 if len(carried) else None,
        _tail(squares[squares > 0], rank),
        np.sqrt(squares[:KEPT]).tolist(),
    )


def _tail(squares: NDArray[np.float64], rank: int) -> float:
    """Hill's estimator over the upper half (at most what is known): 1 + k / Σ ln(λ_i / λ_k)."""
    upper = squares[: max(1, min(len(squares), rank // 2))]
    if len(upper) < 8:
        return math.nan
    logs = np.log(upper / upper[-1]).sum()
    return float(1.0 + len(upper) / logs) if logs > 0 else math.inf
