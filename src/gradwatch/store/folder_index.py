"""One writer's folder as read so far; refreshing it reads only what is new."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.event import Event, EventKind
from gradwatch.run.histogram import Histogram
from gradwatch.run.subject import Subject
from gradwatch.stats import Family
from gradwatch.store.block import Block, Damage, distinct
from gradwatch.store.bodies import (
    BadBody,
    from_json,
    inflate,
    unpack_event,
    unpack_histograms,
    unpack_scalars,
)
from gradwatch.store.column_file import ColumnBlock, ColumnFile
from gradwatch.store.folder import WriterFolder
from gradwatch.store.journal_reading import JournalFile
from gradwatch.store.level_block import standing_in
from gradwatch.store.records import FAMILIES, NO_SEQ, PACKED, Found, Type
from gradwatch.store.thinning import Decoded


@dataclass
class Side:
    """Everything of one writer that is no row."""

    subjects: dict[int, Subject] = field(default_factory=dict)
    scalars: list[tuple[list[str], NDArray[np.void]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[tuple[Family, int], dict[int, Histogram]] = field(default_factory=dict)
    """By family and subject id, then by step."""
    graph: Graph | None = None
    closed: bool = False
    damage: list[Damage] = field(default_factory=list)


COARSEST = "c"
"""First letter of the files of the coarsest level."""
FIRST_SMALL = "x00001.gwx"
_FIRST_LOOK = frozenset({Type.SUBJECTS, Type.GRAPH, Type.NOTE})


class FolderIndex:
    """Journals, sealed files, small records and levels of one writer.

    `coarse` is for a first look at a long run: the coarsest level and the first small records,
    among them the names of the subjects; no scalars and no events.
    """

    def __init__(self, folder: WriterFolder, *, coarse: bool = False) -> None:
        self.folder = folder
        self.coarse = coarse
        self.side = Side()
        self._seen: set[int] = set()
        self._journals: dict[str, JournalFile] = {}
        self._small: dict[str, JournalFile] = {}
        self._columns: dict[str, ColumnFile] = {}
        self.decoded = Decoded()

    def refresh(self, tell: Callable[[float], None] = lambda _: None) -> None:
        """Look for new files and new bytes; `tell` hears how much of it is done, from 0 to 1."""
        for _ in range(3):
            names = self._names()
            for name in sorted(names):
                self._notice(name)
            if all(file.opened for file in self._journals.values()):
                break
            # a journal was sealed between listing and opening: look again
            self._journals = {n: file for n, file in self._journals.items() if file.opened}
        kinds = (self._small, self._journals, self._columns)
        count = max(1, len(self._small) + len(self._journals) + len(self._columns))
        done = 0
        for files in kinds:
            for name in sorted(files):
                for found in files[name].refresh():
                    self._absorb(found)
                done += 1
                tell(done / count)
        self._forget_sealed(names)

    @property
    def mark(self) -> tuple[object, ...]:
        """Differs whenever a refresh found something new."""
        journals = (*self._journals.items(), *self._small.items())
        ends = [(name, file.end) for name, file in journals]
        columns = [(name, file.end) for name, file in self._columns.items()]
        return len(self._seen), *ends, *columns

    def blocks(self) -> list[Block]:
        """All rows, in the order in which later ones count; coarse before fine, then as written."""
        columns = [b for name in sorted(self._columns) for b in self._columns[name].blocks()]
        fine: list[Block] = [block for block in columns if block.level == 0]
        for name in sorted(self._journals):
            twin = self._columns.get(f"s{name[1:6]}.gws")  # sealed, and not deleted yet
            again = twin.blocks() if twin else []
            sealed = frozenset(int(seq) for block in again for seq in block.seqs.tolist())
            fine += self._journals[name].blocks(sealed)
        fine.sort(key=lambda block: int(block.seqs[-1]))
        levels = [block for block in columns if block.level]
        if not levels:
            return fine
        covered = np.concatenate([b.seqs for b in fine] or [np.empty(0, np.uint64)])
        return [*reversed(standing_in(levels, covered)), *fine]

    def levels(self) -> list[ColumnBlock]:
        """Every bucket of every level, needed or not: for thinning."""
        found = [b for name in sorted(self._columns) for b in self._columns[name].blocks()]
        return [block for block in found if block.level]

    def damage(self) -> list[Damage]:
        """What could not be read, as far as is known now."""
        found = list(self.side.damage)
        if self.side.closed and not self._journals:  # nobody is going to finish it
            cut = [name for name in sorted(self._columns) if self._columns[name].cut]
            found += [Damage(f"{name} ends in the middle of a block") for name in cut]
        for files in (self._small, self._journals, self._columns):
            for name in sorted(files):
                found += files[name].damage
        return found

    def missing(self, blocks: Sequence[Block]) -> list[Damage]:
        """Records that were written before others that are there, and are gone."""
        known = [np.fromiter(self._seen, np.uint64, len(self._seen))]
        known += [block.seqs for block in blocks]
        known += [
            np.fromiter(file.bad_seqs, np.uint64, len(file.bad_seqs))
            for file in (*self._journals.values(), *self._small.values())
        ]
        seqs = distinct(np.concatenate(known))
        edges = np.concatenate([[-1], seqs.astype(np.int64)])
        gaps = np.flatnonzero(np.diff(edges) > 1)
        first, last = edges[gaps] + 1, edges[gaps + 1] - 1
        unexplained = np.flatnonzero(~self._retained(first, last))
        return [self._gap(int(first[at]), int(last[at]), blocks) for at in unexplained[:1000]]

    def _retained(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which gaps lie within what retention says that it deleted."""
        told = [
            pair
            for event in self.side.events
            if event.kind is EventKind.RETENTION
            for pair in _ranges(event.data.get("seqs"))
        ]
        if not told:
            return np.zeros(len(first), bool)
        table = np.array(sorted(told), np.int64)
        reach = np.maximum.accumulate(table[:, 1])
        at = np.searchsorted(table[:, 0], first, side="right") - 1
        found: NDArray[np.bool_] = (at >= 0) & (reach[np.maximum(at, 0)] >= last)
        return found

    def _gap(self, first: int, last: int, blocks: Sequence[Block]) -> Damage:
        before, after = None, None
        for block in blocks:
            at = int(np.searchsorted(block.seqs, np.uint64(first)))
            if at:
                step = int(block.steps[at - 1])
                before = step if before is None else max(before, step)
            if at < len(block.steps):
                step = int(block.steps[at])
                after = step if after is None else min(after, step)
        text = f"records {first} to {last} are missing"
        if before is None and after is None:
            return Damage(text)
        low = -(1 << 62) if before is None else before + 1
        high = (1 << 62) if after is None else after - 1
        return Damage(text, None, low, high) if low <= high else Damage(text)

    def _names(self) -> set[str]:
        try:
            return {path.name for path in self.folder.path.iterdir()}
        except OSError:
            return set()

    def _notice(self, name: str) -> None:
        path = self.folder.path / name
        if self.coarse and name[:1] != COARSEST and name != FIRST_SMALL:
            return
        match name[:1], name[6:]:
            case "j", ".gwj":
                if name not in self._journals:
                    self._journals[name] = JournalFile(path)
            case "x", ".gwx":
                if name not in self._small:
                    self._small[name] = JournalFile(path)
            case ("s", ".gws") | ("a" | "b" | "c", ".gwl"):
                if name not in self._columns:
                    self._columns[name] = ColumnFile(path)

    def _forget_sealed(self, names: set[str]) -> None:
        """Journals that are gone and sealed; column files that retention took."""
        for name in list(self._journals):
            if name not in names and f"s{name[1:6]}.gws" in self._columns:
                del self._journals[name]
        for name in list(self._columns):
            if name not in names:
                del self._columns[name]

    def _absorb(self, found: Found) -> None:
        head, body, side = found.head, found.body, self.side
        if self.coarse and head.type not in _FIRST_LOOK:
            return
        if head.seq != NO_SEQ:
            if head.seq in self._seen:
                return
            self._seen.add(head.seq)
        try:
            if body is None:
                raise BadBody("its checksum does not hold")
            absorb(side, found, body, self.folder.rank)
        except BadBody as error:
            word = Type(head.type).name if head.type in set(Type) else f"type {head.type}"
            side.damage.append(Damage(f"record {head.seq} ({word}) is damaged: {error}"))


