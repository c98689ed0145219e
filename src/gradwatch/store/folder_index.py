"""One writer's folder as read so far; refreshing it reads only what is new."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.event import Event
from gradwatch.run.histogram import Histogram
from gradwatch.run.subject import Subject
from gradwatch.stats import Family
from gradwatch.store.block import Block, Damage
from gradwatch.store.bodies import (
    BadBody,
    from_json,
    inflate,
    unpack_event,
    unpack_histograms,
    unpack_scalars,
)
from gradwatch.store.folder import WriterFolder
from gradwatch.store.journal_reading import JournalFile
from gradwatch.store.records import FAMILIES, NO_SEQ, PACKED, Found, Type


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


class FolderIndex:
    """Journals, sealed files and levels of one writer."""

    def __init__(self, folder: WriterFolder) -> None:
        self.folder = folder
        self.side = Side()
        self._seen: set[int] = set()
        self._journals: dict[str, JournalFile] = {}

    def refresh(self) -> None:
        """Look for new files and new bytes."""
        try:
            names = {path.name for path in self.folder.path.iterdir()}
        except OSError:
            names = set()
        for name in sorted(names):
            if name.startswith("j") and name.endswith(".gwj") and name not in self._journals:
                self._journals[name] = JournalFile(self.folder.path / name)
        for name in sorted(self._journals):
            for found in self._journals[name].refresh():
                self._absorb(found)

    def blocks(self) -> list[Block]:
        """All rows, in the order in which they were written."""
        found: list[Block] = []
        for name in sorted(self._journals):
            found += self._journals[name].blocks()
        return sorted(found, key=lambda block: int(block.seqs[-1]))

    def damage(self) -> list[Damage]:
        """What could not be read."""
        found = list(self.side.damage)
        for name in sorted(self._journals):
            found += self._journals[name].damage
        return found

    def _absorb(self, found: Found) -> None:
        head, body, side = found.head, found.body, self.side
        if head.seq != NO_SEQ:
            if head.seq in self._seen:
                return
            if body is not None:
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
