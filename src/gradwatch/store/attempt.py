"""What one writer left, as one look found it; sealed files are read when somebody asks."""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.subject import Event, EventKind, Subject
from gradwatch.stats import Family, Kind, Stat
from gradwatch.store.budget import EVENT, JSON, STEP, SUBJECT
from gradwatch.store.chunks import STATS, Chunk, Damage, SealedTable, Vanished, ahead, distinct
from gradwatch.store.downsample import RollupChunk
from gradwatch.store.format import JSON_LIMIT, SCALAR_ROW, BadPayload, from_json
from gradwatch.store.histograms import COLUMNS as HISTOGRAM_COLUMNS
from gradwatch.store.histograms import HistogramPart, sealed_reader
from gradwatch.store.journal import JournalChunk, JournalFile
from gradwatch.store.manifest import Manifest, SealedFile, Stretch, numbers_of
from gradwatch.store.parquet import Column, Lists, Unreadable, read_footer
from gradwatch.store.subjects import COLUMNS, Placements, SubjectTable, described, placed

if TYPE_CHECKING:
    from gradwatch.store.folder import Folder, SmallRecords

SUBJECTS, GRAPH = "subjects.parquet", "graph.json"
_MOST_DAMAGE = 1000
"""Losses reported one by one; a forged file of holes must not make a list of millions."""

Scalars = tuple[Sequence[str], NDArray[np.void]]
"""Names, and rows whose `name` is an index into them."""
Part = SealedFile | JournalChunk
"""Where rows are: a sealed file, or what a journal has of some subjects."""


