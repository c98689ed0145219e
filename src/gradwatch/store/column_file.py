"""Reading sealed files and rollups: heads and directories first, columns when asked for."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat
from gradwatch.store.chunks import WORST_STATE, Damage, Vanished
from gradwatch.store.column_format import (
    STATE,
    TAIL,
    ChunkHead,
    ColumnPart,
    column_name,
    decode,
    shape_of,
    unpack_chunk,
    unpack_directory,
    unpack_tail,
)
from gradwatch.store.format import (
    FAMILIES,
    HEAD_BYTES,
    MAGIC,
    BadPayload,
    Head,
    StoredRecord,
    Type,
    padded,
    unpack_head,
)
from gradwatch.store.journal import STATS
from gradwatch.store.runs import FileHandle

_WINDOW = 1 << 20
ChunkKey = tuple[int, int, int]
"""Family, level, sequence number of the first row."""


@dataclass(frozen=True)
class ColumnChunk:
    """A chunk of a sealed file or a rollup; every read goes back to the file and checks it."""

    family: Family
    key: ChunkKey
    head: ChunkHead
    places: dict[tuple[str, int], int]
    """Offset of each column by name and part; of a rollup, filled when first needed."""
    file: "ColumnFile"

    @property
    def level(self) -> int:
        """0 for a sealed file's rows; 1, 2, 3 for rollups of 10, 100, 1000 rows."""
        return self.key[1]

    @property
    def steps(self) -> NDArray[np.int64]:
        """The training step of each row, also of the rows inside a rollup's buckets."""
        return self.head.steps

    @property
    def seqs(self) -> NDArray[np.uint64]:
        """The record number of each row."""
        return self.head.seqs

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each column, by the id its writer gave it."""
        return self.head.ids

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many rows each bucket of a rollup has."""
        return self.head.sizes.astype(np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each bucket of a rollup."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lowest and the highest step of each bucket of a rollup."""
        lowest = np.minimum.reduceat(self.steps, self.starts)
        return lowest, np.maximum.reduceat(self.steps, self.starts)

    @property
    def stats(self) -> frozenset[Stat]:
        """The statistics with a column here; of a rollup, this reads its column heads."""
        self.file.list_columns(self)
        return frozenset(STATS[name] for name, _ in self.places if name in STATS)

    @property
    def complete(self) -> bool:
        """Whether every column its head speaks of was found."""
        self.file.list_columns(self)
        return len(self.places) >= self.head.columns

    def states(self, stat: Stat) -> NDArray[np.uint8] | None:
        """A `State` byte for every [step, subject]; None where the column cannot be read."""
        states = self.part(STATE, ColumnPart.VALUE)
        return None if states is None else np.minimum(states, WORST_STATE).astype(np.uint8)

    def column(self, stat: Stat) -> NDArray[Any] | None:
        """One statistic of every [step, subject]; None where it cannot be read."""
        return self.part(str(stat), ColumnPart.VALUE)

    def part(self, name: str, part: ColumnPart) -> NDArray[Any] | None:
        """[step or bucket, subject(, width)], or None where it cannot be read."""
        self.file.list_columns(self)
        offset = self.places.get((name, int(part)))
        payload = None if offset is None else self.file.column(offset)
        if payload is None and not self.file.path.exists():
            raise Vanished  # not damage: retention was faster than we; the caller looks again
        try:
            if payload is None:
                raise BadPayload("it cannot be read or its checksum does not hold")
            stored_name, stored_part, at = column_name(payload)
            flat, _ = decode(payload, at)
            shape = shape_of(STATS.get(name), self.head)
            # The checksum holds, yet a directory may point to another column; and the sizes a head
            # declares are multiplied as Python integers, since forged ones would wrap around.
            same = stored_name == name and stored_part == part
            if not same or flat.size != np.prod(shape, dtype=object):
                raise BadPayload("it is not the column it should be")
        except BadPayload as error:
            first, last = int(self.steps.min()), int(self.steps.max())
            text = f"{name} of steps {first} to {last} is damaged: {error}"
            self.file.note_damage(Damage(text, self.family, first, last))
            return None
        return np.swapaxes(flat.reshape(shape), 0, 1)


class ColumnFile:
    """One file of chunks and columns; a sealed one has a directory, a rollup grows without."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[Damage] = []
        self.end = 0
        """Bytes walked over so far."""
        self.cut = False
        """The last chunk of a rollup was not whole when it was last looked at."""
        self._heads: dict[ChunkKey, ChunkHead] = {}
        self._places: dict[ChunkKey, dict[tuple[str, int], int]] = {}
        self._histograms: list[int] = []
        self._chunks: dict[ChunkKey, ColumnChunk] = {}
        self._by_directory = False
        self._noted: set[str] = set()
        self._unlisted: dict[ChunkKey, tuple[int, int]] = {}
        """Chunks of rollups whose columns were leapt over: where those begin and end."""

    def refresh(self) -> list[StoredRecord]:
        """Look for new chunks; gives back the records of histograms."""
        handle = FileHandle.open(self.path)
        if handle is None:
            return []
        before = len(self._histograms)
        if not self._by_directory:
            self._by_directory = self._read_directory(handle, handle.size)
        if not self._by_directory:
            self.cut = False
            self._walk(handle, handle.size)
        records = [_record(handle, offset) for offset in self._histograms[before:]]
        return [record for record in records if record is not None]

    def chunks(self) -> list[ColumnChunk]:
        """The chunks whose head is sound; columns without one are damage."""
        chunks = []
        for key, head in self._heads.items():
            family = FAMILIES.get(key[0])
            if family is None:
                continue
            places = self._places.setdefault(key, {})
            if len(places) < head.columns and key not in self._unlisted:
                first, last = int(head.steps.min()), int(head.steps.max())
                text = f"columns of {family} from step {first} to {last} are missing"
                self.note_damage(Damage(text, family, first, last))
            if key not in self._chunks:
                self._chunks[key] = ColumnChunk(family, key, head, places, self)
            chunks.append(self._chunks[key])
        return chunks

    def column(self, offset: int) -> memoryview | None:
        """The payload of the COLUMN record at `offset`, if it is sound.

        The file is opened anew each time: thousands of them would exhaust the process's
        descriptors, and a sealed file never changes.
        """
        handle = FileHandle.open(self.path)
        record = None if handle is None else _record(handle, offset)
        return record.payload if record is not None and record.head.type == Type.COLUMN else None

    def list_columns(self, chunk: ColumnChunk) -> None:
        """Walk over the columns of one chunk of a rollup, the first time they are needed."""
        begin, end = self._unlisted.pop(chunk.key, (0, 0))
        handle = FileHandle.open(self.path) if end else None
        if handle is None:
            return
        for head, offset in self._sound_heads(handle, begin, end):
            named = self._column_at(handle, head, offset) if head.type == Type.COLUMN else None
            if named is not None and (head.family, head.level, head.seq) == chunk.key:
                chunk.places[named] = offset

    def note_damage(self, damage: Damage) -> None:
        """Remember damage found while reading, once."""
        if damage.text not in self._noted:
            self._noted.add(damage.text)
            self.damage.append(damage)

    def _read_directory(self, handle: FileHandle, size: int) -> bool:
        """Whether the file has a sound directory. Nothing depends on it: without one the file is
        walked, so that a damaged directory costs time and no rows."""
        if size < TAIL.size:
            return False
        offset = unpack_tail(handle.read(TAIL.size, size - TAIL.size))
        record = None if offset is None or offset >= size else _record(handle, offset)
        if record is None or record.payload is None or record.head.type != Type.DIRECTORY:
            return False
        try:
            entries, names = unpack_directory(record.payload)
        except BadPayload:
            return False
        for place, seq, first, last, _, name, type_, family, part, level, _ in entries.tolist():
            key = (family, level, seq)
            if place >= size:
                return False  # entries taken so far stay: the walk meets them under the same keys
            match type_:
                case Type.CHUNK:
                    self._take_chunk(handle, key, place, first, last)
                case Type.COLUMN:
                    self._places.setdefault(key, {})[names[name], part] = place
                case Type.HIST:
                    self._histograms.append(place)
        return True

    def _walk(self, handle: FileHandle, size: int) -> None:
        """Without a directory: from head to head, past damage; rollups leap from chunk to chunk."""
        while self.end + HEAD_BYTES <= size:
            for head, offset in self._sound_heads(handle, self.end, size):
                key = (head.family, head.level, head.seq)
                self.end = offset + HEAD_BYTES + padded(head.length)
                match head.type:
                    case Type.CHUNK:
                        self._take_chunk(handle, key, offset, head.step, head.step)
                        if self._is_cut(key, size):
                            self._put_back(key, offset)
                            return
                        if self._leapt(handle, key, size):
                            break  # the end moved: start over with heads from there
                    case Type.COLUMN:
                        named = self._column_at(handle, head, offset)
                        if named is not None:
                            self._places.setdefault(key, {})[named] = offset
                    case Type.HIST:
                        self._histograms.append(offset)
            else:
                return

    def _is_cut(self, key: ChunkKey, size: int) -> bool:
        """Whether a rollup's newest chunk is not wholly there: its writer is in the middle of it.

        That is no damage while somebody writes; `FolderIndex` reports it once nobody does.
        """
        head = self._heads.get(key)
        return head is not None and key[1] > 0 and self.end + head.span > size

    def _put_back(self, key: ChunkKey, offset: int) -> None:
        """Not yet: look at this chunk again the next time."""
        del self._heads[key]
        self._chunks.pop(key, None)
        self.end, self.cut = offset, True

    def _leapt(self, handle: FileHandle, key: ChunkKey, size: int) -> bool:
        """Leap over a rollup's columns, if that ends at the end of the file or at a sound head."""
        head = self._heads.get(key)
        if head is None or not head.span or not key[1]:
            return False
        end = self.end + head.span
        if end > size or (end < size and unpack_head(handle.read(HEAD_BYTES, end)) is None):
            return False
        self._unlisted[key] = self.end, end
        self.end = end
        return True

    def _column_at(self, handle: FileHandle, head: Head, offset: int) -> tuple[str, int] | None:
        """Name and part. A sealed file without its directory is not trusted before its checksum is
        tested; of a rollup only the name is read, since its columns are tested when used."""
        payload: memoryview | None
        if head.level:
            payload = memoryview(handle.read(min(head.length, 256), offset + HEAD_BYTES))
        else:
            record = _record(handle, offset)
            payload = record.payload if record else None
        try:
            if payload is None:
                raise BadPayload("its checksum does not hold")
            name, part, _ = column_name(payload)
        except BadPayload as error:
            family = FAMILIES.get(head.family)
            text = f"a column of {family} from step {head.step} is damaged: {error}"
            self.note_damage(Damage(text, family, head.step, head.step))
            return None
        return name, part

    def _sound_heads(self, handle: FileHandle, at: int, size: int) -> Iterator[tuple[Head, int]]:
        """Sound heads from `at` on whose records end within `size`."""
        while at + HEAD_BYTES <= size:
            parsed = unpack_head(handle.read(HEAD_BYTES, at))
            if parsed is None:
                start, at = at, _next_head(handle, at + 1, size)
                # The last bytes of a sealed file are the tail of its directory, no record.
                if at < size or size - start > TAIL.size:
                    text = f"{at - start} bytes of {self.path.name} are no record"
                    self.note_damage(Damage(text))
                continue
            head, _ = parsed
            if at + HEAD_BYTES + head.length > size:
                break
            yield head, at
            at += HEAD_BYTES + padded(head.length)

    def _take_chunk(
        self, handle: FileHandle, key: ChunkKey, offset: int, first: int, last: int
    ) -> None:
        record = _record(handle, offset)
        try:
            if record is None or record.payload is None or record.head.type != Type.CHUNK:
                raise BadPayload("its checksum does not hold")
            self._heads[key] = unpack_chunk(record.payload)
        except BadPayload as error:
            family = FAMILIES.get(key[0])
            text = f"a block of {family} rows from step {first} to {last} is damaged: {error}"
            self.note_damage(Damage(text, family, first, last))


def _record(handle: FileHandle, offset: int) -> StoredRecord | None:
    """The record at `offset`; its payload is None where the checksum does not hold."""
    parsed = unpack_head(handle.read(HEAD_BYTES, offset))
    if parsed is None:
        return None
    head, payload_crc = parsed
    payload = handle.read(head.length, offset + HEAD_BYTES)
    sound = len(payload) == head.length and zlib.crc32(payload) == payload_crc
    return StoredRecord(head, offset, memoryview(payload) if sound else None)


def _next_head(handle: FileHandle, at: int, size: int) -> int:
    """Where the next sound head begins, or the end."""
    while at < size:
        # More than the window by a head, so that one across its edge is seen whole.
        raw = handle.read(_WINDOW + HEAD_BYTES, at)
        place = raw.find(MAGIC)
        while 0 <= place < _WINDOW:
            if unpack_head(raw[place : place + HEAD_BYTES]) is not None:
                return at + place
            place = raw.find(MAGIC, place + 1)
        at += _WINDOW
    return size
