"""What waits for the writer thread: rows up to a number of bytes, all else in a short list."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.format import HEAD_BYTES, STEP_HEAD


class Rows(NamedTuple):
    """The rows of one family on one step; the thread packs them."""

    family: int
    step: int
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]
    length: int
    """Bytes of the record they become."""


SMALL_LIMIT = 1 << 16
RECORD_LIMIT = 2 << 20
RECORD_ROWS = 1 << 14
"""Rows of one step above these (bytes, rows) are cut into several records."""


class SmallRecord(NamedTuple):
    """Anything but rows: `pack` makes its payload in the thread, so that the caller need not."""

    type: int
    family: int
    step: int
    rows: int
    pack: Callable[[], bytes]


class Scalar(NamedTuple):
    """One logged number."""

    step: int
    name: str
    value: float


class LostRecords(NamedTuple):
    """What a full ring had to give up since the last report."""

    records: int
    first_step: int
    last_step: int


class Queue:
    """Shared by training and thread, under one lock that is held for a moment, never for a file.

    `size` bytes of rows may wait; a full queue gives up its oldest step.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting: deque[Rows] = deque()
        self.used = 0
        self.small: deque[SmallRecord | Scalar] = deque()
        self.lock = threading.RLock()  # a model may be collected, and its last logs come, inside it
        self.accepted = 0
        self.dropped = 0
        self._lost: LostRecords | None = None

    def rows(
        self,
        family: int,
        step: int,
        ids: NDArray[np.uint32],
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
    ) -> None:
        """Queue the rows of one family on one step; the arrays are the queue's from now on."""
        # Not even copied: after a step's worth of somebody else's work every line of code is cold.
        count = len(rows)
        length = HEAD_BYTES + STEP_HEAD.size + 5 * count + count * rows.dtype.itemsize + 16
        if (length > RECORD_LIMIT or count > RECORD_ROWS) and count > 1:
            half = count // 2
            self.rows(family, step, ids[:half], rows[:half], states[:half])
            self.rows(family, step, ids[half:], rows[half:], states[half:])
            return
        with self.lock:
            self.accepted += 1
            while self.waiting and self.used + length > self.size:
                self._drop_oldest_step()
            if length > self.size:
                self._count_lost(0)
                return
            self.waiting.append(Rows(family, step, ids, rows, states, length))
            self.used += length

    def take_rows(self, room: int) -> Rows | None:
        """The rows that have waited longest; None where there are none, or not so much room."""
        with self.lock:
            if not self.waiting or self.waiting[0].length > room:
                return None
            rows = self.waiting.popleft()
            self.used -= rows.length
            return rows

    def add(self, items: Sequence[SmallRecord | Scalar]) -> None:
        """Queue small things; a storm of them gives up the oldest."""
        with self.lock:
            self.small.extend(items)
            self.accepted += len(items)
            while len(self.small) > SMALL_LIMIT:
                self._count_lost(self.small.popleft().step)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the numbers logged for one step."""
        self.add([Scalar(step, name, float(value)) for name, value in values.items()])

    def refuse(self) -> None:
        """Count something that was never queued."""
        with self.lock:
            self.accepted += 1
            self.dropped += 1

    def take_lost(self) -> LostRecords | None:
        """What was given up since the last call."""
        with self.lock:
            lost, self._lost = self._lost, None
            return lost

    @property
    def pressing(self) -> bool:
        """Whether the thread should not wait for the interval."""
        # Without the lock, on every step: a wrong answer costs one interval at most.
        return len(self.waiting) >= 64 or self.used * 4 > self.size or len(self.small) >= 4096

    def _drop_oldest_step(self) -> None:
        step = self.waiting[0].step
        while self.waiting and self.waiting[0].step == step:
            self.used -= self.waiting.popleft().length
            self._count_lost(step)

    def _count_lost(self, step: int) -> None:
        self.dropped += 1
        lost = self._lost or LostRecords(0, step, step)
        self._lost = LostRecords(
            lost.records + 1, min(lost.first_step, step), max(lost.last_step, step)
        )
