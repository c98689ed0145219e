"""What one writer left: its folder as read so far, and a snapshot of it for one opening."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.subject import Event, EventKind, Histogram, Subject
from gradwatch.stats import Family, Stat
from gradwatch.store.chunks import Chunk, Damage, distinct
from gradwatch.store.column_file import ColumnChunk, ColumnFile
from gradwatch.store.downsample import BucketCache, RollupChunk, standing_in
from gradwatch.store.format import (
    FAMILIES,
    NO_SEQ,
    PACKED,
    BadPayload,
    StoredRecord,
    Type,
    from_json,
    inflate,
    unpack_event,
    unpack_histograms,
    unpack_scalars,
)
from gradwatch.store.journal import JournalFile
from gradwatch.store.rollups import LETTERS
from gradwatch.store.runs import WriterFolder

COARSEST = LETTERS[3]
FIRST_SMALL = "x00001.gwx"
LOOKS = 50
"""How often to look again where a growing run changes under the reader; mostly once is enough."""
_FIRST_LOOK = frozenset({Type.SUBJECTS, Type.GRAPH, Type.NOTE})
_MOST_GAPS = 1000
"""Losses reported one by one; a forged file of holes must not make a list of millions."""


@dataclass
class SmallRecords:
    """Everything of one writer that is no row."""

    subjects: dict[int, Subject] = field(default_factory=dict)
    scalars: list[tuple[tuple[str, ...], NDArray[np.void]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[tuple[Family, int], dict[int, Histogram]] = field(default_factory=dict)
    """By family and subject id, then by step."""
    graph: Graph | None = None
    closed: bool = False

    def snapshot(self) -> "SmallRecords":
        """A copy that does not grow with the run."""
        return replace(
            self,
            subjects=dict(self.subjects),
            scalars=list(self.scalars),
            events=list(self.events),
            notes=list(self.notes),
            histograms={key: dict(steps) for key, steps in self.histograms.items()},
        )

    def take(self, record: StoredRecord, payload: memoryview, rank: int) -> None:
        """Take one record in; raises BadPayload where its content makes no sense."""
        head = record.head
        match head.type:
            case Type.SUBJECTS:
                self._take_subjects(from_json(payload))
            case Type.SCALARS:
                self.scalars.append(unpack_scalars(payload))
            case Type.EVENT:
                self.events.append(unpack_event(payload, head.step, rank))
            case Type.NOTE:
                note = from_json(payload)
                if not isinstance(note, dict):
                    raise BadPayload("a note that is no object")
                self.notes.append(note)
            case Type.GRAPH:
                try:
                    self.graph = Graph.from_dict(from_json(payload))
                except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                    raise BadPayload(str(error)) from None
            case Type.CLOSE:
                self.closed = True
            case Type.HIST:
                family = FAMILIES.get(head.family)
                if family is None:
                    raise BadPayload("histograms of an unknown family")
                plain = inflate(payload) if head.flags & PACKED else payload
                for subject, histogram in unpack_histograms(plain).items():
                    self.histograms.setdefault((family, subject), {})[head.step] = histogram
            case _:
                pass  # a newer writer may add types; what we do not know we leave

    def _take_subjects(self, rows: Any) -> None:
        try:
            for number, data in rows:
                if not 0 <= number < 1 << 32:
                    raise BadPayload("a subject with an impossible id")
                self.subjects[int(number)] = Subject.from_dict(data)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadPayload(str(error)) from None


class FolderIndex:
    """Journals, sealed files, small records and rollups of one writer, as far as they were read.

    A writer may append, seal and delete while we look, and there are no locks. Sequence numbers
    are what makes that safe: a record that is there twice (in a journal and in what it became)
    counts once, and one that is nowhere is reported as lost.

    `coarse` is for a first look at a long run: the coarsest rollup and the first small records,
    among them the names of the subjects; no scalars and no events.
    """

    def __init__(self, folder: WriterFolder, *, coarse: bool = False) -> None:
        self.folder = folder
        self.coarse = coarse
        self.small = SmallRecords()
        self.cache = BucketCache()
        self._seen: set[int] = set()
        self._damage: list[Damage] = []
        self._journals: dict[str, JournalFile] = {}
        self._small_files: dict[str, JournalFile] = {}
        self._columns: dict[str, ColumnFile] = {}

    def refresh(self, progress: Callable[[float], None] = lambda _: None) -> None:
        """Look for new files and new bytes; `progress` is called with the share done, 0 to 1."""
        for _ in range(3):
            names = self._names()
            for name in sorted(names):
                self._notice(name)
            if all(file.opened for file in self._journals.values()):
                break
            # a journal was sealed between listing and opening: look again
            self._journals = {n: file for n, file in self._journals.items() if file.opened}
        files = self._files()
        for number, file in enumerate(files, start=1):
            for record in file.refresh():
                self._take(record)
            progress(number / len(files))
        self._forget_sealed(names)

    @property
    def mark(self) -> tuple[object, ...]:
        """Differs whenever a refresh found something new."""
        return len(self._seen), *((file.path.name, file.end) for file in self._files())

    def chunks(self) -> list[Chunk]:
        """All rows, in the order in which later ones count: coarse before fine, then as written."""
        columns = self._column_chunks()
        fine: list[Chunk] = [chunk for chunk in columns if chunk.level == 0]
        for name in sorted(self._journals):
            # A journal is deleted after the file it was sealed into is in place, so both may be
            # there: of rows in both, the sealed ones are taken.
            twin = self._columns.get(_sealed_name(name))
            again = twin.chunks() if twin else []
            sealed = frozenset(int(seq) for chunk in again for seq in chunk.seqs.tolist())
            fine += self._journals[name].chunks(sealed)
        fine.sort(key=lambda chunk: int(chunk.seqs[-1]))
        rollups = [chunk for chunk in columns if chunk.level]
        if not rollups:
            return fine
        covered = np.concatenate([chunk.seqs for chunk in fine] or [np.empty(0, np.uint64)])
        return [*reversed(standing_in(rollups, covered)), *fine]

    def rollups(self) -> list[ColumnChunk]:
        """Every bucket of every rollup, needed for rows or not: for downsampling."""
        return [chunk for chunk in self._column_chunks() if chunk.level]

    def damage(self) -> list[Damage]:
        """What could not be read, as far as is known now."""
        damage = list(self._damage)
        if self.small.closed and not self._journals:  # nobody is going to finish it
            cut = [name for name in sorted(self._columns) if self._columns[name].cut]
            damage += [Damage(f"{name} ends in the middle of a block") for name in cut]
        return damage + [item for file in self._files() for item in file.damage]

    def missing(self, chunks: Sequence[Chunk]) -> list[Damage]:
        """Records that were written before others that are there, and are gone.

        A writer numbers its records without gaps, so a gap is a loss, unless the record is there
        and damaged (then it is reported as that) or an event says that retention deleted it.
        """
        parts = [np.fromiter(self._seen, np.uint64, len(self._seen))]
        parts += [chunk.seqs for chunk in chunks]
        parts += [
            np.fromiter(file.bad_seqs, np.uint64, len(file.bad_seqs))
            for file in (*self._journals.values(), *self._small_files.values())
        ]
        edges = np.concatenate([[-1], distinct(np.concatenate(parts)).astype(np.int64)])
        gaps = np.flatnonzero(np.diff(edges) > 1)
        first, last = edges[gaps] + 1, edges[gaps + 1] - 1
        lost = np.flatnonzero(~self._retained(first, last))
        return [_gap(int(first[at]), int(last[at]), chunks) for at in lost[:_MOST_GAPS]]

    def _retained(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which gaps lie within what retention deleted, by its own account."""
        deleted = [
            pair
            for event in self.small.events
            if event.kind is EventKind.RETENTION
            for pair in _ranges(event.data.get("seqs"))
        ]
        if not deleted:
            return np.zeros(len(first), bool)
        table = np.array(sorted(deleted), np.int64)
        # Ranges may overlap: of all that begin before a gap, the one that reaches furthest decides.
        reach = np.maximum.accumulate(table[:, 1])
        at = np.searchsorted(table[:, 0], first, side="right") - 1
        return np.logical_and(at >= 0, reach[np.maximum(at, 0)] >= last)

    def _files(self) -> list[JournalFile | ColumnFile]:
        """Small records first: they name the subjects."""
        kinds: tuple[dict[str, Any], ...] = self._small_files, self._journals, self._columns
        return [files[name] for files in kinds for name in sorted(files)]

    def _column_chunks(self) -> list[ColumnChunk]:
        return [chunk for name in sorted(self._columns) for chunk in self._columns[name].chunks()]

    def _names(self) -> set[str]:
        try:
            return {path.name for path in self.folder.path.iterdir()}
        except OSError:
            return set()

    def _notice(self, name: str) -> None:
        path = self.folder.path / name
        if self.coarse and name[:1] != COARSEST and name != FIRST_SMALL:
            return
        # A letter, five digits, an ending; whatever else lies in the folder is not read.
        match name[:1], name[6:]:
            case "j", ".gwj":
                if name not in self._journals:
                    self._journals[name] = JournalFile(path)
            case "x", ".gwx":
                if name not in self._small_files:
                    self._small_files[name] = JournalFile(path)
            case ("s", ".gws") | ("a" | "b" | "c", ".gwl"):
                if name not in self._columns:
                    self._columns[name] = ColumnFile(path)

    def _forget_sealed(self, names: set[str]) -> None:
        """Journals that are gone and sealed; column files that retention took."""
        # A journal that is gone is kept until its sealed twin was read: its handle is still open,
        # and without either its rows would seem lost.
        for name in list(self._journals):
            if name not in names and _sealed_name(name) in self._columns:
                del self._journals[name]
        for name in list(self._columns):
            if name not in names:
                del self._columns[name]

    def _take(self, record: StoredRecord) -> None:
        head = record.head
        if self.coarse and head.type not in _FIRST_LOOK:
            return
        if head.seq != NO_SEQ:
            if head.seq in self._seen:
                return  # sealed into another file since we met it first
            self._seen.add(head.seq)
        try:
            if record.payload is None:
                raise BadPayload("its checksum does not hold")
            self.small.take(record, record.payload, self.folder.rank)
        except BadPayload as error:
            word = Type(head.type).name if head.type in set(Type) else f"type {head.type}"
            self._damage.append(Damage(f"record {head.seq} ({word}) is damaged: {error}"))


