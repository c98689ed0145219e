"""A writer's folder: its manifest, the sizes of its files and its unsealed journals are read.

That is all that opening a run takes. What a look found is an `Attempt`, which reads sealed files
when something in them is asked for.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.source import Read, ReadCache
from gradwatch.run.subject import Event, Histogram, Subject
from gradwatch.stats import Family
from gradwatch.store import manifest as manifests
from gradwatch.store.attempt import Attempt, Scalars
from gradwatch.store.budget import FOLDER, HOLES, JSON, STRETCH, Budget
from gradwatch.store.chunks import Columns, Damage, SealedTable, distinct, held_bytes
from gradwatch.store.format import (
    FAMILIES,
    BadPayload,
    StoredRecord,
    Type,
    from_json,
    unpack_event,
    unpack_histograms,
    unpack_scalars,
)
from gradwatch.store.journal import JournalFile, journal_number
from gradwatch.store.manifest import Manifest, SealedFile, as_stretches
from gradwatch.store.parquet import Isolation, RandomAccess, Unreadable, read_footer
from gradwatch.store.runs import SEALED, WriterFolder

LOOKS = 50
"""How often to look again where a growing run changes under the reader; mostly once is enough."""
_STAMP_BYTES = 48
_READ_WHOLE = (manifests.NAME, f"{manifests.NAME}.part")
_ROWS = ("rows", "sketches", "rollups")
"""What is looked at again and again."""
_TEXTS = (Type.SUBJECTS, Type.EVENT, Type.GRAPH, Type.NOTE)


@dataclass
class SmallRecords:
    """Everything of one journal that is no row."""

    subjects: dict[int, Subject] = field(default_factory=dict)
    scalars: list[tuple[tuple[str, ...], NDArray[np.void]]] = field(default_factory=list)
    events: dict[int, Event] = field(default_factory=dict)
    """By the record's number: after a failed sync a record may be in two journals."""
    notes: dict[str, Any] = field(default_factory=dict)
    histograms: dict[tuple[Family, int], dict[int, Histogram]] = field(default_factory=dict)
    """By family and subject id, then by step."""
    damage: list[Damage] = field(default_factory=list)
    texts: int = 0
    """Bytes of JSON."""
    graph: Graph | None = None
    closed: bool = False

    def snapshot(self) -> "SmallRecords":
        """A copy that does not grow with the run."""
        return replace(
            self,
            subjects=dict(self.subjects),
            scalars=list(self.scalars),
            events=dict(self.events),
            notes=dict(self.notes),
            histograms={key: dict(steps) for key, steps in self.histograms.items()},
            damage=list(self.damage),
        )

    def take(self, record: StoredRecord, rank: int) -> None:
        """Take one record in; what makes no sense is damage."""
        try:
            if record.payload is None:
                raise BadPayload("its checksum does not hold")
            self._take(record.head.type, record, record.payload, rank)
        except (BadPayload, TypeError, ValueError, LookupError, AttributeError) as error:
            word = Type(record.head.type).name if record.head.type in set(Type) else "unknown"
            self.damage.append(Damage(f"record {record.head.seq} ({word}) is damaged: {error}"))

    def _take(self, kind: int, record: StoredRecord, payload: memoryview, rank: int) -> None:
        match kind:
            case Type.SUBJECTS:
                for number, data in from_json(payload):
                    if not 0 <= number < 1 << 32:
                        raise BadPayload("a subject with an impossible id")
                    self.subjects[int(number)] = Subject.from_dict(data)
            case Type.SCALARS:
                self.scalars.append(unpack_scalars(payload))
            case Type.EVENT:
                self.events[record.head.seq] = unpack_event(payload, record.head.step, rank)
            case Type.NOTE:
                self.notes.update(dict(from_json(payload)))
            case Type.GRAPH:
                self.graph = Graph.from_dict(from_json(payload))
            case Type.CLOSE:
                self.closed = True
            case Type.HIST:
                family = FAMILIES[record.head.family]
                for subject, histogram in unpack_histograms(payload).items():
                    of_subject = self.histograms.setdefault((family, subject), {})
                    of_subject[record.head.step] = histogram
            case _:
                pass  # a newer writer may add types; what we do not know we leave


