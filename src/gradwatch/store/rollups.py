"""Rollups: ten rows become one bucket that still knows their extremes, ten of those one more.

A `Rollup` of single rows is the start; `combine` makes buckets of ten of whatever it is given, so
that the levels ×10, ×100 and ×1000 are the same function applied again. Their files are appended to
when buckets are whole, and never rewritten.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE, Family
from gradwatch.store.column_format import (
    STATE,
    ChunkHead,
    Column,
    ColumnPart,
    chunk_record,
    column_record,
)
from gradwatch.store.journal import Journal, JournalChunk

FACTOR = 10
LEVELS = (1, 2, 3)
LETTERS = {1: "a", 2: "b", 3: "c"}
"""First letter of the files of each level."""
ROLLUP_FILE_BYTES = 8 << 20
OPEN_BUCKETS = 64
"""Groups of subjects whose open buckets are kept; beyond, the oldest group starts anew."""

HELD_BUCKETS = 16
HELD_BYTES = 4 << 20
"""Whole buckets wait until there are so many, or so large: a chunk each would be slow to read."""

VALUED = "valued"
LAST_ONLY = frozenset({"weight_hash"})
"""Columns of which only the last value means anything."""
_BIG = np.iinfo(np.uint64).max
_NO_VALUE = 255
"""In place of a state, for rows without a value: larger than any of them."""

BucketTable = dict[tuple[str, ColumnPart], NDArray[np.generic]]
"""[bucket, subject] by column and part."""
ChunkRows = tuple[JournalChunk, NDArray[np.void], NDArray[np.uint8]]
"""A chunk with its rows and states [step, subject]."""


@dataclass(frozen=True)
class Rollup:
    """Buckets of rows: [bucket, subject] arrays; steps and seqs in `head` are those of all rows."""

    head: ChunkHead
    table: BucketTable

    def columns(self) -> Iterator[Column]:
        """The buckets as columns of a file, one per statistic and part."""
        for (name, part), values in self.table.items():
            yield Column(name, part, values)

    def slice(self, begin: int, end: int) -> "Rollup":
        """Some of the buckets."""
        edges = np.concatenate([[0], np.cumsum(self.head.sizes)]).astype(int)
        first, last = edges[begin], edges[end]
        head = ChunkHead(
            self.head.steps[first:last],
            self.head.seqs[first:last],
            self.head.ids,
            self.head.sizes[begin:end],
        )
        return Rollup(head, {key: values[begin:end] for key, values in self.table.items()})

    def joined(self, other: "Rollup") -> "Rollup":
        """Two stretches of the same subjects, one after the other."""
        pairs = zip(self.head[:4], other.head[:4], strict=True)
        steps, seqs, ids, sizes = (np.concatenate([mine, theirs]) for mine, theirs in pairs)
        head = ChunkHead(steps, seqs, ids[: len(self.head.ids)], sizes)
        table = {key: np.concatenate([self.table[key], other.table[key]]) for key in self.table}
        return Rollup(head, table)


def single_rows(
    head: ChunkHead,
    rows: NDArray[np.void],
    states: NDArray[np.uint8],
    yield_gil: Callable[[], None],
) -> Rollup:
    """Every row a bucket of its own. Vector columns (sketches) have no extremes and stay behind."""
    valued = HAS_VALUE[states]
    table: BucketTable = {
        (STATE, ColumnPart.VALUE): states,
        (VALUED, ColumnPart.VALUE): np.where(valued, states, _NO_VALUE).astype(np.uint8),
    }
    zero = np.zeros(states.shape, np.uint16)
    for name in rows.dtype.names or ():
        values = rows[name]
        yield_gil()
        if values.ndim > 2:
            continue
        table[name, ColumnPart.LAST] = values
        if name in LAST_ONLY:
            continue
        count, low, high = _single(values, valued)
        table[name, ColumnPart.LOW], table[name, ColumnPart.HIGH] = low, high
        table[name, ColumnPart.COUNT] = count.astype(np.uint16)
        table[name, ColumnPart.LOW_AT] = table[name, ColumnPart.HIGH_AT] = zero
    sizes = np.ones(len(head.steps), np.uint32)
    return Rollup(ChunkHead(head.steps, head.seqs, head.ids, sizes), table)


def _single(
    values: NDArray[np.generic], valued: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.generic], NDArray[np.generic]]:
    """Whether each row counts, and its value as the lowest and as the highest so far."""
    if values.dtype.kind == "u":
        counts = values.astype(np.uint64)
        low = np.where(valued, counts, np.uint64(_BIG))
        return valued, low, np.where(valued, counts, np.uint64(0))
    real = values.astype(np.float64)
    finite = valued & np.isfinite(real)
    extreme = np.where(finite, real, np.nan)
    return finite, extreme, extreme


def combine(rollup: Rollup, yield_gil: Callable[[], None]) -> tuple[Rollup, Rollup]:
    """Full buckets of ten, and what is left over for the next time."""
    count = len(rollup.head.sizes) // FACTOR * FACTOR
    full, rest = rollup.slice(0, count), rollup.slice(count, len(rollup.head.sizes))
    sizes = full.head.sizes.reshape(-1, FACTOR)
    starts = (np.cumsum(sizes, axis=1) - sizes).astype(np.int64)
    table: BucketTable = {}
    for name in dict.fromkeys(name for name, _ in full.table):
        table.update(_combined(name, full.table, starts))
        yield_gil()
    head = ChunkHead(
        full.head.steps,
        full.head.seqs,
        full.head.ids,
        sizes.sum(axis=1).astype(np.uint32),
    )
    return Rollup(head, table), rest


def _combined(
    name: str,
    table: Mapping[tuple[str, ColumnPart], NDArray[np.generic]],
    starts: NDArray[np.int64],
) -> BucketTable:
    def tens(part: ColumnPart) -> NDArray[np.generic]:
        values = table[name, part]
        return values.reshape(-1, FACTOR, *values.shape[1:])

    if (name, ColumnPart.VALUE) in table:
        states = tens(ColumnPart.VALUE)
        if name == STATE:
            return {(name, ColumnPart.VALUE): states[:, -1]}
        return {(name, ColumnPart.VALUE): _last_valued(states)}
    out: BucketTable = {(name, ColumnPart.LAST): tens(ColumnPart.LAST)[:, -1]}
    if (name, ColumnPart.LOW) not in table:
        return out
    low, high = tens(ColumnPart.LOW), tens(ColumnPart.HIGH)
    real = low.dtype.kind == "f"
    low_index = np.argmin(np.where(np.isnan(low), np.inf, low) if real else low, axis=1)
    high_index = np.argmax(np.where(np.isnan(high), -np.inf, high) if real else high, axis=1)
    out[name, ColumnPart.LOW] = _taken(low, low_index)
    out[name, ColumnPart.HIGH] = _taken(high, high_index)
    # A bucket has at most 1000 rows: 16 bits hold their number and the place of one among them.
    out[name, ColumnPart.COUNT] = tens(ColumnPart.COUNT).sum(axis=1, dtype=np.uint16)
    for part, index in ((ColumnPart.LOW_AT, low_index), (ColumnPart.HIGH_AT, high_index)):
        at = starts[:, :, None] + tens(part).astype(np.int64)
        out[name, part] = _taken(at, index).astype(np.uint16)
    return out


def _taken(values: NDArray[np.generic], index: NDArray[np.intp]) -> NDArray[np.generic]:
    return np.take_along_axis(values, index[:, None], axis=1)[:, 0]


def _last_valued(states: NDArray[np.generic]) -> NDArray[np.generic]:
    """Of the states that had a value, the last; 255 where none had."""
    valued = states != _NO_VALUE
    last = FACTOR - 1 - np.argmax(valued[:, ::-1], axis=1)
    picked = np.where(valued.any(axis=1), _taken(states, last), np.uint8(_NO_VALUE))
    return picked.astype(np.uint8)


_GroupKey = tuple[Family, bytes, int]
"""Family, subjects, level."""


@dataclass(frozen=True)
class Retention:
    """How many of the newest steps are kept in full, by tens and by hundreds; off by default.

    Fine files go, oldest first, once a coarser level covers them.
    """

    raw: int = 10_000
    tens: int = 80_000
    hundreds: int = 600_000


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file and how far it reaches."""

    path: Path
    last_step: int
    first_seq: int
    last_seq: int


