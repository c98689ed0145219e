"""Which rows of which gradients have lately been other than zero."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

WINDOW = 64


class RowMemory:
    """Remembers, for every row (dim 0) of every tensor, the last 64 recorded gradients.

    All rows lie one after another, so that a step costs a few passes over one small array and not a
    few calls per tensor. Bit i of a row's word says whether it was touched i recorded steps ago.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = tuple(rows)
        starts = np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)
        self._marks = np.zeros(int(starts[-1]), np.uint8)
        self._recent = np.zeros(len(self._marks), np.uint64)
        self._ever = np.zeros(len(self._marks), np.uint8)
        self._views = [self._marks[a:b] for a, b in pairwise(starts)]
        self._filled = np.flatnonzero(self.rows)
        self._starts = starts[:-1][self._filled]

    def fresh(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | None]:
        """Cleared marks for the kernel; None for a tensor that has no rows this time."""
        self._marks.fill(0)
        return [
            view if known and known == now else None
            for view, known, now in zip(self._views, self.rows, rows.tolist(), strict=True)
        ]

    def mark(self, index: int, rows: NDArray[np.int64]) -> None:
        """Mark rows of a tensor the kernel could not read."""
        if self.rows[index]:
            self._views[index][rows] = 1

    def remember(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Take the marks in: rows of each tensor untouched in the window, and untouched ever."""
        self._recent <<= np.uint64(1)
        self._recent |= self._marks
        self._ever |= self._marks
        return self._count(self._recent == 0), self._count(self._ever == 0)

    def _count(self, silent: NDArray[np.bool_]) -> NDArray[np.uint64]:
        counts = np.zeros(len(self.rows), np.uint64)
        if len(self._filled):
            counts[self._filled] = np.add.reduceat(silent, self._starts, dtype=np.uint64)
        return counts