class Folder:
    """A writer's folder, as far as it was read: a writer may append, seal and delete meanwhile.

    There are no locks. The order of looking is what makes it safe: the manifest, the names of all
    files, the journals, the manifest again. A journal goes only after a manifest that calls it
    sealed is in place, and a file only after one that no longer names it: what the last manifest
    calls unsealed was there to be read, and what both of them name was there to be listed.
    """

    def __init__(
        self, writer: WriterFolder, call: Isolation, cache: ReadCache, budget: Budget
    ) -> None:
        self.writer = writer
        self.place = writer.path
        self.call, self._cache, self.budget = call, cache, budget
        self.problems: dict[str, Damage] = {}
        """What turned out damaged when it was read, by file."""
        self.scalars: dict[SealedFile, Scalars] = {}
        """What was logged, by file: wanted whole at every look, so that no cache may drop it."""
        self._stamp: bytes | None = None
        self._manifest: Manifest | None = None
        self._reason = "is missing"
        self._lock = threading.Lock()
        self._journals: dict[int, tuple[JournalFile, SmallRecords]] = {}

    def held(self, key: Hashable, read: Callable[[], Read], size: Callable[[Read], int]) -> Read:
        """What `read` gives of a sealed file, unless it was read lately."""
        return self._cache.get((self.place, key), read, size)

    def held_columns(
        self, entry: SealedFile, names: Sequence[str], read: Callable[[Sequence[str]], Columns]
    ) -> Columns:
        """Columns of a sealed file; those that were not read lately are read together."""
        keys = {name: (self.place, entry, name) for name in names}
        found = {name: self._cache.peek(key) for name, key in keys.items()}
        missing = [name for name, column in found.items() if column is None]
        if missing:
            found |= (new := read(missing))
            for name, column in new.items():
                if entry.kind in _ROWS:
                    self._cache.put(keys[name], column, held_bytes(column))
        return found

    def look_anew(self) -> "Attempt":
        """The same for a new `Run`: what could not be read before may only have been late."""
        self.problems = {}
        return self.look()

    def look(self) -> "Attempt":
        """What is there now."""
        attempt = self._look()
        for _ in range(LOOKS):
            gaps = attempt.gaps
            if not gaps:
                break
            # A listing may miss a journal that was made meanwhile and name the next: look again.
            attempt = self._look()
            if attempt.gaps == gaps:
                break
        return attempt

    def _look(self) -> "Attempt":
        before = self._read_manifest()
        sizes, stored = self.place.files_and_stored()
        whole = sum(sizes[name] for name in sizes if name in _READ_WHOLE or journal_number(name))
        self.budget.store(self.place, stored)
        self._keep("folder", FOLDER, "as many folders of writers")
        self._keep("journals", whole // HOLES, f"journals of {whole:,} bytes")
        self._read_journals(sizes)
        manifest = self._read_manifest()
        unsealed = sorted(self._journals.items())
        journals = [
            (journal, small.snapshot())
            for number, (journal, small) in unsealed
            if manifest is None or not manifest.sealed(number)
        ]
        if manifest is None:
            manifest = self._salvaged(sizes)
            lost = manifest.files or self._stamp is not None
            reason = f"manifest.json {self._reason}; all sealed files found are read"
            return Attempt(self, manifest, sizes, journals, reason if lost else "")
        if before is not manifest:
            # What came since the listing cannot be in it.
            known = set(before.files) if before else set()
            new = {entry.file: entry.bytes for entry in manifest.files if entry not in known}
            sizes = {**sizes, **new}
        return Attempt(self, manifest, sizes, journals)

    def lists(self, entry: SealedFile) -> bool:
        """Whether the manifest of this moment still names a file as it was."""
        manifest = self._read_manifest()
        return manifest is None or entry in manifest.named

    def _read_manifest(self) -> Manifest | None:
        """The manifest of this moment, read again only if it changed; None where there is none."""
        file, size, stamp = self._open_manifest(), 0, None
        if file is not None:
            size = file.size
            # Its end has its checksum.
            stamp = b"%d " % size + file.read(_STAMP_BYTES, max(0, size - _STAMP_BYTES))
        with self._lock:  # several threads read the files of a series
            if stamp == self._stamp and (file is None or self._manifest is not None):
                return self._manifest
            self._stamp, self._manifest, self._reason = stamp, None, "is missing"
            try:
                if file is not None:
                    raw = file.read(min(size, manifests.BYTES_LIMIT), 0)
                    self._manifest = manifests.decode(raw)
            except BadPayload as error:
                self._reason = f"is damaged ({error})" if size else "is empty"
            return self._manifest

    def _open_manifest(self) -> RandomAccess | None:
        """The manifest; where renaming it takes the old one away first, the new one beside it."""
        file = self.place.open(manifests.NAME)
        if file is not None:
            return file
        beside = self.place.open(f"{manifests.NAME}.part")
        with contextlib.suppress(BadPayload):
            if beside is not None:
                manifests.decode(beside.read(min(beside.size, manifests.BYTES_LIMIT), 0))
                return beside
        return self.place.open(manifests.NAME)  # it may have come to its place meanwhile

    def _read_journals(self, sizes: Mapping[str, int]) -> None:
        present = {number: name for name in sizes if (number := journal_number(name)) is not None}
        sealed = self._manifest.sealed if self._manifest else lambda _: False
        kept = {number: name for number, name in present.items() if not sealed(number)}
        # A listing may miss a file beside which others come and go: what was open stays open. One
        # with damage is read again: elsewhere the parts of a file can be seen in any order.
        self._journals = {
            number: (journal, small)
            for number, (journal, small) in self._journals.items()
            if not (sealed(number) or journal.damage or small.damage)
        }
        kept |= {number: "" for number in self._journals if number not in kept}
        for number, name in sorted(kept.items()):
            if number not in self._journals:
                journal = JournalFile(self.place, name)
                if not journal.opened:
                    continue  # sealed since we listed it: the manifest has changed
                self._journals[number] = journal, SmallRecords()
            journal, small = self._journals[number]
            records = journal.refresh()
            small.texts += sum(r.head.length for r in records if r.head.type in _TEXTS)
            texts = sum(held.texts for _, held in self._journals.values())
            self._keep("texts", JSON * texts, f"notes and events of {texts:,} bytes")
            for record in records:
                small.take(record, self.writer.rank)

    def _keep(self, what: str, cost: int, claim: str) -> None:
        self.budget.keep((self.place, what), cost, claim)

    def _salvaged(self, sizes: Mapping[str, int]) -> Manifest:
        """Where the manifest is lost: what the sealed files say themselves.

        Those of a journal that is still there are left out: it was not sealed to its end.
        """
        files, columns = [], {}
        for name in sorted(name for name in sizes if SEALED.fullmatch(name)):
            entry = SealedFile(name, sizes[name], 0, (), 0, ())
            access = None if entry.number in self._journals else self.place.open(name)
            if access is None:
                continue
            try:
                footer = read_footer(access, None)
                steps = [grid.steps for grid in footer.grids]
                if not steps and "step" in footer.names:
                    steps = SealedTable(entry, access, footer, self.call).numbers("step")
            except Unreadable as error:
                self.problems[name] = Damage(f"{name}: {error}")
                continue
            known = distinct(np.concatenate([*steps, np.empty(0, np.int64)]))
            self._keep(name, STRETCH * len(known), f"{len(known):,} steps in {name}")
            files.append(replace(entry, rows=footer.rows, steps=as_stretches(known)))
            if entry.kind == "rows":
                columns[entry.group] = sorted(footer.names)
        number = self.writer
        return Manifest(number.rank, number.attempt, columns=columns, files=tuple(files))