class Attempt:
    """The sealed files of a manifest and the journals it does not call sealed.

    A file that the manifest names and that is not as it says is damage, and its rows are. Where a
    newer manifest no longer names it, the attempt is out of date instead: `Vanished`.
    """

    def __init__(
        self,
        folder: "Folder",
        manifest: Manifest,
        sizes: Mapping[str, int],
        journals: "Sequence[tuple[JournalFile, SmallRecords]]",
        lost: str = "",
    ) -> None:
        self.number, self.rank = folder.writer.attempt, folder.writer.rank
        self.folder, self.manifest = folder, manifest
        self._problems = folder.problems
        self.small = [small for _, small in journals]
        self.journal_chunks = [chunk for journal, _ in journals for chunk in journal.chunks()]
        self._salvaged = bool(lost)
        self._wrong = {
            entry.file: _size_problem(entry, sizes.get(entry.file))
            for entry in manifest.files
            if sizes.get(entry.file) != entry.bytes
            and (entry.number or not _replaced(folder, entry, sizes))
        }
        self._opening = [Damage(lost)] if lost else []
        self._opening += [
            Damage(f"{entry.file} {self._wrong[entry.file]}", None, entry.first_step)
            for entry in (manifest.files if self._wrong else ())
            if entry.file in self._wrong
        ]
        for journal, small in journals:
            self._opening += [*journal.damage, *small.damage]
        self.gaps = self._missing([seq for journal, _ in journals for seq in journal.seqs])
        """Records that were written and are nowhere."""

    # -- what there is -----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the writer ended in good order."""
        return self.manifest.closed or any(small.closed for small in self.small)

    @property
    def notes(self) -> dict[str, Any]:
        """The writer's notes, later ones over earlier ones."""
        return {**self.manifest.info, **{k: v for s in self.small for k, v in s.notes.items()}}

    @property
    def damage(self) -> list[Damage]:
        """What cannot be read; reading files may find more."""
        found = [*self._opening, *self.gaps, *self._problems.values()]
        more = len(found) - _MOST_DAMAGE
        return [*found[:_MOST_DAMAGE], Damage(f"{more} more losses")] if more > 0 else found

    @cached_property
    def _files(self) -> dict[tuple[str, str], list[SealedFile]]:
        files: dict[tuple[str, str], list[SealedFile]] = {}
        for entry in self.manifest.files:
            files.setdefault((entry.kind, entry.group), []).append(entry)
        return {key: sorted(found, key=lambda e: e.number) for key, found in files.items()}

    def files(self, kind: str, group: str = "") -> list[SealedFile]:
        """The sealed files of a kind (and of a family, of a rollup's level), oldest first."""
        return self._files.get((kind, group), [])

    @cached_property
    def sealed(self) -> dict[Family, list[SealedFile]]:
        """Where the sealed rows of a family are, or the finest rollups of rows that retention took,
        oldest first."""
        files = {}
        for family in Family:
            found = {entry.number: entry for entry in self.files("rollups", f"{family}-10")}
            found |= {entry.number: entry for entry in self.files("rows", family)}
            files[family] = [found[number] for number in sorted(found)]
        return files

    def parts(self, stat: Stat, first: int, last: int) -> list[Part]:
        """Where a statistic of some steps is, in the order in which later ones count."""
        family = stat.family
        found: list[Part] = [*self.sealed[family]]
        if stat.width > 1:  # the states are with the rows, the numbers in files of their own
            found += self.files("sketches", family)
        found += [chunk for chunk in self.journal_chunks if chunk.family is family]
        return [part for part in found if part.first_step <= last and part.last_step >= first]

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """What was recorded."""
        stats = {
            STATS[name]
            for family, names in self.manifest.columns.items()
            for name in names
            if name in STATS and STATS[name].family == family
        }
        return frozenset(stats).union(*(chunk.stats for chunk in self.journal_chunks))

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step this attempt has anything for."""
        entries = [*self.files("scalars"), *(e for f in Family for e in self.sealed[f])]
        # Families are mostly recorded on the same steps.
        stretches: set[Stretch] = {stretch for entry in entries for stretch in entry.steps}
        total = sum(count for _, _, count in stretches)
        self._keep("steps", STEP * total, f"{total:,} steps")
        parts = [numbers_of(tuple(stretches)), *(chunk.steps for chunk in self.journal_chunks)]
        parts += [rows["step"] for small in self.small for _, rows in small.scalars]
        return distinct(np.concatenate(parts))

    # -- reading files -----------------------------------------------------------------------------

    def _keep(self, what: str, cost: int, claim: str) -> None:
        """Something is going to be kept; GradwatchError where it is more than a run may have."""
        self.folder.budget.keep((self.folder.place, what), cost, claim)

    def table(self, entry: SealedFile) -> SealedTable:
        """A sealed file, ready to be read; Unreadable where it is not what the manifest says."""
        problem = Unreadable(self._wrong.get(entry.file, "is missing"))
        if entry.file in self._wrong:
            raise problem
        folder = self.folder
        for name in _names(entry):
            access = folder.place.open(name)
            try:
                if access is not None:
                    given = None if self._salvaged else entry
                    read = partial(read_footer, access, given)
                    footer = folder.held(entry, read, lambda footer: footer.held_bytes)
                    return SealedTable(entry, access, footer, folder.call, folder.held_columns)
            except Unreadable as error:
                problem = error
        raise problem

    def chunks(self, part: Part, first: int, last: int) -> Sequence[Chunk]:
        """What a part has of some steps, in the order in which later ones count."""
        if isinstance(part, JournalChunk):
            return [replace(part, held=self.folder.held)]
        chunks = self.table(part).chunks()
        if part.kind != "rollups":
            return chunks
        return [RollupChunk.near(chunk, first, last) for chunk in chunks]

    def blame(self, part: Part, error: Unreadable) -> None:
        """Note that something cannot be read; Vanished where it need not be there any more."""
        name = part.file
        if name not in self._wrong:
            if isinstance(part, SealedFile) and not self.folder.lists(part):
                raise Vanished(name)
            self._problems[name] = Damage(f"{name}: {error}", None, part.first_step)

    def _columns(self, entry: SealedFile, *names: str) -> list[Any] | None:
        """Columns of a file; None where it is damaged."""
        try:
            return list(self.table(entry).fetch(*names))
        except Unreadable as error:
            self.blame(entry, error)
            return None

    # -- what is no row ----------------------------------------------------------------------------

    @property
    def subjects(self) -> SubjectTable:
        """By id; where a name was lost, one that says so."""
        return self._subjects[0]

    @property
    def placements(self) -> Placements:
        """Of each of the subjects, in their order."""
        return self._subjects[1]

    @cached_property
    def _subjects(self) -> tuple[SubjectTable, Placements]:
        table, placements, named = self._sealed_subjects()
        later = {number: s for small in self.small for number, s in small.subjects.items()}
        chunks: list[tuple[Kind, NDArray[np.uint32]]]
        chunks = [(chunk.family.kind, chunk.ids) for chunk in self.journal_chunks]
        if not named:
            chunks += self._sealed_ids()
        lost: dict[int, Subject] = {}
        for kind, ids in chunks:
            self._keep("ids", SUBJECT // 32 * len(ids), f"rows of {len(ids):,} subjects")
            new = {n for n in ids.tolist() if not (n in table.by_id or n in later or n in lost)}
            count = len(lost) + len(new)
            self._keep("lost", SUBJECT * count, f"rows of {count:,} subjects without a name")
            lost |= {number: Subject(kind, f"(name lost: {kind} {number})") for number in new}
        if not later and not lost:
            return table, placements
        placed = dict(zip(table.by_id, placements, strict=True))
        placed |= {number: subject.placement for number, subject in later.items()}
        bare = {number: replace(subject, placement=None) for number, subject in later.items()}
        table = SubjectTable({**table.by_id, **bare, **lost})
        return table, [placed.get(number) for number in table.by_id]

    def _sealed_subjects(self) -> tuple[SubjectTable, Placements, bool]:
        """Those of the sealed table, and whether they are all."""
        for entry in self.files(SUBJECTS):
            try:
                return *self._described(entry), True
            except Unreadable as error:
                self.blame(entry, error)
            except (BadPayload, TypeError, ValueError, LookupError, AttributeError) as error:
                self.blame(entry, Unreadable(f"its subjects make no sense: {error}"))
        return SubjectTable({}), (), False

    def _described(self, entry: SealedFile) -> tuple[SubjectTable, Placements]:
        file = self.table(entry)

        def fetch(*names: str) -> list[Any]:
            self._keep("subjects", SUBJECT * entry.rows, f"{entry.rows:,} subjects")
            found: list[Any] = list(file.fetch(*names))
            self._keep(
                names[-1], JSON * found[-1].letters, f"{names[-1]} of {entry.rows:,} subjects"
            )
            return found

        run = str(self.folder.place).rpartition("/")[0]
        table = described(run, file.footer, lambda: fetch(*COLUMNS))
        placements = tuple(map(placed, *fetch("placement")))
        if len(placements) != len(table.by_id):
            raise ValueError("checksums of another table")
        return table, placements

    def _sealed_ids(self) -> Iterator[tuple[Kind, NDArray[np.uint32]]]:
        for family in Family:
            for entry in self.sealed[family]:
                try:
                    yield from ((family.kind, grid.ids) for grid in self.table(entry).footer.grids)
                except Unreadable as error:
                    self.blame(entry, error)

    def scalars(self) -> Iterator[Scalars]:
        """What was logged, in order; of files that were read before it is held, unless all is
        closed and nobody will look again."""
        held, files = self.folder.scalars, self.files("scalars")
        read = ahead(self._scalars, [entry for entry in files if entry not in held])
        for entry in files:
            part = held[entry] if entry in held else next(read)
            if part is not None:
                if not self.manifest.closed:
                    held[entry] = part
                yield part
        for small in self.small:
            yield from small.scalars

    def _scalars(self, entry: SealedFile) -> Scalars | None:
        found = self._columns(entry, "step", "name", "value")
        if found is None:
            return None
        steps, names, values = found
        used = np.bincount(names.numbers, minlength=len(names.words)) > 0
        rows = np.zeros(len(names), SCALAR_ROW)
        rows["step"], rows["value"] = steps, values
        rows["name"] = (np.cumsum(used) - 1)[names.numbers]
        return [names.words[at] for at in np.flatnonzero(used).tolist()], rows

    @cached_property
    def events(self) -> list[Event]:
        """As they were written."""
        events: list[Event] = []
        for entry in self.files("events"):
            self._keep(entry.file, EVENT * entry.rows, f"{entry.rows:,} events")
            found = self._held_columns(entry, "step", "kind", "text", "subject", "data", "wall")
            if found is not None:
                cost = EVENT * entry.rows + JSON * found[4].letters
                self._keep(entry.file, cost, f"{entry.rows:,} events and their data")
            try:
                for step, kind, text, subject, data, wall in zip(*found or (), strict=True):
                    events.append(
                        Event(
                            int(step),
                            EventKind(kind),
                            text,
                            subject,
                            dict(from_json(data.encode())),
                            float(wall),
                            self.rank,
                        )
                    )
            except (BadPayload, TypeError, ValueError, AttributeError) as error:
                self.blame(entry, Unreadable(f"its events make no sense: {error}"))
        later = {number: event for small in self.small for number, event in small.events.items()}
        return [*events, *later.values()]

    @cached_property
    def graph(self) -> Graph | None:
        """The layer graph that was stored last."""
        for small in reversed(self.small):
            if small.graph is not None:
                return small.graph
        entries = self.files(GRAPH)
        for name in _names(entries[0]) if entries else ():
            access = self.folder.place.open(name)
            fits = access is not None and access.size == entries[0].bytes <= JSON_LIMIT
            raw = access.read(entries[0].bytes, 0) if access and fits else b""
            if zlib.crc32(raw) in entries[0].checksums:
                try:
                    return Graph.from_dict(from_json(raw))
                except (BadPayload, TypeError, ValueError, LookupError, AttributeError) as error:
                    self.blame(entries[0], Unreadable(str(error)))
                    return None
        if entries:
            self.blame(entries[0], Unreadable("its checksum does not hold"))
        return None

    def histograms(self, family: Family, number: int) -> list[HistogramPart]:
        """Those of one subject; the sealed ones are read when somebody looks at them."""
        parts: list[HistogramPart] = []
        bins = 0
        for entry in self.files("histograms", family):
            found = self._by_subject(entry)
            if found is not None:
                subjects, steps, order = found
                part = slice(*np.searchsorted(subjects, [number, number + 1]))
                rows = order[part]
                bins += self._listed(entry) * len(rows) // max(1, entry.rows)
                self.folder.budget.table(bins, 1, "bins of one subject's histograms")
                read = partial(self._held_columns, entry, *HISTOGRAM_COLUMNS)
                parts.append(HistogramPart(steps[part], rows, sealed_reader(read)))
        for small in self.small:
            known = small.histograms.get((family, number), {})
            own, kept = np.array(list(known), np.int64), list(known.values())
            parts.append(HistogramPart(own, np.arange(len(kept)), kept.__getitem__))
        return parts

    def _by_subject(self, entry: SealedFile) -> Sequence[NDArray[Any]] | None:
        """Subjects and steps of a file's histograms, and their rows, by subject."""

        def read() -> list[NDArray[Any]]:
            subjects, steps = self.table(entry).numbers("subject", "step")
            order = np.argsort(subjects, kind="stable")
            return [subjects[order], steps[order], order]

        try:
            return self.folder.held((entry, "order"), read, _bytes)
        except Unreadable as error:
            self.blame(entry, error)
            return None

    def _listed(self, entry: SealedFile) -> int:
        """Numbers in the lists of a file."""
        try:
            columns = self.table(entry).footer.columns.values()
        except Unreadable:
            return 0
        return sum(column.values for column in columns if column.listed)

    def _held_columns(self, entry: SealedFile, *names: str) -> Sequence[Any] | None:
        """Columns that are asked for again and again; None where they are damaged."""
        try:
            read = lambda: list(self.table(entry).fetch(*names))  # noqa: E731
            return self.folder.held((entry, names), read, _bytes)
        except Unreadable as error:
            self.blame(entry, error)
            return None

    # -- losses ------------------------------------------------------------------------------------

    def _missing(self, seqs: Sequence[int]) -> list[Damage]:
        """Records that were written before others that are there, and are gone: a writer numbers
        its records without gaps."""
        spans = [(first, last) for _, _, first, last in self.manifest.journals]
        numbers = np.unique(np.array(seqs, np.uint64))
        begins = np.append(True, np.diff(numbers) != 1)[: len(numbers)]
        ends = numbers[np.append(begins[1:], True)[: len(numbers)]]
        spans += zip(numbers[begins].tolist(), ends.tolist(), strict=True)
        gaps, expected = [], 0
        for first, last in sorted(spans):
            if first > expected and not (self._salvaged and not expected):
                gaps.append((expected, first - 1))
            expected = max(expected, last + 1)
        marks = self._marks() if gaps else []
        return [_located(marks, *gap) for gap in gaps[:_MOST_DAMAGE]]

    def _marks(self) -> list[tuple[int, int]]:
        """Records of which the step is known, in their order."""
        marks = [(r.seq, r.step) for chunk in self.journal_chunks for r in chunk.records]
        files = sorted((e for e in self.manifest.files if e.steps), key=lambda e: e.number)
        numbers = [entry.number for entry in files]
        firsts = np.array([entry.first_step for entry in files], np.int64)
        lasts = np.array([entry.last_step for entry in files], np.int64)
        for low, high, first_record, last_record in self.manifest.journals:
            inside = slice(bisect_left(numbers, low), bisect_right(numbers, high))
            if inside.start < inside.stop:
                marks.append((first_record, int(firsts[inside].min())))
                marks.append((last_record, int(lasts[inside].max())))
        return sorted(marks)