def absorb(side: Side, found: Found, body: memoryview, rank: int) -> None:
    """Take one record in; raises BadBody where its content makes no sense."""
    head = found.head
    match head.type:
        case Type.SUBJECTS:
            _subjects(side, from_json(body))
        case Type.SCALARS:
            side.scalars.append(unpack_scalars(body))
        case Type.EVENT:
            side.events.append(unpack_event(body, head.step, rank))
        case Type.NOTE:
            note = from_json(body)
            if not isinstance(note, dict):
                raise BadBody("a note that is no object")
            side.notes.append(note)
        case Type.GRAPH:
            side.graph = _graph(from_json(body))
        case Type.CLOSE:
            side.closed = True
        case Type.HIST:
            family = FAMILIES.get(head.family)
            if family is None:
                raise BadBody("histograms of an unknown family")
            plain = inflate(body) if head.flags & PACKED else body
            for subject, histogram in unpack_histograms(plain).items():
                side.histograms.setdefault((family, subject), {})[head.step] = histogram
        case _:
            pass  # a newer writer may add types; what we do not know we leave


def _ranges(data: Any) -> Iterator[tuple[int, int]]:
    if isinstance(data, list):
        for item in data:
            match item:
                case [int(low), int(high)] if 0 <= low <= high < 1 << 62:
                    yield low, high


def _subjects(side: Side, rows: Any) -> None:
    try:
        for number, data in rows:
            if not 0 <= number < 1 << 32:
                raise BadBody("a subject with an impossible id")
            side.subjects[int(number)] = Subject.from_dict(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadBody(str(error)) from None


def _graph(data: Any) -> Graph:
    try:
        return Graph.from_dict(data)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise BadBody(str(error)) from None
