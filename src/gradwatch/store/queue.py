"""What waits for the writer thread: rows in a preallocated ring, all else in a short list."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.format import HEAD_BYTES, STEP_HEAD, padded


class Slot(NamedTuple):
    """One record waiting in the ring."""

    offset: int
    length: int
    family: int
    step: int
    rows: int


class Ring:
    """Contiguous slots in one buffer; a full ring gives up its oldest step. Has no lock itself."""

    def __init__(self, size: int) -> None:
        self.buffer: NDArray[np.uint8] = np.empty(size, np.uint8)
        self.size = size
        self.slots: deque[Slot] = deque()
        self.used = 0
        self._next = 0

    def reserve(self, length: int) -> int:
        """Where `length` bytes fit right now, or −1."""
        if not self.slots:
            self._next = 0
            return 0 if length <= self.size else -1
        # What is free is behind the newest slot and before the oldest, or, once the newest has
        # come round, the stretch between them. A slot is never split.
        oldest = self.slots[0].offset
        if self._next > oldest:
            # Round early where the front has ample room: memory never touched is never taken.
            if self._next + length <= self.size and oldest < 2 * (self.used + length):
                return self._next
            return 0 if length <= oldest else -1
        return self._next if self._next + length <= oldest else -1

    def add(self, slot: Slot) -> None:
        """Take a slot into use, after its bytes were copied to `slot.offset`."""
        self.slots.append(slot)
        self._next = slot.offset + slot.length
        self.used += slot.length

    def pop(self) -> Slot:
        """Give back the oldest slot; its bytes stay valid until the next `add`."""
        slot = self.slots.popleft()
        self.used -= slot.length
        return slot

    def drop_oldest_step(self) -> list[Slot]:
        """Give up every leading slot of the oldest step."""
        step = self.slots[0].step
        dropped = []
        while self.slots and self.slots[0].step == step:
            dropped.append(self.pop())
        return dropped


SMALL_LIMIT = 1 << 16
SLOT_LIMIT = 2 << 20
SLOT_ROWS = 1 << 14
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
    """Shared by training and thread, under one lock that is held for a copy, never for a file."""

    def __init__(self, ring_bytes: int) -> None:
        self.ring = Ring(ring_bytes)
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
        """Copy the rows of one family on one step into the ring."""
        count, width = len(rows), rows.dtype.itemsize
        fixed = STEP_HEAD.size + padded(5 * count)
        total = padded(HEAD_BYTES + fixed + count * width)
        if (total > SLOT_LIMIT or count > SLOT_ROWS) and count > 1:
            half = count // 2
            self.rows(family, step, ids[:half], rows[:half], states[:half])
            self.rows(family, step, ids[half:], rows[half:], states[half:])
            return
        # In few large pieces: the training waits for every one of them.
        front = STEP_HEAD.pack(count, width) + ids.tobytes() + states.tobytes()
        with self.lock:
            at = self._room(total)
            if at < 0:
                return
            buffer, begin = self.ring.buffer, at + HEAD_BYTES
            buffer.data[begin : begin + len(front)] = front
            begin += fixed
            buffer[begin : begin + count * width] = rows.view(np.uint8)
            self.ring.add(Slot(at, total, family, step, count))
            self.accepted += 1

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
        ring = self.ring
        # Without the lock, on every step: a wrong answer costs one interval at most.
        return len(ring.slots) >= 64 or ring.used * 4 > ring.size or len(self.small) >= 4096

    def _room(self, total: int) -> int:
        at = self.ring.reserve(total)
        while at < 0 and self.ring.slots:
            for slot in self.ring.drop_oldest_step():
                self._count_lost(slot.step)
            at = self.ring.reserve(total)
        if at < 0:  # larger than the whole ring
            self.accepted += 1
            self._count_lost(0)
        return at

    def _count_lost(self, step: int) -> None:
        self.dropped += 1
        lost = self._lost or LostRecords(0, step, step)
        self._lost = LostRecords(
            lost.records + 1, min(lost.first_step, step), max(lost.last_step, step)
        )
