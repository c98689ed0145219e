"""One table of a run folder: Arrow record batches in a stream while a part grows, then Parquet.

A growing part is appended to by whole messages, each with its checksum. A finished part is written
beside, synced and renamed, and never changes.
"""

import contextlib
import ctypes
import os
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gradwatch.store.layout import Part, schemas

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
POOL = pa.system_memory_pool()
"""It gives back what it frees. Arrow's own keeps it, and a training's memory would grow."""


class Damaged(Exception):
    """A file of a run does not hold what was written to it."""


# -- writing ---------------------------------------------------------------------------------------


class GrowingFile:
    """A file that grows by whole pieces, by its name below the descriptor of a folder.

    Pieces stay in memory until they are synced: a network file system may take a write and tell
    only at the next sync that it lost it.
    """

    def __init__(self, folder: int, name: str) -> None:
        self._descriptor = os.open(name, _FLAGS, 0o666, dir_fd=folder)
        self.size = self.synced = 0
        self._unsynced: list[bytes | memoryview] = []
        self._doubtful = False
        """Whether the file may hold something else than the pieces beyond what was synced."""

    def append(self, piece: bytes | memoryview) -> None:
        """Write it whole, or raise OSError; a piece of it is cut off before the next."""
        self.restore()
        try:
            _write_all(self._descriptor, piece)
        except OSError:
            self._doubtful = True  # unless what was written of it can be cut off
            os.ftruncate(self._descriptor, self.size)
            self._doubtful = False
            raise
        self._unsynced.append(piece)
        self.size += len(piece)

    def restore(self) -> None:
        """Write again what a failed sync may have lost."""
        if self._doubtful:
            os.ftruncate(self._descriptor, self.synced)
            _write_all(self._descriptor, b"".join(self._unsynced))
            self._doubtful = False

    def sync(self) -> None:
        """Ask the disk to keep what was appended."""
        self.restore()
        if self.size > self.synced:
            self._doubtful = True
            os.fsync(self._descriptor)
            self._doubtful, self.synced = False, self.size
            self._unsynced.clear()

    def read(self) -> bytes:
        """All that was appended, as the file has it."""
        self.restore()
        return os.pread(self._descriptor, self.size, 0)

    def close(self) -> None:
        """Let go of the file; whoever needs it on the disk has synced it."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class TableWriter:
    """The growing part of a table, and what is known of its finished ones."""

    def __init__(self, folder: int, table: str) -> None:
        self._folder, self.table, self.schema = folder, table, schemas()[table]
        self._head = self.schema.serialize().to_pybytes()
        self.file: GrowingFile | None = None
        self.part = Part(0, 0, False)
        """The growing part; without rows where there is none."""
        self.since, self.drawn = 0.0, 0
        """When it began, and how many of its rows are in coarse rows."""
        self.finished: dict[Part, float] = {}
        """Parts that do not grow any more, and when each ended."""

    def append(self, batch: pa.RecordBatch, first_step: int) -> None:
        """Write a batch whole, or raise OSError with the part as it was."""
        if self.file is None:
            self._make_folders()
            part = Part(self.part.number + 1, first_step, False)
            self.file = GrowingFile(self._folder, f"{self.table}/{part.name}")
            self.part, self.since, self.drawn = part, time.monotonic(), 0
        piece = _message(batch, self._head)
        self.file.append(piece if self.file.size else self._head + piece)
        rows = self.part.rows + batch.num_rows
        self.part = self.part._replace(bytes=self.file.size, rows=rows)

    def _make_folders(self) -> None:
        for folder in (self.table.partition("/")[0], self.table):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=self._folder)

    @property
    def listed(self) -> list[tuple[int, int, int | None]]:
        """Number, rows and bytes of every part; one that is yet to be finished has no size."""
        parts = [*self.finished, *([self.part] if self.part.rows else [])]
        return [(part.number, part.rows, part.bytes) for part in parts]

    def read(self) -> pa.Table:
        """The growing part as its file has it; Damaged where that is not what was appended."""
        assert self.file is not None
        table, _ = read_stream(pa.py_buffer(self.file.read()), self.schema)
        if table.num_rows != self.part.rows:
            raise Damaged(f"has {table.num_rows} of {self.part.rows} rows")
        return table.combine_chunks(POOL)  # in C++, where the training need not wait for it

    def finish(self, table: pa.Table) -> None:
        """Put Parquet in the place of the growing part; `table` has its rows.

        Killed at any moment, the stream or the whole Parquet file is there, or both.
        """
        raw = parquet(table)
        finished = self.part._replace(finished=True, bytes=len(raw))
        self._make_folders()  # somebody may have taken them away
        write_beside(self._folder, f"{self.table}/{finished.name}", raw)
        with contextlib.suppress(OSError):  # one that stays does not count
            os.unlink(f"{self.table}/{self.part.name}", dir_fd=self._folder)
        self.leave(finished)

    def leave(self, part: Part) -> None:
        """The part does not grow any more, in this form: the next rows go to a new one."""
        assert self.file is not None
        self.file.close()
        self.finished[part] = time.monotonic()
        self.file, self.part = None, Part(part.number, 0, False)


def _message(batch: pa.RecordBatch, head: bytes) -> bytes:
    """The bytes of a batch behind the head of its stream, its checksum in its metadata."""
    sink = pa.BufferOutputStream(POOL)
    writer = pa.ipc.new_stream(sink, batch.schema)
    crc = zlib.crc32(batch.serialize(memory_pool=POOL), zlib.crc32(head))
    writer.write_batch(batch, custom_metadata={"crc": f"{crc:08x}"})
    return bytes(memoryview(sink.getvalue())[len(head) :])


def parquet(table: pa.Table) -> memoryview:
    """A table as a Parquet file of one row group, with page checksums."""
    real = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    encoding = dict.fromkeys(real, "BYTE_STREAM_SPLIT") | {"step": "DELTA_BINARY_PACKED"}
    sink = pa.BufferOutputStream(POOL)
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[name for name in table.schema.names if name not in encoding],
        column_encoding=encoding,
        write_statistics=["step"],
        write_page_checksum=True,
        store_schema=False,
        memory_pool=POOL,
    )
    raw = memoryview(sink.getvalue())
    at = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    # Pages have checksums, the footer has none: before it stands its own, where no reader looks.
    return memoryview(b"".join([raw[:at], zlib.crc32(raw[at:]).to_bytes(4, "little"), raw[at:]]))


def write_beside(folder: int, path: str, data: memoryview) -> None:
    """A whole file: written as `….part`, synced, renamed."""
    beside = f"{path}.part"
    with contextlib.closing(GrowingFile(folder, beside)) as file:
        file.append(data)
        file.sync()
    try:
        os.rename(beside, path, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.stat(path, dir_fd=folder)  # a network file system may do it and answer that it did not


def release_memory() -> None:
    """Give the system back what finishing a part took: a training's memory must not grow by it."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone keeps so much
        ctypes.CDLL(None).malloc_trim(0)


