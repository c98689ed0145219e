"""Journals: the growing files of a writer, appended to as whole records and read as they grow."""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.files import mode_like
from gradwatch.stats import Family, Stat, family_stats
from gradwatch.store.chunks import STATS, WORST_STATE, Damage, halved, narrowed
from gradwatch.store.format import (
    FAMILIES,
    HEAD_BYTES,
    NO_SEQ,
    STEP_HEAD,
    BadPayload,
    Head,
    RecordScanner,
    StoredRecord,
    Type,
    from_json,
    padded,
)
from gradwatch.store.parquet import RandomAccess, Unreadable
from gradwatch.store.places import Place

# O_EXCL: no two writers ever share a file. O_CLOEXEC: data loaders that are started do not keep it.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""A file system that knows no syncing has not failed."""
_READ_BYTES = 32 << 20
_READ_TOGETHER = 16
"""Records whose rows are held together: of a growing journal only the last ones are read anew."""
_NAME = re.compile(r"journal-([0-9]{5,9})\.gwj")
_DTYPES = {"<f4", "<f8", "<u8"}

Layout = tuple[tuple[str, str, int], ...]
"""Name, type and width of each column of a row."""


# -- writing -------------------------------------------------------------------------------------


class Journal:
    """One append-only file. After an error it is cut back to its last whole record and closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes known to be whole records."""
        self._descriptor = os.open(path, _FLAGS, mode_like(path.parent) & 0o666)

    def append(self, data: memoryview | bytes) -> None:
        """Write all of it, or raise OSError with the file cut back to what it was."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # So that it ends with a whole record; where even that fails, readers stop before it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            self.close()
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Ask the disk to keep it; after a failure the file must not be trusted with more."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno in _CANNOT_SYNC:
                return
            self.close()
            raise

    def holds(self, data: memoryview) -> bool:
        """Whether it ends with this and the disk has it: a network's error may be of any write."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.pread(file.fileno(), len(data), self.size - len(data)) == data
        return False

    @property
    def intact(self) -> bool:
        """Whether the file is still in its folder and as long as we made it."""
        try:
            status = os.fstat(self._descriptor)
            return status.st_nlink > 0 and status.st_size == self.size and self.path.exists()
        except OSError:
            return False

    def close(self) -> None:
        """Give the file descriptor back; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def whereabouts(descriptor: int) -> Path | None:
    """The path of an open folder; None where it is deleted, or the system does not tell."""
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if os.path.samestat(path.stat(), os.fstat(descriptor)):
            return path
    return None


def sync_folder(path: Path) -> None:
    """Make new and renamed names in a folder last; not every file system can, and then we go on."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_beside(target: Path, data: memoryview | bytes) -> None:
    """Write and sync `target` under another name, from which `place_beside` renames it.

    What could not be written wholly is removed: a full disk has no room for it.
    """
    beside = _beside(target)
    beside.unlink(missing_ok=True)  # an earlier try may have been cut short
    out = Journal(beside)
    try:
        out.append(data)
        out.sync()
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    finally:
        out.close()


def place_beside(target: Path) -> None:
    """Put what was written beside into its place, at once and as a whole."""
    _beside(target).replace(target)


def _beside(target: Path) -> Path:
    return target.with_name(target.name + ".part")


# -- reading -------------------------------------------------------------------------------------


