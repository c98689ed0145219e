"""A full journal on its way to sealed files: rows as columns, histograms as a table.

This runs inside a training, so that its memory matters: no object per record stays, the file is
read in small pieces, and what is large lies in one scratch block that the next journal uses again.
(Fresh memory costs more than all copying: the system must clear it first.)
"""

import mmap
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE, Family, row_dtype
from gradwatch.store.chunks import halved, narrowed
from gradwatch.store.format import (
    FAMILIES,
    HEAD_BYTES,
    PAYLOAD_LIMIT,
    STEP_HEAD,
    RecordScanner,
    StoredRecord,
    Type,
    padded,
)
from gradwatch.store.histograms import HEAD_WORDS, WORD_BYTES, histogram_columns
from gradwatch.store.parquet import Grid

_PIECE_ROWS = 4096
_WINDOW = 1 << 20


class FullJournal(NamedTuple):
    """A journal that waits to be sealed, and the numbers of the first and last record in it."""

    path: Path
    number: int
    first: int
    last: int


class NotWhole(Exception):
    """A journal that no longer holds what was written to it: it stays, and readers report it."""


class Scratch:
    """One block of memory, handed out from its beginning again after each `reset`."""

    def __init__(self) -> None:
        self._block = mmap.mmap(-1, 1)
        self._used = 0

    def reset(self, size: int) -> None:
        """Forget all that was taken; there is room for `size` bytes then."""
        self._used = 0
        if len(self._block) < size:
            self._block = mmap.mmap(-1, size)

    def release(self) -> None:
        """Give the memory back to the system until the next use."""
        self._block = mmap.mmap(-1, 1)

    def take(self, count: int, dtype: Any) -> NDArray[Any]:
        """Room for so many numbers; what is in it is undefined."""
        taken = np.frombuffer(self._block, dtype, count, self._used)
        self._used += padded(taken.nbytes)
        return taken


class Table(NamedTuple):
    """Rows of the same subjects."""

    grid: Grid
    states: NDArray[np.uint8]
    columns: dict[str, NDArray[Any]]
    """Statistics of one number, [step, subject] like the states, rounded as they are stored."""
    sketched: NDArray[np.bool_]
    """[step, subject]: whether there is a sketch."""
    sketches: dict[str, NDArray[np.float32]]
    """Statistics of several numbers, [step, subject, width], of the steps that have any."""


class JournalRows(NamedTuple):
    """The rows of one family, by subjects, and the columns of all of them."""

    tables: list[Table]
    columns: dict[str, NDArray[Any]]