def _sealed_name(journal: str) -> str:
    return f"s{journal[1:6]}.gws"


def _ranges(data: Any) -> Iterator[tuple[int, int]]:
    if isinstance(data, list):
        for item in data:
            match item:
                case [int(low), int(high)] if 0 <= low <= high < 1 << 62:
                    yield low, high


def _gap(first: int, last: int, chunks: Sequence[Chunk]) -> Damage:
    """Lost records, with the steps between their neighbours as where they were."""
    before: list[int] = []
    after: list[int] = []
    for chunk in chunks:
        at = int(np.searchsorted(chunk.seqs, np.uint64(first)))
        before += chunk.steps[:at][-1:].tolist()
        after += chunk.steps[at:][:1].tolist()
    text = f"records {first} to {last} are missing"
    low = max(before) + 1 if before else -(1 << 62)
    high = min(after) - 1 if after else 1 << 62
    located = (before or after) and low <= high
    return Damage(text, None, low, high) if located else Damage(text)


AnyChunk = TypeVar("AnyChunk", bound=Chunk)


class ChunkIndex(Generic[AnyChunk]):
    """Chunks by family with the steps they reach over: of thousands a window needs a few."""

    def __init__(self, chunks: Sequence[AnyChunk]) -> None:
        self._chunks: dict[Family, list[AnyChunk]] = {}
        for chunk in chunks:
            self._chunks.setdefault(chunk.family, []).append(chunk)
        self._edges = {
            family: (
                np.array([chunk.steps.min() for chunk in members], np.int64),
                np.array([chunk.steps.max() for chunk in members], np.int64),
            )
            for family, members in self._chunks.items()
        }

    def __contains__(self, family: Family) -> bool:
        return family in self._chunks

    def meeting(self, family: Family, first: int, last: int) -> list[AnyChunk]:
        """In their order, those that have steps on both sides of, or within, the range."""
        if family not in self._chunks:
            return []
        lowest, highest = self._edges[family]
        chosen = np.flatnonzero((lowest <= last) & (highest >= first))
        return [self._chunks[family][number] for number in chosen.tolist()]