def journal_number(name: str) -> int | None:
    """The number of a journal by its file's name; None where it is no journal's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class Schema:
    """How the rows of a family are laid out. Equal only to itself: thousands are looked up."""

    def __init__(self, family: Family, layout: Layout) -> None:
        self.family, self.layout = family, layout
        self.dtype = np.dtype(
            [(name, code) if width == 1 else (name, code, width) for name, code, width in layout]
        )
        self.row_bytes = self.dtype.itemsize


class StepRecord(NamedTuple):
    """One STEP record of a journal: everything but the rows, which stay in the file."""

    seq: int
    step: int
    states: bytes
    offset: int
    length: int


Held = Callable[[Hashable, Callable[[], Any], Callable[[Any], int]], Any]
"""What was read lately by its name: see `ReadCache.get`."""


def directly_read(key: Hashable, read: Callable[[], Any], size: Callable[[Any], int]) -> Any:
    """Nothing is held."""
    return read()


class JournalFile:
    """A journal as far as it has been read; `refresh` reads only new bytes.

    The file stays open for as long as anybody holds its chunks: its writer may unlink it after
    sealing, and the bytes remain readable until the last handle goes.
    """

    def __init__(
        self, place: Place, name: str, yield_gil: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self._yield_gil = yield_gil
        self._steps: dict[tuple[Schema, bytes], list[StepRecord]] = {}
        self.damage: list[Damage] = []
        self.seqs: list[int] = []
        """The numbers of the records that are there, sound or not."""
        self.end = 0
        """Bytes read so far."""
        self._schemas: dict[int, Schema] = {}
        self._handle = place.open(name)

    @property
    def opened(self) -> bool:
        """Whether there was a regular file to open."""
        return self._handle is not None

    def refresh(self) -> list[StoredRecord]:
        """Read on; the records that are not rows are given back, rows are kept here.

        A record that is not whole yet is left for the next time: `end` stays before it.
        """
        others: list[StoredRecord] = []
        while self._handle:
            raw = self._handle.read(_READ_BYTES, self.end)
            scanner = RecordScanner(raw)
            for number, record in enumerate(scanner):
                if number % 16 == 0:
                    self._yield_gil()
                if record.head.seq != NO_SEQ:
                    self.seqs.append(record.head.seq)
                if record.head.type == Type.STEP:
                    self._take_step(record)
                elif record.head.type == Type.SCHEMA:
                    self._take_schema(record)
                else:
                    others.append(record)
            for begin, end in scanner.bad:
                self.damage.append(Damage(f"{end - begin} bytes of {self.name} are no record"))
            self.end += scanner.end
            # A full buffer without one whole record: no writer makes such, and we would never end.
            if len(raw) < _READ_BYTES or not scanner.end:
                break
        return others

    def chunks(self) -> "list[JournalChunk]":
        """The rows read so far, by family and subjects, in the order in which later ones count."""
        handle = self._handle
        if handle is None:
            return []
        chunks = [
            JournalChunk(self.name, schema, np.frombuffer(ids, "<u4"), tuple(records), handle)
            for (schema, ids), records in self._steps.items()
        ]
        return sorted(chunks, key=lambda chunk: chunk.records[-1].seq)

    def _take_schema(self, record: StoredRecord) -> None:
        family = FAMILIES.get(record.head.family)
        if record.payload is None or family is None:
            return  # the built-in layout is used where its size fits
        layout = _layout(bytes(record.payload))
        known = self._schemas.get(record.head.family)
        if layout and not (known and known.layout == layout):
            self._schemas[record.head.family] = Schema(family, layout)

    def _take_step(self, record: StoredRecord) -> None:
        head, payload = record.head, record.payload
        schema = self._schemas.get(head.family)
        if schema is None:
            family = FAMILIES.get(head.family)
            if family is None:
                text = f"{self.name} has rows of an unknown family {head.family}"
                self.damage.append(Damage(text))
                return
            schema = self._schemas[head.family] = Schema(family, built_in(family))
        offset = self.end + record.offset + HEAD_BYTES
        found = payload and _unpack_step(head, payload, offset, schema.row_bytes)
        if not found:
            text = f"the {schema.family} rows of step {head.step} in {self.name} are damaged"
            self.damage.append(Damage(text, schema.family, head.step, head.step))
            return
        ids, step = found
        self._steps.setdefault((schema, ids), []).append(step)


@dataclass(frozen=True)
class JournalChunk:
    """Rows of one family and the same subjects in a journal."""

    file: str
    schema: Schema
    ids: NDArray[np.uint32]
    records: Sequence[StepRecord]
    handle: RandomAccess
    held: Held = directly_read

    @property
    def family(self) -> Family:
        """What the rows are rows of."""
        return self.schema.family

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """The training step of each row."""
        return np.array([record.step for record in self.records], np.int64)

    @property
    def number(self) -> int:
        """That of its journal."""
        return journal_number(self.file) or 0

    @cached_property
    def first_step(self) -> int:
        """The lowest step it has rows of."""
        return int(self.steps.min())

    @cached_property
    def last_step(self) -> int:
        """The highest step it has rows of."""
        return int(self.steps.max())

    @property
    def stats(self) -> frozenset[Stat]:
        """The statistics the rows have a column for; names of a newer version are left out."""
        return frozenset(STATS[name] for name, _, _ in self.schema.layout if name in STATS)

    def states(self, stat: Stat | None = None) -> NDArray[np.uint8]:
        """A `State` byte for every [step, subject], kept in memory since the journal was read."""
        flat = np.frombuffer(b"".join(record.states for record in self.records), np.uint8)
        return np.minimum(flat, WORST_STATE).reshape(len(self.records), len(self.ids))

    def rows(self, yield_gil: Callable[[], None] = lambda: None) -> NDArray[np.void]:
        """All rows [step, subject] as they were put; Unreadable where the file became shorter."""
        out = np.empty((len(self.records), len(self.ids)), self.schema.dtype)
        flat = out.reshape(-1).view(np.uint8)
        at = 0
        for number, record in enumerate(self.records):
            if number % 32 == 0:
                yield_gil()
            raw = self.handle.read(record.length, record.offset)
            if len(raw) != record.length:
                raise Unreadable("it became shorter")
            flat[at : at + record.length] = np.frombuffer(raw, np.uint8)
            at += record.length
        return out

    def column(self, stat: Stat) -> NDArray[Any]:
        """Rounded as sealing will round it, so that reading gives the same before and after."""
        begins = range(0, len(self.records), _READ_TOGETHER)
        return np.concatenate([self._columns(begin)[str(stat)] for begin in begins])

    def _columns(self, begin: int) -> dict[str, NDArray[Any]]:
        """Some records by column: asked for one after another, each would read all rows again."""
        some = replace(self, records=self.records[begin : begin + _READ_TOGETHER])
        key = self.file, self.schema, self.ids.tobytes(), begin, len(some.records)
        found: dict[str, NDArray[Any]] = self.held(key, some._rounded, _nbytes)
        return found

    def _rounded(self) -> dict[str, NDArray[Any]]:
        rows, found = self.rows(), {}
        for name, _, width in self.schema.layout:
            values = np.ascontiguousarray(rows[name])
            if values.dtype == np.float64:
                values = narrowed(values)
            elif width > 1 and values.dtype == np.float32:
                values = halved(values)
            found[name] = values
        return found


def _nbytes(columns: Mapping[str, NDArray[Any]]) -> int:
    return sum(column.nbytes for column in columns.values())


def _unpack_step(
    head: Head, payload: memoryview, offset: int, row_bytes: int
) -> tuple[bytes, StepRecord] | None:
    """The subjects, and where their rows are; None where the lengths do not fit each other."""
    if len(payload) < STEP_HEAD.size:
        return None
    count, width = STEP_HEAD.unpack_from(payload)
    begin = STEP_HEAD.size + padded(5 * count)
    # A width that the layout does not explain would be read as numbers shifted by some bytes.
    if count != head.rows or begin + count * width != len(payload) or width != row_bytes:
        return None
    ids_end = STEP_HEAD.size + 4 * count
    states = bytes(payload[ids_end : ids_end + count])
    step = StepRecord(head.seq, head.step, states, offset + begin, count * width)
    return bytes(payload[STEP_HEAD.size : ids_end]), step


def built_in(family: Family) -> Layout:
    """The columns this version writes."""
    return tuple((str(stat), stat.dtype, stat.width) for stat in family_stats(family))


@lru_cache(maxsize=64)
def _layout(payload: bytes) -> Layout | None:
    try:
        data: Any = from_json(payload)
    except BadPayload:
        return None
    if not isinstance(data, Mapping) or not isinstance(data.get("columns"), list):
        return None
    columns = []
    for item in data["columns"]:
        match item:
            case [str(name), str(code), int(width)] if (
                code in _DTYPES and 0 < width <= 4096 and name
            ):
                columns.append((name, code, width))
            case _:
                return None
    names = {name for name, _, _ in columns}
    return tuple(columns) if columns and len(names) == len(columns) else None
