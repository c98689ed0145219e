"""The ring between the training and the writer's thread: preallocated, first in, first out."""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
        oldest = self.slots[0].offset
        if self._next > oldest:
            if self._next + length <= self.size:
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