class RollupWriter:
    """Keeps the open buckets of every family and group of subjects, and writes the whole ones."""

    def __init__(self, folder: Path, yield_gil: Callable[[], None]) -> None:
        self._folder = folder
        self._yield_gil = yield_gil
        self._open: dict[_GroupKey, Rollup] = {}
        self.held: dict[_GroupKey, Rollup] = {}
        """Whole buckets that are in no file yet."""
        self._files: dict[int, Journal | None] = {}
        self._numbers = dict.fromkeys(LEVELS, 0)
        self.finished: dict[int, list[FileRange]] = {level: [] for level in (0, *LEVELS)}
        """Files that nothing is appended to any more, oldest first; level 0 are sealed rows."""
        self._ranges: dict[int, FileRange] = {}
        self._forgotten = 1 << 63
        """First row that is in no rollup because its group was given up; it must stay in full."""

    def add(self, tables: Sequence[ChunkRows]) -> None:
        """Roll up the rows of a journal; everything is on disk or held, or nothing of it counts.

        The open buckets are replaced only after the write: where that fails, the same journal is
        rolled up again later and must meet the same open buckets.
        """
        opened, held = dict(self._open), dict(self.held)
        due: list[tuple[_GroupKey, Rollup]] = []
        for chunk, rows, states in tables:
            head = ChunkHead(chunk.steps, chunk.seqs, chunk.ids, np.empty(0, np.uint32))
            rollup = single_rows(head, rows, states, self._yield_gil)
            for level in LEVELS:
                key = (chunk.family, chunk.ids.tobytes(), level)
                if key in opened:
                    rollup = opened.pop(key).joined(rollup)
                rollup, opened[key] = combine(rollup, self._yield_gil)
                if not len(rollup.head.sizes):
                    break
                held[key] = held.pop(key).joined(rollup) if key in held else rollup
                if enough(held[key]):
                    due.append((key, held.pop(key)))
        lost = self._forgotten
        # Every use takes a group out and puts it back, so the first one is unused for longest.
        while len(opened) > OPEN_BUCKETS * len(LEVELS):
            oldest = next(iter(opened))
            lost = min([lost, *opened.pop(oldest).head.seqs.tolist()])
            if oldest in held:
                due.append((oldest, held.pop(oldest)))
        self.write(due)
        self._open, self.held, self._forgotten = opened, held, lost

    def due(self, keep: Retention, newest: int) -> list[FileRange]:
        """Files that are older than is to be kept and covered by a coarser level, oldest first."""
        due: list[FileRange] = []
        for level, steps in enumerate((keep.raw, keep.tens, keep.hundreds)):
            covered = self._covered(level + 1)
            for file in self.finished[level]:
                if newest - file.last_step < steps or file.last_seq >= covered:
                    break
                due.append(file)
        return due

    def _covered(self, level: int) -> int:
        """The first sequence number of which `level` has nothing on the disk yet."""
        waiting = [
            int(rollup.head.seqs[0])
            for (_, _, of), rollup in (*self._open.items(), *self.held.items())
            if of == level and len(rollup.head.seqs)
        ]
        return min([self._forgotten, *waiting])

    def close(self) -> None:
        """Write what is held, and let go of the files."""
        due, self.held = list(self.held.items()), {}
        try:
            self.write(due)
        finally:
            for journal in self._files.values():
                if journal:
                    journal.close()

    def write(self, due: list[tuple[_GroupKey, Rollup]]) -> None:
        """Append whole buckets to the files of their levels, and sync those."""
        for level in LEVELS:
            records = [
                (rollup.head, self._packed(family, level, rollup))
                for (family, _, of), rollup in due
                if of == level
            ]
            if records:
                self._append(level, records)

    def _packed(self, family: Family, level: int, rollup: Rollup) -> bytes:
        parts: list[bytes] = []
        for column in rollup.columns():
            parts.append(b"".join(column_record(family, level, rollup.head, column)))
            self._yield_gil()
        columns = b"".join(parts)
        return chunk_record(family, level, rollup.head, len(parts), len(columns)) + columns

    def _append(self, level: int, records: list[tuple[ChunkHead, bytes]]) -> None:
        journal = self._files.get(level)
        if journal is None:
            self._numbers[level] += 1
            path = self._folder / f"{LETTERS[level]}{self._numbers[level]:05d}.gwl"
            journal = self._files[level] = Journal(path)
            self._ranges[level] = FileRange(path, -(1 << 62), 1 << 63, 0)
        try:
            for _, record in records:
                journal.append(record)
                self._yield_gil()
            journal.sync()
        except OSError:
            self._files[level] = None  # the journal has closed itself; the next try begins another
            raise
        steps = max(int(head.steps.max()) for head, _ in records)
        low = min(int(head.seqs.min()) for head, _ in records)
        high = max(int(head.seqs.max()) for head, _ in records)
        reach = self._ranges[level]
        self._ranges[level] = FileRange(
            reach.path,
            max(reach.last_step, steps),
            min(reach.first_seq, low),
            max(reach.last_seq, high),
        )
        if journal.size > ROLLUP_FILE_BYTES:
            journal.close()
            self._files[level] = None
            self.finished[level].append(self._ranges[level])


def enough(rollup: Rollup) -> bool:
    """Whether buckets that waited are now a chunk worth writing."""
    size = sum(values.nbytes for values in rollup.table.values())
    return len(rollup.head.sizes) >= HELD_BUCKETS or size >= HELD_BYTES
