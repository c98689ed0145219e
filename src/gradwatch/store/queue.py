"""What waits for the writer's thread: rows in the ring, everything else in a short list."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.bodies import STEP_HEAD
from gradwatch.store.records import HEAD_BYTES, padded
from gradwatch.store.ring import Ring, Slot

SIDE_LIMIT = 1 << 16
SLOT_LIMIT = 2 << 20
"""Rows of one step above this are cut into several records."""


class Side(NamedTuple):
    """A small record: `pack` makes its body in the thread, so that the caller need not."""

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


class Lost(NamedTuple):
    """What a full ring had to give up since the last report."""

    records: int
    first_step: int
    last_step: int


class Queue:
    """Shared by training and thread, under one lock that is held for a copy, never for a file."""

    def __init__(self, ring_bytes: int) -> None:
        self.ring = Ring(ring_bytes)
        self.side: deque[Side | Scalar] = deque()
        self.lock = threading.RLock()  # a model may be collected, and its last logs come, inside it
        self.accepted = 0
        self.dropped = 0
        self._lost: Lost | None = None

    def rows(
        self,
        family: int,
        step: int,
        ids: NDArray[np.uint32],
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
    ) -> None:
        """Copy the rows of one family on one step into the ring."""
        count, width = len(rows), rows.dtype.itemsize
        fixed = STEP_HEAD.size + padded(5 * count)
        total = padded(HEAD_BYTES + fixed + count * width)
        if total > SLOT_LIMIT and count > 1:
            half = count // 2
            self.rows(family, step, ids[:half], rows[:half], states[:half])
            self.rows(family, step, ids[half:], rows[half:], states[half:])
            return
        front = STEP_HEAD.pack(count, width)
        with self.lock:
            at = self._room(total)
            if at < 0:
                return
            buffer = self.ring.buffer
            begin = at + HEAD_BYTES
            buffer[begin : begin + STEP_HEAD.size] = np.frombuffer(front, np.uint8)
            begin += STEP_HEAD.size
            buffer[begin : begin + 4 * count] = ids.view(np.uint8)
            buffer[begin + 4 * count : begin + 5 * count] = states
            begin = at + HEAD_BYTES + fixed
            buffer[begin : begin + count * width] = rows.view(np.uint8)
            self.ring.add(Slot(at, total, family, step, count))
            self.accepted += 1

    def add(self, items: Sequence[Side | Scalar]) -> None:
        """Queue small things; a storm of them gives up the oldest."""
        with self.lock:
            self.side.extend(items)
            self.accepted += len(items)
            while len(self.side) > SIDE_LIMIT:
                self._count_lost(self.side.popleft().step)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.add([Scalar(step, name, float(value)) for name, value in values.items()])

    def refuse(self) -> None:
        """Count something that was never queued."""
        with self.lock:
            self.accepted += 1
            self.dropped += 1

    def take_lost(self) -> Lost | None:
        """What was given up since the last call."""
        with self.lock:
            lost, self._lost = self._lost, None
            return lost

    @property
    def pressing(self) -> bool:
        """Whether the thread should not wait for the interval."""
        ring = self.ring
        return len(ring.slots) >= 64 or ring.used * 4 > ring.size or len(self.side) >= 4096

    def _room(self, total: int) -> int:
        at = self.ring.reserve(total)
        while at < 0 and self.ring.slots:
            for slot in self.ring.drop_oldest_step():
                self._count_lost(slot.step)
            at = self.ring.reserve(total)
        if at < 0:
            self.accepted += 1
            self._count_lost(0)
        return at

    def _count_lost(self, step: int) -> None:
        self.dropped += 1
        lost = self._lost or Lost(0, step, step)
        self._lost = Lost(lost.records + 1, min(lost.first_step, step), max(lost.last_step, step))
