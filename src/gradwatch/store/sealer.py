"""Sealing: a finished journal becomes a column file; small records and rollups are kept beside.

Order is what makes it safe: first the small records and the rollups (appended, synced), then the
column file (written beside, synced, renamed), and only then the journal goes. A kill in between
leaves things twice, never not at all, and the reader knows each record by its number.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradwatch.store.column_format import (
    ENTRY,
    Buffer,
    ChunkHead,
    chunk_record,
    column_record,
    directory_record,
    row_columns,
)
from gradwatch.store.format import (
    PACKED,
    Head,
    StoredRecord,
    Type,
    pack,
    unpack_head,
)
from gradwatch.store.journal import Journal, JournalChunk, JournalFile, sync_folder
from gradwatch.store.rollups import ChunkRows, FileRange, Retention, RollupWriter

CHUNK_ROWS = 1 << 19
"""Rows of one chunk at most: 4 MB in a 64-bit column."""
SMALL_FILE_BYTES = 8 << 20


@dataclass
class _Progress:
    """How far the sealing of one journal came, so that a retry repeats nothing that is appended."""

    number: int
    small_done: bool = False
    rollups_done: bool = False


class Sealer:
    """Belongs to the writer's thread; `yield_gil` is called between small pieces of work."""

    def __init__(
        self, folder: Path, retention: Retention | None, yield_gil: Callable[[], None]
    ) -> None:
        self.folder = folder
        self._yield_gil = yield_gil
        self._rollups = RollupWriter(folder, yield_gil)
        self._retention = retention
        self._newest = -(1 << 62)
        self._small: Journal | None = None
        self._small_number = 0
        self._progress = _Progress(0)

    def seal(self, journal: Path, number: int) -> list[FileRange]:
        """Turn journal `number` into its sealed form; the files retention may take now."""
        if self._progress.number != number:
            self._progress = _Progress(number)
        reading = JournalFile(journal, self._yield_gil)
        others = reading.refresh()
        chunks = reading.chunks()
        tables = [self._read_back(chunk) for chunk in chunks]
        if not self._progress.small_done:
            self._keep_small([record for record in others if record.head.type != Type.HIST])
            self._progress.small_done = True
        if not self._progress.rollups_done:
            self._rollups.add(tables)
            self._progress.rollups_done = True
        histograms = [record for record in others if record.head.type == Type.HIST]
        if chunks or histograms:
            self.write_columns(number, tables, histograms)
        journal.unlink(missing_ok=True)  # last: the rows are in place in their new form
        if not self._retention:
            return []
        if chunks:
            self._finished(number, chunks, [record.head.seq for record in histograms])
        return self._rollups.due(self._retention, self._newest)

    def delete(self, files: list[FileRange]) -> None:
        """Delete what was due; the caller has written the event that says so."""
        for file in files:
            with contextlib.suppress(OSError):
                file.path.unlink(missing_ok=True)
        for finished in self._rollups.finished.values():
            finished[:] = [file for file in finished if file not in files]

    def close(self) -> None:
        """Let go of the files."""
        self._rollups.close()
        if self._small:
            self._small.close()

    # -- small records ---------------------------------------------------------------------------

    def _keep_small(self, others: list[StoredRecord]) -> None:
        records = [pack(f.head, bytes(f.payload)) for f in others if f.payload is not None]
        if not records:
            return
        if self._small and self._small.size > SMALL_FILE_BYTES:
            self._small.close()
            self._small = None
        if self._small is None:
            self._small_number += 1
            self._small = Journal(self.folder / f"x{self._small_number:05d}.gwx")
        try:
            self._small.append(b"".join(records))
            self._small.sync()
        except OSError:
            self._small = None
            raise

    # -- columns ---------------------------------------------------------------------------------

    def write_columns(
        self, number: int, tables: list[ChunkRows], histograms: list[StoredRecord]
    ) -> None:
        """Write the sealed file `number` beside, sync it, then rename it into place."""
        target = self.folder / f"s{number:05d}.gws"
        beside = self.folder / f"s{number:05d}.part"
        with contextlib.suppress(OSError):
            beside.unlink()  # an earlier try may have been cut short
        out = Journal(beside)
        try:
            directory = _Directory()
            for parts, steps, name, place in self._records(tables, histograms):
                directory.add(parts[0], out.size, steps, name, place)
                for part in parts:
                    out.append(part)
                    self._yield_gil()
            out.append(directory.record(out.size))
            out.sync()
            out.close()
            beside.rename(target)
        except BaseException:
            out.close()
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        sync_folder(self.folder)

    def _records(
        self, tables: list[ChunkRows], histograms: list[StoredRecord]
    ) -> Iterator[tuple[list[Buffer], NDArray[np.int64], str, int]]:
        """Each record in parts, with its steps and the column it is for the directory."""
        for chunk, rows, states in tables:
            size = max(1, CHUNK_ROWS // max(1, len(chunk.ids)))
            for at in range(0, len(chunk.steps), size):
                part = slice(at, at + size)
                steps = chunk.steps[part]
                head = ChunkHead(steps, chunk.seqs[part], chunk.ids, np.empty(0, np.uint32))
                count = 1 + len(rows.dtype.names or ())
                yield [chunk_record(chunk.family, 0, head, count)], steps, "", 0
                for column in row_columns(rows[part], states[part]):
                    parts = column_record(chunk.family, 0, head, column)
                    yield parts, steps, column.name, int(column.part)
        for histogram in histograms:
            if histogram.payload is not None:
                packed = _packed_histogram(histogram.head, bytes(histogram.payload))
                yield [packed], np.array([histogram.head.step]), "", 0

    def _read_back(self, chunk: JournalChunk) -> ChunkRows:
        rows = chunk.rows(self._yield_gil)
        if rows is None:
            raise OSError("the journal cannot be read back")
        return chunk, rows, chunk.states()

    def _finished(self, number: int, chunks: list[JournalChunk], others: list[int]) -> None:
        """Note how far a sealed file reaches, for retention."""
        last_step = max(int(chunk.steps.max()) for chunk in chunks)
        seqs = np.concatenate([*(chunk.seqs for chunk in chunks), np.array(others, np.uint64)])
        path = self.folder / f"s{number:05d}.gws"
        file = FileRange(path, last_step, int(seqs.min()), int(seqs.max()))
        self._rollups.finished[0].append(file)
        self._newest = max(self._newest, last_step)


class _Directory:
    """Where the records of a sealed file are; what their heads say is taken from those."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._names: dict[str, int] = {"": 0}

    def add(
        self, front: Buffer, offset: int, steps: NDArray[np.int64], name: str, part: int
    ) -> None:
        parsed = unpack_head(front)
        assert parsed is not None
        head, number = parsed[0], self._names.setdefault(name, len(self._names))
        place = offset, head.seq, int(steps.min()), int(steps.max()), head.length, number
        self._rows.append((*place, head.type, head.family, part, 0, 0))

    def record(self, offset: int) -> bytes:
        return directory_record(np.array(self._rows, ENTRY), list(self._names), offset)


def _packed_histogram(head: Head, payload: bytes) -> bytes:
    if not head.flags & PACKED:
        payload = len(payload).to_bytes(4, "little") + zlib.compress(payload, 1)
        head = head._replace(flags=head.flags | PACKED, length=len(payload))
    return pack(head, payload)
