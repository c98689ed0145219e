"""Reading sealed files and levels: heads and directories first, columns when asked for."""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import Family, Stat
from gradwatch.store.block import WORST_STATE, Damage, Vanished
from gradwatch.store.bodies import BadBody
from gradwatch.store.columns import (
    STATE,
    TAIL,
    BlockHead,
    Part,
    column_name,
    shape_of,
    unpack_block,
    unpack_column,
    unpack_directory,
    unpack_tail,
)
from gradwatch.store.folder import open_regular
from gradwatch.store.journal_reading import STATS, Handle
from gradwatch.store.records import (
    FAMILIES,
    HEAD_BYTES,
    MAGIC,
    Found,
    Head,
    Type,
    padded,
    unpack_head,
)

_WINDOW = 1 << 20
Key = tuple[int, int, int]
"""Family, level, sequence number of the first row."""


@dataclass(frozen=True)
class ColumnBlock:
    """A block of a sealed file or a level; every read goes back to the file and checks it."""

    family: Family
    key: Key
    head: BlockHead
    places: dict[tuple[str, int], int]
    """Offset of each column by name and part; of a level, filled when first needed."""
    file: "ColumnFile"

    @property
    def level(self) -> int:
        return self.key[1]

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.head.steps

    @property
    def seqs(self) -> NDArray[np.uint64]:
        return self.head.seqs

    @cached_property
    def edges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lowest and the highest step of each bucket of a level."""
        sizes = self.head.sizes.astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        return np.minimum.reduceat(self.steps, starts), np.maximum.reduceat(self.steps, starts)

    @property
    def ids(self) -> NDArray[np.uint32]:
        return self.head.ids

    @property
    def stats(self) -> frozenset[Stat]:
        self.file.list_columns(self.key, self.places)
        return frozenset(STATS[name] for name, _ in self.places if name in STATS)

    @property
    def complete(self) -> bool:
        """Whether every column its head speaks of was found."""
        self.file.list_columns(self.key, self.places)
        return len(self.places) >= self.head.columns

    def states(self, stat: Stat) -> NDArray[np.uint8] | None:
        found = self.part(STATE, Part.VALUE)
        return None if found is None else np.minimum(found, WORST_STATE).astype(np.uint8)

    def column(self, stat: Stat) -> NDArray[Any] | None:
        return self.part(str(stat), Part.VALUE)

    def part(self, name: str, part: Part) -> NDArray[Any] | None:
        """[step or bucket, subject(, width)], or None where it cannot be read."""
        self.file.list_columns(self.key, self.places)
        offset = self.places.get((name, int(part)))
        body = None if offset is None else self.file.body(offset, Type.COLUMN)
        if body is None and not self.file.path.exists():
            raise Vanished
        try:
            if body is None:
                raise BadBody("it cannot be read or its checksum does not hold")
            found, kind, flat = unpack_column(body)
            shape = shape_of(STATS.get(name), self.head)
            if found != name or kind != part or flat.size != np.prod(shape, dtype=object):
                raise BadBody("it is not the column it should be")
        except BadBody as error:
            self.file.note_damage(
                Damage(
                    f"{name} of steps {self.steps.min()} to {self.steps.max()} is damaged: {error}",
                    self.family,
                    int(self.steps.min()),
                    int(self.steps.max()),
                )
            )
            return None
        return np.swapaxes(flat.reshape(shape), 0, 1)


@dataclass
class _Listing:
    blocks: dict[Key, BlockHead] = field(default_factory=dict)
    places: dict[Key, dict[tuple[str, int], int]] = field(default_factory=dict)
    histograms: list[int] = field(default_factory=list)


class ColumnFile:
    """One file of blocks and columns; a sealed one has a directory, a level grows without."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damage: list[Damage] = []
        self._listing = _Listing()
        self._made: dict[Key, ColumnBlock] = {}
        self.end = 0
        """Bytes walked over so far."""
        self.cut = False
        """The last block of a level was not whole when it was last looked at."""
        self._listed = False
        self._told: set[str] = set()
        self._unlisted: dict[Key, tuple[int, int]] = {}
        """Blocks of levels whose columns were leapt over: where those begin and end."""

    def refresh(self) -> list[Found]:
        """Look for new blocks; gives back the histograms found."""
        handle = self._open()
        if handle is None:
            return []
        size = os.fstat(handle.descriptor).st_size
        before = len(self._listing.histograms)
        if not self._listed:
            self._listed = self._by_directory(handle, size)
        if not self._listed:
            self.cut = False
            self._by_walking(handle, size)
        found = []
        for offset in self._listing.histograms[before:]:
            parsed = _record(handle, offset)
            if parsed is not None:
                found.append(parsed)
        return found

    def blocks(self) -> list[ColumnBlock]:
        """The blocks whose head is sound; columns without one are damage."""
        made = []
        for key, head in self._listing.blocks.items():
            family = FAMILIES.get(key[0])
            places = self._listing.places.setdefault(key, {})
            if family is not None:
                if len(places) < head.columns and key not in self._unlisted:
                    first, last = int(head.steps.min()), int(head.steps.max())
                    text = f"columns of {family} from step {first} to {last} are missing"
                    self.note_damage(Damage(text, family, first, last))
                if key not in self._made:
                    self._made[key] = ColumnBlock(family, key, head, places, self)
                made.append(self._made[key])
        return made

    def body(self, offset: int, type_: Type) -> memoryview | None:
        """The body of the record at `offset`, if it is sound and of this type."""
        handle = self._open()
        found = None if handle is None else _record(handle, offset)
        return found.body if found is not None and found.head.type == type_ else None

    def list_columns(self, key: Key, places: dict[tuple[str, int], int]) -> None:
        """Walk over the columns of one block of a level, the first time they are needed."""
        begin, end = self._unlisted.pop(key, (0, 0))
        handle = self._open() if end else None
        if handle is None:
            return
        for head, offset in self._heads(handle, begin, end):
            named = self._column_at(handle, head, offset) if head.type == Type.COLUMN else None
            if named is not None and (head.family, head.level, head.seq) == key:
                places[named] = offset

    def note_damage(self, damage: Damage) -> None:
        """Remember damage found while reading, once."""
        if damage.text not in self._told:
            self._told.add(damage.text)
            self.damage.append(damage)

    def _open(self) -> Handle | None:
        descriptor = open_regular(self.path)
        return None if descriptor is None else Handle(descriptor)

    def _by_directory(self, handle: Handle, size: int) -> bool:
        if size < TAIL.size:
            return False
        offset = unpack_tail(handle.read(TAIL.size, size - TAIL.size))
        found = None if offset is None or offset >= size else _record(handle, offset)
        if found is None or found.body is None or found.head.type != Type.DIRECTORY:
            return False
        try:
            entries, names = unpack_directory(found.body)
        except BadBody:
            return False
        for place, seq, first, last, _, name, type_, family, part, level, _ in entries.tolist():
            key = (family, level, seq)
            if place >= size:
                return False
            match type_:
                case Type.BLOCK:
                    self._take_block(handle, key, place, first, last)
                case Type.COLUMN:
                    self._listing.places.setdefault(key, {})[names[name], part] = place
                case Type.HIST:
                    self._listing.histograms.append(place)
        return True

    def _by_walking(self, handle: Handle, size: int) -> None:
        """Without a directory: from head to head, past damage; levels leap from block to block."""
        while self.end + HEAD_BYTES <= size:
            for head, offset in self._heads(handle, self.end, size):
                key = (head.family, head.level, head.seq)
                self.end = offset + HEAD_BYTES + padded(head.length)
                match head.type:
                    case Type.BLOCK:
                        self._take_block(handle, key, offset, head.step, head.step)
                        if self._is_cut(key, size):
                            self._put_back(key, offset)
                            return
                        if self._leapt(handle, key, size):
                            break
                    case Type.COLUMN:
                        named = self._column_at(handle, head, offset)
                        if named is not None:
                            self._listing.places.setdefault(key, {})[named] = offset
                    case Type.HIST:
                        self._listing.histograms.append(offset)
            else:
                return

    def _is_cut(self, key: Key, size: int) -> bool:
        """Whether a level's newest block is not wholly there: its writer is in the middle of it."""
        head = self._listing.blocks.get(key)
        return head is not None and key[1] > 0 and self.end + head.span > size

    def _put_back(self, key: Key, offset: int) -> None:
        """Not yet: look at this block again the next time."""
        del self._listing.blocks[key]
        self._made.pop(key, None)
        self.end, self.cut = offset, True

    def _leapt(self, handle: Handle, key: Key, size: int) -> bool:
        """Leap over a level's columns, if that ends at the end of the file or at a sound head."""
        head = self._listing.blocks.get(key)
        if head is None or not head.span or not key[1]:
            return False
        end = self.end + head.span
        if end > size or (end < size and unpack_head(handle.read(HEAD_BYTES, end)) is None):
            return False
        self._unlisted[key] = self.end, end
        self.end = end
        return True

    def _column_at(self, handle: Handle, head: Head, offset: int) -> tuple[str, int] | None:
        """Name and part; a sealed file without its directory is not trusted unread, a level is."""
        if head.level:
            body: memoryview | None
            body = memoryview(handle.read(min(head.length, 256), offset + HEAD_BYTES))
        else:
            found = _record(handle, offset)
            body = found.body if found else None
        try:
            if body is None:
                raise BadBody("its checksum does not hold")
            name, part, _ = column_name(body)
        except BadBody as error:
            family = FAMILIES.get(head.family)
            text = f"a column of {family} from step {head.step} is damaged: {error}"
            self.note_damage(Damage(text, family, head.step, head.step))
            return None
        return name, part

    def _heads(self, handle: Handle, at: int, size: int) -> Iterator[tuple[Head, int]]:
        """Sound heads from `at` on whose records end within `size`."""
        while at + HEAD_BYTES <= size:
            parsed = unpack_head(handle.read(HEAD_BYTES, at))
            if parsed is None:
                start, at = at, _next_head(handle, at + 1, size)
                if at < size or size - start > TAIL.size:
                    text = f"{at - start} bytes of {self.path.name} are no record"
                    self.note_damage(Damage(text))
                continue
            head, _ = parsed
            if at + HEAD_BYTES + head.length > size:
                break
            yield head, at
            at += HEAD_BYTES + padded(head.length)

    def _take_block(self, handle: Handle, key: Key, offset: int, first: int, last: int) -> None:
        found = _record(handle, offset)
        try:
            if found is None or found.body is None or found.head.type != Type.BLOCK:
                raise BadBody("its checksum does not hold")
            self._listing.blocks[key] = unpack_block(found.body)
        except BadBody as error:
            family = FAMILIES.get(key[0])
            text = f"a block of {family} rows from step {first} to {last} is damaged: {error}"
            self.note_damage(Damage(text, family, first, last))


def _record(handle: Handle, offset: int) -> Found | None:
    """The record at `offset`; its body is None where the checksum does not hold."""
    parsed = unpack_head(handle.read(HEAD_BYTES, offset))
    if parsed is None:
        return None
    head, body_crc = parsed
    body = handle.read(head.length, offset + HEAD_BYTES)
    if len(body) != head.length or zlib.crc32(body) != body_crc:
        return Found(head, offset, None)
    return Found(head, offset, memoryview(body))


def _next_head(handle: Handle, at: int, size: int) -> int:
    """Where the next sound head begins, or the end."""
    while at < size:
        raw = handle.read(_WINDOW + HEAD_BYTES, at)
        place = raw.find(MAGIC)
        while 0 <= place < _WINDOW:
            if unpack_head(raw[place : place + HEAD_BYTES]) is not None:
                return at + place
            place = raw.find(MAGIC, place + 1)
        at += _WINDOW
    return size
