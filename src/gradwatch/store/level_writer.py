"""The files of the coarser levels: appended when buckets are whole, never rewritten."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family
from gradwatch.store.columns import BlockHead, block_record, column_record
from gradwatch.store.journal import Journal
from gradwatch.store.journal_reading import JournalBlock
from gradwatch.store.levels import LEVELS, Rolled, combine, singles
from gradwatch.store.retention import SealedRange

LETTERS = {1: "a", 2: "b", 3: "c"}
LEVEL_FILE_BYTES = 8 << 20
OPEN_BUCKETS = 64
"""Groups of subjects whose open buckets are kept; beyond, the oldest group starts anew."""

HELD_BUCKETS = 16
HELD_BYTES = 4 << 20
"""Whole buckets wait until there are so many, or so large: a block each would be slow to read."""

_Key = tuple[Family, bytes, int]
Table = tuple[JournalBlock, NDArray[np.void], NDArray[np.uint8]]
"""A block with its rows and states [step, subject]."""


class LevelWriter:
    """Keeps the open buckets of every family and group of subjects, and writes the whole ones."""

    def __init__(self, folder: Path, wide: bool, breathe: Callable[[], None]) -> None:
        self._folder = folder
        self._wide = wide
        self._breathe = breathe
        self._open: dict[_Key, Rolled] = {}
        self._held: dict[_Key, Rolled] = {}
        """Whole buckets that are in no file yet."""
        self._files: dict[int, Journal | None] = {}
        self._numbers = dict.fromkeys(LEVELS, 0)
        self.finished: dict[int, list[SealedRange]] = {level: [] for level in LEVELS}
        """Files that are full, oldest first."""
        self._ranges: dict[int, SealedRange] = {}
        self._forgotten = 1 << 63
        """First row that is in no level because its group was given up; it must stay in full."""

    def add(self, tables: Sequence[Table]) -> None:
        """Roll up the rows of a journal; everything is on disk or held, or nothing of it counts."""
        opened, held = dict(self._open), dict(self._held)
        due: list[tuple[_Key, Rolled]] = []
        for block, rows, states in tables:
            head = BlockHead(block.steps, block.seqs, block.ids, np.empty(0, np.uint32))
            rolled = singles(head, rows, states, self._breathe)
            for level in LEVELS:
                key = (block.family, block.ids.tobytes(), level)
                if key in opened:
                    rolled = opened.pop(key).joined(rolled)
                rolled, opened[key] = combine(rolled, self._breathe)
                if not len(rolled.head.sizes):
                    break
                held[key] = held.pop(key).joined(rolled) if key in held else rolled
                if enough(held[key]):
                    due.append((key, held.pop(key)))
        lost = self._forgotten
        while len(opened) > OPEN_BUCKETS * len(LEVELS):
            oldest = next(iter(opened))
            lost = min([lost, *opened.pop(oldest).head.seqs.tolist()])
            if oldest in held:
                due.append((oldest, held.pop(oldest)))
        self._write(due)
        self._open, self._held, self._forgotten = opened, held, lost

    def covered(self, level: int) -> int:
        """The first sequence number of which `level` has nothing on the disk yet."""
        waiting = [
            int(rolled.head.seqs[0])
            for (_, _, of), rolled in (*self._open.items(), *self._held.items())
            if of == level and len(rolled.head.seqs)
        ]
        return min([self._forgotten, *waiting])

    def close(self) -> None:
        """Write what is held, and let go of the files."""
        due, self._held = list(self._held.items()), {}
        try:
            self._write(due)
        finally:
            self._close_files()

    def _close_files(self) -> None:
        for journal in self._files.values():
            if journal:
                journal.close()

    def _write(self, due: list[tuple[_Key, Rolled]]) -> None:
        for level in LEVELS:
            records = [
                (rolled.head, self._packed(family, level, rolled))
                for (family, _, of), rolled in due
                if of == level
            ]
            if records:
                self._append(level, records)

    def _packed(self, family: Family, level: int, rolled: Rolled) -> bytes:
        parts: list[bytes] = []
        for column in rolled.columns():
            parts.append(b"".join(column_record(family, level, rolled.head, column, self._wide)))
            self._breathe()
        columns = b"".join(parts)
        return block_record(family, level, rolled.head, len(parts), len(columns)) + columns

    def _append(self, level: int, records: list[tuple[BlockHead, bytes]]) -> None:
        journal = self._files.get(level)
        if journal is None:
            self._numbers[level] += 1
            path = self._folder / f"{LETTERS[level]}{self._numbers[level]:05d}.gwl"
            journal = self._files[level] = Journal(path)
            self._ranges[level] = SealedRange(path, -(1 << 62), 1 << 63, 0)
        try:
            for _, record in records:
                journal.append(record)
                self._breathe()
            journal.sync()
        except OSError:
            self._files[level] = None
            raise
        steps = max(int(head.steps.max()) for head, _ in records)
        low = min(int(head.seqs.min()) for head, _ in records)
        high = max(int(head.seqs.max()) for head, _ in records)
        known = self._ranges[level]
        self._ranges[level] = SealedRange(
            known.path,
            max(known.last_step, steps),
            min(known.first_seq, low),
            max(known.last_seq, high),
        )
        if journal.size > LEVEL_FILE_BYTES:
            journal.close()
            self._files[level] = None
            self.finished[level].append(self._ranges[level])


def enough(rolled: Rolled) -> bool:
    """Whether buckets that waited are now a block worth writing."""
    size = sum(values.nbytes for values in rolled.table.values())
    return len(rolled.head.sizes) >= HELD_BUCKETS or size >= HELD_BYTES
