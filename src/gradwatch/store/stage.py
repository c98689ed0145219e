"""The thread's side of the queue: whole records in one stretch of memory, ready for one write."""

import time
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradwatch.run.event import Event, EventKind
from gradwatch.store.bodies import STEP_HEAD, pack_event, pack_scalars
from gradwatch.store.queue import Lost, Queue, Scalar, Side
from gradwatch.store.records import (
    BODY_LIMIT,
    HEAD_BYTES,
    WIDE,
    Head,
    Type,
    pack,
    pack_head,
    padded,
)

STAGE_BYTES = 4 << 20
_BREATH = 0.0002
"""A pause between two pieces of work, so that the training gets the interpreter back."""


class Stage:
    """Takes records out of the queue and keeps them until they are known to be written."""

    def __init__(
        self, queue: Queue, wide: bool, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._queue = queue
        self._buffer: NDArray[np.uint8] = np.empty(STAGE_BYTES, np.uint8)
        self._flags = WIDE if wide else 0
        self._pause = pause
        self.seq = 0
        self.size = 0
        self.records = 0
        """Calls whose data are in the stage: what an acknowledgement is worth."""
        self.steps = 0

    @property
    def data(self) -> memoryview:
        return self._buffer.data[: self.size]

    def fill(self) -> bool:
        """Take what waits, as far as it fits; whether there is anything to write."""
        lost = self._queue.take_lost()
        if lost:
            self._append(Type.EVENT, 0, lost.first_step, 0, pack_event(_gap(lost)))
        self._take_side()
        while self._take_rows():
            if self.records % 32 == 0:
                self._pause(_BREATH)
        return self.size > 0

    def add(self, type_: Type, body: bytes, family: int = 0, step: int = 0, rows: int = 0) -> None:
        """A record of the writer's own, such as the schema or the close."""
        self._append(type_, family, step, rows, body)

    def clear(self) -> None:
        """Forget what is written."""
        self.size = self.records = self.steps = 0

    def _take_side(self) -> None:
        queue = self._queue
        scalars: list[Scalar] = []
        while queue.side and self.size < STAGE_BYTES // 2:
            with queue.lock:
                item = queue.side.popleft()
            self.records += 1
            if isinstance(item, Scalar):
                scalars.append(item)
                if len(scalars) == 256:
                    self._put_scalars(scalars)
                continue
            self._put_side(item, self._same_histograms(item))
        self._put_scalars(scalars)

    def _same_histograms(self, item: Side) -> list[Side]:
        """Histograms of the same family and step that wait behind this one: they share a record."""
        found: list[Side] = []
        queue = self._queue
        while item.type == Type.HIST and queue.side and len(found) < 64:
            with queue.lock:
                behind = queue.side[0]
                if isinstance(behind, Scalar) or behind[:3] != item[:3]:
                    break
                queue.side.popleft()
            found.append(behind)
        self.records += len(found)
        return found

    def _put_side(self, item: Side, more: list[Side]) -> None:
        try:
            body = item.pack() + b"".join(other.pack() for other in more)
        except (ValueError, TypeError, MemoryError, RecursionError):
            return  # what cannot be packed must not stop the rest
        self._append(item.type, item.family, item.step, item.rows + len(more), body)
        self._pause(_BREATH)

    def _put_scalars(self, scalars: list[Scalar]) -> None:
        if scalars:
            body = pack_scalars(scalars)
            self._append(Type.SCALARS, 0, scalars[0].step, len(scalars), body)
            scalars.clear()
            self._pause(_BREATH)

    def _take_rows(self) -> bool:
        queue, ring = self._queue, self._queue.ring
        with queue.lock:
            if not ring.slots or self.size + ring.slots[0].length > len(self._buffer):
                return False
            slot = ring.pop()
            at, end = self.size, self.size + slot.length
            self._buffer[at:end] = ring.buffer[slot.offset : slot.offset + slot.length]
        body = self._buffer.data[at + HEAD_BYTES : end]
        length = _step_length(body)
        self._buffer[at + HEAD_BYTES + length : end] = 0
        self._head(Type.STEP, slot.family, slot.step, slot.rows, at, length)
        self.size = end
        self.records += 1
        self.steps += 1
        return True

    def _append(self, type_: int, family: int, step: int, rows: int, body: bytes) -> None:
        if len(body) > BODY_LIMIT:
            return
        record = pack(
            Head(type_, family, 0, self._flags, self._take_seq(), step, len(body), rows), body
        )
        if self.size + len(record) > len(self._buffer):
            grown = np.empty(self.size + len(record), np.uint8)
            grown[: self.size] = self._buffer[: self.size]
            self._buffer = grown
        self._buffer[self.size : self.size + len(record)] = np.frombuffer(record, np.uint8)
        self.size += len(record)

    def _head(self, type_: int, family: int, step: int, rows: int, at: int, length: int) -> None:
        body = self._buffer[at + HEAD_BYTES : at + HEAD_BYTES + length]
        head = Head(type_, family, 0, self._flags, self._take_seq(), step, length, rows)
        raw = pack_head(head, zlib.crc32(body.data))
        self._buffer[at : at + HEAD_BYTES] = np.frombuffer(raw, np.uint8)

    def _take_seq(self) -> int:
        self.seq += 1
        return self.seq - 1


def _step_length(body: memoryview) -> int:
    count, width = STEP_HEAD.unpack_from(body)
    return int(STEP_HEAD.size + padded(5 * count) + count * width)


def _gap(lost: Lost) -> Event:
    return Event(
        lost.first_step,
        EventKind.GAP,
        f"The disk did not keep up: {lost.records} records of steps {lost.first_step} to "
        f"{lost.last_step} were given up.",
        data=lost._asdict(),
        wall=time.time(),
    )
