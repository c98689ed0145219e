"""Sealing: a finished journal becomes a column file; small records and levels are kept beside.

Order is what makes it safe: first the small records and the levels (appended, synced), then the
column file (written beside, synced, renamed), and only then the journal goes. A kill in between
leaves things twice, never not at all, and the reader knows each record by its number.
"""

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwatch.stats import Family
from gradwatch.store.columns import (
    ENTRY,
    BlockHead,
    block_record,
    column_record,
    directory_record,
    row_columns,
)
from gradwatch.store.journal import Journal, sync_folder
from gradwatch.store.journal_reading import JournalBlock, JournalFile
from gradwatch.store.level_writer import LevelWriter, Table
from gradwatch.store.planes import Buffer
from gradwatch.store.records import (
    FAMILY_CODES,
    PACKED,
    Found,
    Head,
    Type,
    pack,
)
from gradwatch.store.retention import Retention, SealedRange

CHUNK_ROWS = 1 << 19
"""Rows of one block at most: 4 MB in a 64-bit column."""
SIDE_FILE_BYTES = 8 << 20


@dataclass
class _Progress:
    """How far the sealing of one journal came, so that a retry repeats nothing that is appended."""

    number: int
    side_done: bool = False
    levels_done: bool = False


class Sealer:
    """Belongs to the writer's thread; `breathe` is called between small pieces of work."""

    def __init__(
        self, folder: Path, wide: bool, retention: Retention | None, breathe: Callable[[], None]
    ) -> None:
        self.folder = folder
        self._wide = wide
        self._breathe = breathe
        self._levels = LevelWriter(folder, wide, breathe)
        self._retention = retention
        self._side: Journal | None = None
        self._side_number = 0
        self._progress = _Progress(0)

    def seal(self, journal: Path, number: int) -> list[SealedRange]:
        """Turn journal `number` into its sealed form; the files retention may take now."""
        if self._progress.number != number:
            self._progress = _Progress(number)
        reading = JournalFile(journal, self._breathe)
        others = reading.refresh()
        blocks = reading.blocks()
        tables = [(block, *block.table(self._breathe)) for block in blocks]
        if not self._progress.side_done:
            self._keep_side([found for found in others if found.head.type != Type.HIST])
            self._progress.side_done = True
        if not self._progress.levels_done:
            self._levels.add(tables)
            self._progress.levels_done = True
        histograms = [found for found in others if found.head.type == Type.HIST]
        if blocks or histograms:
            self._write_columns(number, tables, histograms)
        journal.unlink(missing_ok=True)
        if not self._retention:
            return []
        return self._retain(number, blocks, [found.head.seq for found in histograms])

    def close(self) -> None:
        """Let go of the files."""
        self._levels.close()
        if self._side:
            self._side.close()

    # -- small records ---------------------------------------------------------------------------

    def _keep_side(self, others: list[Found]) -> None:
        records = [pack(f.head, bytes(f.body)) for f in others if f.body is not None]
        if not records:
            return
        if self._side and self._side.size > SIDE_FILE_BYTES:
            self._side.close()
            self._side = None
        if self._side is None:
            self._side_number += 1
            self._side = Journal(self.folder / f"x{self._side_number:05d}.gwx")
        try:
            self._side.append(b"".join(records))
            self._side.sync()
        except OSError:
            self._side = None
            raise

    # -- columns ---------------------------------------------------------------------------------

    def _write_columns(self, number: int, tables: list[Table], histograms: list[Found]) -> None:
        target = self.folder / f"s{number:05d}.gws"
        beside = self.folder / f"s{number:05d}.part"
        with contextlib.suppress(OSError):
            beside.unlink()
        out = Journal(beside)
        try:
            directory = _Directory()
            for record in self._column_records(tables):
                directory.add(record, out.size)
                for part in record.parts:
                    out.append(part)
                    self._breathe()
            for found in histograms:
                if found.body is not None:
                    record = _packed_histogram(found)
                    directory.add(record, out.size)
                    out.append(record.parts[0])
                    self._breathe()
            out.append(directory.record(out.size))
            out.sync()
            out.close()
            os.rename(beside, target)
        except BaseException:
            out.close()
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        sync_folder(self.folder)

    def _column_records(self, tables: list[Table]) -> Iterator["_Record"]:
        for block, rows, states in tables:
            size = max(1, CHUNK_ROWS // max(1, len(block.ids)))
            for at in range(0, len(block.steps), size):
                part = slice(at, at + size)
                head = BlockHead(
                    block.steps[part], block.seqs[part], block.ids, np.empty(0, np.uint32)
                )
                count = 1 + len(rows.dtype.names or ())
                record = block_record(block.family, 0, head, count)
                yield _Record.of([record], block.family, head, Type.BLOCK)
                for column in row_columns(rows[part], states[part]):
                    parts = column_record(block.family, 0, head, column, self._wide)
                    name, place = column.name, int(column.part)
                    yield _Record.of(parts, block.family, head, Type.COLUMN, name, place)

    # -- retention -------------------------------------------------------------------------------

    def _retain(
        self, number: int, blocks: list[JournalBlock], others: list[int]
    ) -> list[SealedRange]:
        assert self._retention is not None
        if blocks:
            steps = np.concatenate([block.steps for block in blocks])
            seqs = np.concatenate([*(b.seqs for b in blocks), np.array(others, np.uint64)])
            path = self.folder / f"s{number:05d}.gws"
            self._retention.sealed(
                SealedRange(path, int(steps.max()), int(seqs.min()), int(seqs.max()))
            )
        return self._retention.due(self._levels)

    def delete(self, files: list[SealedRange]) -> None:
        """Take away what was due."""
        if self._retention:
            self._retention.delete(files, self._levels)


@dataclass(frozen=True)
class _Record:
    """A record in pieces, with what the directory says about it."""

    parts: list[Buffer]
    key: int
    first: int
    last: int
    family: int
    name: str
    type: int
    part: int

    @classmethod
    def of(
        cls,
        parts: list[Buffer],
        family: Family,
        head: BlockHead,
        type_: Type,
        name: str = "",
        part: int = 0,
    ) -> "_Record":
        first, last = int(head.steps.min()), int(head.steps.max())
        code, key = FAMILY_CODES[family], int(head.seqs[0])
        return cls(parts, key, first, last, code, name, int(type_), part)


class _Directory:
    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._names: dict[str, int] = {"": 0}

    def add(self, record: _Record, offset: int) -> None:
        number = self._names.setdefault(record.name, len(self._names))
        length = int.from_bytes(record.parts[0][24:28], "little")
        place = offset, record.key, record.first, record.last, length, number
        self._rows.append((*place, record.type, record.family, record.part, 0, 0))

    def record(self, offset: int) -> bytes:
        return directory_record(np.array(self._rows, ENTRY), list(self._names), offset)


def _packed_histogram(found: Found) -> _Record:
    assert found.body is not None
    head = found.head
    body = bytes(found.body)
    if not head.flags & PACKED:
        body = len(body).to_bytes(4, "little") + zlib.compress(body, 1)
    packed = Head(
        head.type,
        head.family,
        head.level,
        head.flags | PACKED,
        head.seq,
        head.step,
        len(body),
        head.rows,
    )
    step, whole = head.step, pack(packed, body)
    return _Record([whole], head.seq, step, step, head.family, "", head.type, 0)
