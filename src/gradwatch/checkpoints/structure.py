"""Rows and columns of a matrix: their size, which of them are dead, which are copies.

Small tensors are looked at whole. Of large ones the sizes of rows come from 32 columns and the
sizes of columns from 64 rows, both evenly spread; which rows and columns are dead is exact.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.blocks import Block
from gradwatch.checkpoints.elements import Element, as_floats
from gradwatch.checkpoints.limits import (
    COLUMNS_LOOKED_AT,
    ROWS_LOOKED_AT,
    SAMPLED_GROUPS,
    SAMPLED_ROWS,
    WHOLE_BYTES,
)

_GROUP = 16


@dataclass(slots=True)
class StructurePart:
    """What was found in some rows; parts of a tensor join."""

    rows: NDArray[np.int64]
    """Numbers of the rows looked at."""
    row_rms: NDArray[np.float64]
    row_prints: NDArray[np.uint64]
    """Equal rows have equal ones."""
    column_squares: NDArray[np.float64]
    column_rows: int
    column_alive: NDArray[np.bool_]
    exact: bool


class Structure:
    """Gathers a `StructurePart` block by block."""

    def __init__(self, rows: int, columns: int, element: Element) -> None:
        self.element, self.columns = element, columns
        self.exact = rows * columns * element.size <= WHOLE_BYTES
        if columns <= _GROUP * SAMPLED_GROUPS:
            self.exact = True
        if self.exact:
            self.groups = [slice(0, columns)]
            self.sampled_rows = np.arange(rows)
        else:
            starts = _spread(columns - _GROUP + 1, SAMPLED_GROUPS)
            self.groups = [slice(int(start), int(start) + _GROUP) for start in starts]
            self.sampled_rows = _spread(rows, SAMPLED_ROWS)
        width = sum(group.stop - group.start for group in self.groups)
        weights = np.random.default_rng(0).integers(1, 1 << 62, width, np.uint64)
        self.weights = weights * np.uint64(2) + np.uint64(1)
        self.found: list[tuple[int, NDArray[np.float64], NDArray[np.uint64]]] = []
        self.squares = np.zeros(columns)
        self.rows_used = 0
        self.alive = np.zeros(columns, bool)

    @classmethod
    def of(cls, shape: tuple[int, ...], element: Element) -> "Structure | None":
        """None where there is too much or too little to look at."""
        rows, columns = shape[0], math.prod(shape[1:])
        if not 2 <= rows <= ROWS_LOOKED_AT or not 2 <= columns <= COLUMNS_LOOKED_AT:
            return None
        return cls(rows, columns, element)

    def look(self, block: Block, start: int) -> None:
        """`start` is the number of the piece's first row."""
        table = block.bits.reshape(block.lines, self.columns)
        first = start + block.first_line
        self._rows(table, first)
        self._columns(table, first)

    def _rows(self, table: NDArray[np.generic], first: int) -> None:
        picked = np.concatenate([table[:, group] for group in self.groups], axis=1)
        bits = picked.view(f"u{picked.dtype.itemsize}").astype(np.uint64)
        squares = _squares(as_floats(picked, self.element))
        rms = np.sqrt(squares.mean(axis=1)).astype(np.float64)
        self.found.append((first, rms, np.einsum("ij,j->i", bits, self.weights)))

    def _columns(self, table: NDArray[np.generic], first: int) -> None:
        begin, end = np.searchsorted(self.sampled_rows, [first, first + len(table)])
        if end > begin:
            picked = table if self.exact else table[self.sampled_rows[begin:end] - first]
            values = as_floats(picked, self.element)
            squares = _squares(values).sum(axis=0)
            self.squares += squares
            self.rows_used += len(picked)
            # Where squares vanish although the elements do not, the exact look below decides.
            self.alive |= (values != 0).any(axis=0) if self.exact else squares > 0
        quiet = np.flatnonzero(~self.alive)
        if len(quiet) and not self.exact:
            for group in np.array_split(quiet, -(-len(quiet) // 1024)):
                rest = as_floats(np.ascontiguousarray(table[:, group]), self.element)
                self.alive[group] = (rest != 0).any(axis=0)

    def part(self) -> StructurePart:
        numbers = [np.arange(first, first + len(rms)) for first, rms, _ in self.found]
        return StructurePart(
            np.concatenate([np.empty(0, np.int64), *numbers]),
            np.concatenate([np.empty(0), *(rms for _, rms, _ in self.found)]),
            np.concatenate([np.empty(0, np.uint64), *(p for _, _, p in self.found)]),
            self.squares,
            self.rows_used,
            self.alive,
            self.exact,
        )


def _spread(size: int, wanted: int) -> NDArray[np.int64]:
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
