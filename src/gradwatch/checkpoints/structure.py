"""Rows and columns of a matrix: their size, which of them are dead, which are copies.

Small tensors are looked at whole. Of large ones the sizes of rows come from 32 columns and the
sizes of columns from 64 rows, both evenly spread; which rows and columns are dead is exact.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints import limits
from gradwatch.checkpoints.blocks import TensorBlock
from gradwatch.checkpoints.elements import Element, as_floats
from gradwatch.checkpoints.index import Shard, TensorEntry

_GROUP = 16
"""Neighbouring columns share a line of the cache: they are sampled in groups."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Which elements are looked at; the same for all shards of a tensor."""

    exact: bool
    groups: tuple[slice, ...]
    """Columns from which rows are judged."""
    rows: NDArray[np.int64]
    """Rows from which columns are judged, unless all are."""
    weights: NDArray[np.uint64]
    """Odd factors, one for each sampled column: a row's hash is its bits times these."""


@lru_cache(maxsize=2)
def _sampling(rows: int, columns: int, size: int) -> _Sampling:
    small = rows * columns * size <= limits.WHOLE_BYTES
    exact = small or columns <= _GROUP * limits.SAMPLED_GROUPS
    groups, sampled = [slice(0, columns)], np.empty(0, np.int64)
    if not exact:
        starts = evenly_spread(columns - _GROUP + 1, limits.SAMPLED_GROUPS)
        groups = [slice(int(start), int(start) + _GROUP) for start in starts]
        sampled = evenly_spread(rows, limits.SAMPLED_ROWS)
    width = sum(group.stop - group.start for group in groups)
    # A fixed seed: shards are hashed in other processes, and their rows must be comparable.
    weights = np.random.default_rng(0).integers(1, 1 << 62, width, np.uint64)
    odd = weights * np.uint64(2) + np.uint64(1)
    return _Sampling(exact, tuple(groups), sampled, odd)


@dataclass(slots=True)
class Structure:
    """Rows and columns of one shard, gathered block by block."""

    tensor_rows: int
    first_row: int
    """Which row of the tensor is the first one here."""
    element: Element
    row_rms: NDArray[np.float64]
    row_hashes: NDArray[np.uint64]
    """Equal rows have equal ones."""
    column_squares: NDArray[np.float64]
    column_alive: NDArray[np.bool_]
    column_rows: int = 0
    """How many rows `column_squares` are the sum of."""

    @classmethod
    def of(cls, tensor: TensorEntry, shard: Shard) -> "Structure | None":
        """None where there is too much or too little to look at, or rows lie in several blocks."""
        rows, columns = tensor.shape[0], shard.row_size
        if not tensor.whole_rows(shard) or not 2 <= rows <= limits.ROWS_LOOKED_AT:
            return None
        if not 2 <= columns <= min(limits.COLUMNS_LOOKED_AT, limits.BLOCK):
            return None
        return cls(
            rows,
            shard.first_row,
            tensor.element,
            np.zeros(shard.rows),
            np.zeros(shard.rows, np.uint64),
            np.zeros(columns),
            np.zeros(columns, bool),
        )

    @property
    def exact(self) -> bool:
        """Whether every column of a row is looked at, not a sample of them."""
        return self._sampling.exact

    @property
    def _sampling(self) -> _Sampling:
        return _sampling(self.tensor_rows, len(self.column_squares), self.element.size)

    def add(self, block: TensorBlock) -> None:
        """Look at one block of whole rows."""
        table = block.bits.reshape(block.rows, len(self.column_squares))
        self._add_rows(table, slice(block.first_row, block.first_row + block.rows))
        self._add_columns(table, self.first_row + block.first_row)

    def _add_rows(self, table: NDArray[np.generic], rows: slice) -> None:
        sampling = self._sampling
        picked = np.concatenate([table[:, group] for group in sampling.groups], axis=1)
        bits = picked.view(f"u{picked.dtype.itemsize}").astype(np.uint64)
        squares = _squares(as_floats(picked, self.element))
        self.row_rms[rows] = np.sqrt(squares.mean(axis=1))
        self.row_hashes[rows] = np.einsum("ij,j->i", bits, sampling.weights)

    def _add_columns(self, table: NDArray[np.generic], first: int) -> None:
        exact, sampled, alive = self.exact, self._sampling.rows, self.column_alive
        begin, end = np.searchsorted(sampled, [first, first + len(table)])
        if exact or end > begin:
            picked = table if exact else table[sampled[begin:end] - first]
            values = as_floats(picked, self.element)
            squares = _squares(values).sum(axis=0)
            self.column_squares += squares
            self.column_rows += len(picked)
            # Where squares vanish although the elements do not, the exact look below decides.
            alive |= (values != 0).any(axis=0) if exact else squares > 0
        quiet = np.flatnonzero(~alive)
        if len(quiet) and not exact:
            for group in np.array_split(quiet, -(-len(quiet) // 1024)):
                rest = as_floats(np.ascontiguousarray(table[:, group]), self.element)
                alive[group] = (rest != 0).any(axis=0)


def evenly_spread(size: int, wanted: int) -> NDArray[np.int64]:
    """So many of the numbers from 0 to `size`, both ends among them; all where there are fewer."""
    return np.unique(np.linspace(0, size - 1, min(size, wanted)).astype(np.int64))


def _squares(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Squares, in float64 where float32 has no room; what is not finite counts as zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares: NDArray[np.floating] = values * values
    largest = squares.max(initial=0.0)
    if 1e-30 < largest < 1e30:
        return squares
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(values, dtype=np.float64)
    squares[~np.isfinite(squares)] = 0.0
    return squares
