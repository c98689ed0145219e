"""What reading a run may take, whatever its files claim: one budget for all of them.

Memory and time are counted in one coin: the bytes that something takes once it is made, and for
what takes time rather than memory, as many as go with that time. Every run has some, and what is
really stored (the holes of a file are not) buys more. What a run keeps is counted before it is
made; tables of a series are made one by one, so each is held against the budget alone.
"""

import threading
from collections.abc import Hashable

from gradwatch.errors import GradwatchError

MEMORY = 1 << 28
PER_BYTE = 16
CELLS = 1 << 23
CELLS_PER_BYTE = 2
PIECES = 1 << 12
BYTES_PER_PIECE = 1 << 12
STEP, STRETCH, SUBJECT, EVENT, FOLDER = 16, 64, 1 << 12, 1 << 10, 1 << 16
"""What one of them costs."""
JSON = 24
"""What a byte of JSON costs: an empty list is three."""
HOLES = 4
"""Bytes read whole that cost one: they may be nothing but a hole."""


class Budget:
    """Of one run; safe with threads. What is counted again under its name replaces the old count,
    so that a growing run is not charged for the same thing at every look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[Hashable, int] = {}
        self._kept: dict[Hashable, int] = {}
        self.stored = self.kept = 0

    @property
    def room(self) -> int:
        """Bytes of tables that may be held for whoever asks again."""
        return MEMORY + PER_BYTE * self.stored // 4

    def store(self, key: Hashable, size: int) -> None:
        """So much of a run is really on the disk."""
        with self._lock:
            self.stored += size - self._stored.get(key, 0)
            self._stored[key] = size

    def keep(self, key: Hashable, cost: int, claim: str) -> None:
        """Something is going to be made that stays as long as the run is open."""
        with self._lock:
            self.kept += cost - self._kept.get(key, 0)
            self._kept[key] = cost
        if self.kept > (limit := MEMORY + PER_BYTE * self.stored):
            self._refuse(f"{claim}, which with all else takes {_size(self.kept)}", _size(limit))

    def table(self, rows: int, columns: int, what: str, width: int = 1) -> None:
        """Something is going to be made that has so many rows and columns, and is let go again."""
        limit = max(CELLS, CELLS_PER_BYTE * self.stored)
        if (cells := rows * columns * width) > limit:
            claim = f"{rows:,} {what} × {columns:,}, which takes {cells:,} cells"
            self._refuse(claim, f"{limit:,} cells")

    def pieces(self, count: int) -> None:
        """A series is going to be put together from so many pieces."""
        if count > (limit := PIECES + self.stored // BYTES_PER_PIECE):
            self._refuse(f"{count:,} pieces of one series", f"{limit:,}")

    def _refuse(self, claim: str, limit: str) -> None:
        raise GradwatchError(
            f"Expected at most {limit} of a run of {_size(self.stored)}, but it claims {claim}. "
            "It is damaged or was made up, or nearly all of it is empty; record it again."
        )


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