class _Steps:
    """The STEP records of one family and the same subjects."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.offsets = array("q")
        """Where the rows of each record begin in the file."""
        self.states = bytearray()


class Content:
    """What is in a journal; FileNotFoundError if it is gone, NotWhole if records are missing."""

    def __init__(
        self, journal: FullJournal, scratch: Scratch, yield_gil: Callable[[], None]
    ) -> None:
        self._scratch, self._yield_gil = scratch, yield_gil
        self._steps: dict[tuple[Family, bytes], _Steps] = {}
        self._histograms: dict[Family, array[int]] = {}
        """Step, place and length of each record."""
        self.others: list[StoredRecord] = []
        self._path = journal.path
        found = 0
        with _opened(journal.path) as descriptor:
            for begin, record in self._records(descriptor):
                ours = journal.first <= record.head.seq <= journal.last  # the rest is in the next
                if ours and record.payload is not None:
                    found += 1
                    self._take(begin, record, record.payload)
        if found != journal.last - journal.first + 1:
            raise NotWhole(f"{journal.path.name} holds {found} sound records")

    def _records(self, descriptor: int) -> Iterator[tuple[int, StoredRecord]]:
        """The sound records, each with the place of its payload."""
        window, at = bytearray(_WINDOW), 0
        while True:
            got = os.preadv(descriptor, [window], at)
            scanner = RecordScanner(window if got == len(window) else window[:got])
            for number, record in enumerate(scanner):
                if number % 16 == 0:
                    self._yield_gil()
                yield at + record.offset + HEAD_BYTES, record
            if got < len(window):
                return
            if not scanner.end:
                if len(window) > 2 * PAYLOAD_LIMIT:
                    return
                window = bytearray(2 * len(window))
            at += scanner.end

    def _take(self, begin: int, record: StoredRecord, payload: memoryview) -> None:
        head = record.head
        match head.type:
            case Type.STEP:
                count, _ = STEP_HEAD.unpack_from(payload)
                ids_end = STEP_HEAD.size + 4 * count
                key = FAMILIES[head.family], bytes(payload[STEP_HEAD.size : ids_end])
                steps = self._steps.get(key) or self._steps.setdefault(key, _Steps())
                steps.steps.append(head.step)
                steps.offsets.append(begin + STEP_HEAD.size + padded(5 * count))
                steps.states += payload[ids_end : ids_end + count]
            case Type.HIST:
                places = self._histograms.setdefault(FAMILIES[head.family], array("q"))
                places.extend((head.step, begin, len(payload)))
            case _:
                self.others.append(record._replace(payload=memoryview(bytes(payload))))

    def families(self) -> list[Family]:
        """Those with rows."""
        return list(dict.fromkeys(family for family, _ in self._steps))

    def rows(self, family: Family) -> JournalRows:
        """The rows of a family; tables whose rows count later come later.

        They lie in the scratch block, and are gone with the next call.
        """
        found = [(ids, steps) for (of, ids), steps in self._steps.items() if of is family]
        found.sort(key=lambda item: item[1].offsets[-1])
        dtype, total = row_dtype(family), sum(len(steps.states) for _, steps in found)
        piece = _PIECE_ROWS + max(len(ids) // 4 for ids, _ in found)
        self._scratch.reset((total + piece) * dtype.itemsize + 4096)
        raw = self._scratch.take(piece, dtype)
        columns = {
            name: self._scratch.take(total, dtype[name])
            for name in dtype.names or ()
            if not dtype[name].shape
        }
        tables, at = [], 0
        with _opened(self._path) as descriptor:
            for ids, steps in found:
                end = at + len(steps.states)
                shape = len(steps.steps), len(ids) // 4
                own = {name: column[at:end].reshape(shape) for name, column in columns.items()}
                tables.append(self._table(descriptor, raw, ids, steps, own))
                at = end
        return JournalRows(tables, columns)

    def _table(
        self,
        descriptor: int,
        raw: NDArray[np.void],
        ids: bytes,
        steps: _Steps,
        columns: dict[str, NDArray[Any]],
    ) -> Table:
        grid = Grid(np.array(steps.steps, np.int64), np.frombuffer(ids, "<u4"))
        states = np.frombuffer(steps.states, np.uint8).reshape(grid.shape)
        wide = [name for name in raw.dtype.names or () if name not in columns]
        sketched = np.zeros(grid.shape, bool)
        sketches: dict[str, list[NDArray[np.float32]]] = {name: [] for name in wide}
        width = len(grid.ids)
        size = max(1, _PIECE_ROWS // max(1, width))
        for at in range(0, len(grid.steps), size):
            offsets = steps.offsets[at : at + size]
            part = raw[: len(offsets) * width].reshape(len(offsets), width)
            for place, row in zip(offsets, part, strict=True):
                if os.preadv(descriptor, [row.view(np.uint8).data], place) != row.nbytes:
                    raise NotWhole(f"{self._path.name} became shorter")
            self._yield_gil()
            for name, column in columns.items():
                values = part[name]
                column[at : at + size] = narrowed(values) if values.dtype == float else values
            self._yield_gil()
            for name in wide:
                there = HAS_VALUE[states[at : at + size]] & ~np.isnan(part[name]).all(axis=-1)
                sketched[at : at + size] = there
                sketches[name].append(halved(part[name][there.any(axis=1)]))
                self._yield_gil()
        joined = {name: np.concatenate(parts) for name, parts in sketches.items()}
        return Table(grid, states, columns, sketched, joined)

    def histograms(self, family: Family) -> dict[str, Any] | None:
        """The columns of a family's histograms, by subject and then by step."""
        if family not in self._histograms:
            return None
        places = np.array(self._histograms[family], np.int64).reshape(-1, 3)
        ends = np.cumsum(places[:, 2])
        self._scratch.reset(int(ends[-1]))
        raw = self._scratch.take(int(ends[-1]), np.uint8)
        starts, steps = array("q"), array("q")
        halves = raw.data.cast("I")
        at = 0
        with _opened(self._path) as descriptor:
            for number, (step, place, length) in enumerate(places.tolist()):
                if number % 64 == 0:
                    self._yield_gil()
                begin = at * WORD_BYTES
                if os.preadv(descriptor, [raw[begin : begin + length].data], place) != length:
                    raise NotWhole(f"{self._path.name} became shorter")
                end = at + length // WORD_BYTES
                while at < end:
                    starts.append(at)
                    steps.append(step)
                    at += HEAD_WORDS + 2 * halves[2 * at + 2]  # the third in it: how many bins
        words = raw.view("<u8")
        return histogram_columns(words, np.array(starts, np.int64), np.array(steps, np.int64))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