def _located(marks: Sequence[tuple[int, int]], first: int, last: int) -> Damage:
    """Lost records, with the steps between their neighbours as where they were."""
    below, above = bisect_left(marks, (first,)), bisect_left(marks, (last + 1,))
    text = f"records {first} to {last} are missing"
    begin = marks[below - 1][1] + 1 if below else -(1 << 62)
    end = marks[above][1] - 1 if above < len(marks) else 1 << 62
    located = marks and begin <= end
    return Damage(text, None, begin, end) if located else Damage(text)


def _bytes(columns: Sequence[Column]) -> int:
    arrays = [part for c in columns for part in (c if isinstance(c, Lists) else [c])]
    return sum(p.nbytes if isinstance(p, np.ndarray) else 64 * len(p) for p in arrays)


def _size_problem(entry: SealedFile, size: int | None) -> str:
    if size is None:
        return "is missing"
    return f"has {size} bytes instead of {entry.bytes}" if size else "is empty"


def _names(entry: SealedFile) -> tuple[str, ...]:
    """Under which names to look for a file: one that is replaced may still be beside its place, and
    be renamed between two looks."""
    return (entry.file,) if entry.number else (entry.file, f"{entry.file}.part", entry.file)


def _replaced(folder: "Folder", entry: SealedFile, sizes: Mapping[str, int]) -> bool:
    """Whether the new file is still beside its place, or has come to it since it was listed."""
    if sizes.get(f"{entry.file}.part") == entry.bytes:
        return True
    now = folder.place.open(entry.file)
    return now is not None and now.size == entry.bytes