# -- reading ---------------------------------------------------------------------------------------


def read_stream(raw: pa.Buffer, schema: pa.Schema) -> tuple[pa.Table, str]:
    """The whole batches of a stream, and what is wrong with the rest.

    A growing part may end in the middle of a batch, while it is written or after a kill. That is
    nothing wrong: the steps tell whether rows are missing.
    """
    batches: list[pa.RecordBatch] = []
    head, source, at, changed = bytes(schema.serialize()), pa.BufferReader(raw), 0, False
    seed = zlib.crc32(head)
    with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
        reader = pa.ipc.open_stream(source)
        while not changed:
            at = source.tell()
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            crc = f"{zlib.crc32(batch.serialize(memory_pool=POOL), seed):08x}".encode()
            changed = batch.schema != schema or not metadata or metadata.get("crc") != crc
            batches += [] if changed else [batch]
    # A batch that was cut is the last one: none begins behind it.
    if len(raw) > len(head) and bytes(raw[len(head) :][:8]) in bytes(memoryview(raw)[at + 1 :]):
        changed = True
    problem = f"is damaged behind its row {sum(map(len, batches))}" if changed else ""
    return pa.Table.from_batches(batches, schema), problem


def as_numpy(column: pa.ChunkedArray | pa.Array) -> NDArray[Any]:
    """The numbers of a column. Beside a null stands any number: the state says that there is none.

    From its buffers: `to_numpy` and the like import pandas where that is installed.
    """
    dtype = {"double": "f8", "float": "f4"}.get(str(column.type), str(column.type))
    chunks = [chunk for chunk in getattr(column, "chunks", [column]) if len(chunk)]
    parts = [np.frombuffer(c.buffers()[1], dtype)[c.offset : c.offset + len(c)] for c in chunks]
    return np.concatenate([np.empty(0, dtype), *parts])


def _check_footer(file: Any) -> None:
    size = min(file.size(), 1 << 16)  # more than the columns of any table take
    tail = file.read_at(size, file.size() - size)
    at = size - 8 - int.from_bytes(tail[-8:-4], "little")
    if at < 4 or tail[at - 4 : at] != zlib.crc32(tail[at:]).to_bytes(4, "little"):
        raise Damaged("cannot be read: its footer is not what was written")


def read_finished(file: Any, columns: Sequence[str], expected: pa.Schema) -> pa.Table:
    """Some columns of a finished part; Damaged where they are not what was written."""
    try:
        _check_footer(file)
        found = pq.ParquetFile(file, page_checksum_verification=True, memory_map=False)
        table = found.read(list(columns), use_threads=False)
        table.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(f"cannot be read: {' '.join(str(error).split())[:120]}") from None
    for name in columns:
        if name not in table.schema.names or table.field(name).type != expected.field(name).type:
            raise Damaged(f"has no column {name} of the type that was written")
    return table
