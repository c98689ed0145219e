"""Rows and columns of a matrix: their size, which of them are dead, which are copies.

Small tensors are looked at whole. Of large ones the sizes of rows come from 64 evenly spread
columns and the sizes of columns from 128 evenly spread rows; whether a column is dead is exact.
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
    SAMPLED_COLUMNS,
    SAMPLED_ROWS,
    WHOLE_BYTES,
)


@dataclass(slots=True)
class StructurePart:
    """What was found in some rows; parts of a tensor join."""

    rows: NDArray[np.int64]
    """Numbers of the rows looked at."""
    row_rms: NDArray[np.float32]
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
        if self.exact:
            self.sampled_columns = np.arange(columns)
            self.sampled_rows = np.arange(rows)
        else:
            self.sampled_columns = _spread(columns, SAMPLED_COLUMNS)
            self.sampled_rows = _spread(rows, SAMPLED_ROWS)
        weights = np.random.default_rng(0).integers(1, 1 << 62, columns, np.uint64)
        self.weights = weights[self.sampled_columns] * np.uint64(2) + np.uint64(1)
        self.found: list[tuple[int, NDArray[np.float32], NDArray[np.uint64]]] = []
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
        picked = table if self.exact else table[:, self.sampled_columns]
        bits = picked.view(f"u{picked.dtype.itemsize}").astype(np.uint64)
        values = as_floats(np.ascontiguousarray(picked), self.element)
        prints = (bits * self.weights).sum(axis=1, dtype=np.uint64)
        self.found.append((first, _rms(values, axis=1), prints))

    def _columns(self, table: NDArray[np.generic], first: int) -> None:
        begin, end = np.searchsorted(self.sampled_rows, [first, first + len(table)])
        picked = table if self.exact else table[self.sampled_rows[begin:end] - first]
        values = as_floats(np.ascontiguousarray(picked), self.element)
        if len(picked):
            self.squares += _rms(values, axis=0).astype(np.float64) ** 2 * len(picked)
            self.rows_used += len(picked)
            self.alive |= (values != 0).any(axis=0)
        quiet = np.flatnonzero(~self.alive)
        if len(quiet) and not self.exact:
            for group in np.array_split(quiet, -(-len(quiet) // 1024)):
                rest = as_floats(np.ascontiguousarray(table[:, group]), self.element)
                self.alive[group] = (rest != 0).any(axis=0)

    def part(self) -> StructurePart:
        numbers = [np.arange(first, first + len(rms)) for first, rms, _ in self.found]
        return StructurePart(
            np.concatenate([np.empty(0, np.int64), *numbers]),
            np.concatenate([np.empty(0, np.float32), *(rms for _, rms, _ in self.found)]),
            np.concatenate([np.empty(0, np.uint64), *(p for _, _, p in self.found)]),
            self.squares,
            self.rows_used,
            self.alive,
            self.exact,
        )


def _spread(size: int, wanted: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, size - 1, min(size, wanted)).astype(np.int64))


def _rms(values: NDArray[np.floating], axis: int) -> NDArray[np.float32]:
    """Root mean square of the finite values; in float64, where squares of float32 have room."""
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = np.sqrt(np.mean(finite**2, axis=axis)).astype(np.float32)
        return found