@dataclass(frozen=True)
class Attempt:
    """What one writer left, frozen at the moment of looking."""

    number: int
    small: SmallRecords
    chunks: Sequence[Chunk]
    missing: Sequence[Damage]
    index: FolderIndex
    rollups: Sequence[ColumnChunk]

    @classmethod
    def of(cls, index: FolderIndex) -> "Attempt":
        """Freeze what the index has read so far, after a second look where records seem lost."""
        chunks = index.chunks()
        missing = [] if index.coarse else index.missing(chunks)
        for _ in range(LOOKS):
            if not missing or index.small.closed:
                break
            # the writer may have sealed a journal while we looked: then nothing is missing now
            before = index.mark
            index.refresh()
            if index.mark == before:
                break
            chunks = index.chunks()
            missing = index.missing(chunks)
        number, small = index.folder.attempt, index.small.snapshot()
        return cls(number, small, chunks, missing, index, index.rollups())

    @property
    def damage(self) -> list[Damage]:
        """What cannot be read; reading columns may find more."""
        return [*self.index.damage(), *self.missing]

    @cached_property
    def chunk_index(self) -> ChunkIndex[Chunk]:
        """The rows, ready to be searched by family and steps."""
        return ChunkIndex(self.chunks)

    @cached_property
    def rollup_index(self) -> ChunkIndex[ColumnChunk]:
        """The rollups, ready to be searched by family and steps."""
        return ChunkIndex(self.rollups)

    def chunks_near(self, family: Family, first: int, last: int) -> Iterator[Chunk]:
        """What there is of a range of steps; of rollups only the buckets that reach into it."""
        for chunk in self.chunk_index.meeting(family, first, last):
            near = chunk.near(first, last) if isinstance(chunk, RollupChunk) else chunk
            if near is not None:
                yield near

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """What was recorded. A writer has one list of columns per family, so one whole chunk of a
        level tells for all of it; walking over the columns of thousands would take seconds."""
        stats: set[Stat] = set()
        listed: set[tuple[Family, int]] = set()
        for chunk in self.chunks:
            if isinstance(chunk, RollupChunk):
                key = chunk.family, chunk.base.level
                if key in listed:
                    continue
                if chunk.base.complete:
                    listed.add(key)
            stats |= chunk.stats
        return frozenset(stats)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step this attempt has anything for."""
        parts = [chunk.steps for chunk in self.chunks]
        parts += [rows["step"] for _, rows in self.small.scalars]
        return distinct(np.concatenate([*parts, np.empty(0, np.int64)]))
