"""Sealing: a finished journal becomes Parquet files, and a manifest names them (docs/format.md).

Order is what makes it safe: first the files (written beside, synced, renamed), then the manifest,
and only then the journal goes. A kill in between leaves things twice, never not at all: readers
take no file that the manifest does not name, and no journal that it calls sealed.
"""

import contextlib
import ctypes
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.files import mode_like
from gradwatch.run.subject import Event
from gradwatch.stats import HAS_VALUE, Family, row_dtype
from gradwatch.store import manifest as manifests
from gradwatch.store import parquet, rollups
from gradwatch.store.format import (
    StoredRecord,
    Type,
    from_json,
    joined_scalars,
    to_json,
    unpack_event,
    unpack_scalars,
)
from gradwatch.store.full_journal import Content, FullJournal, JournalRows, Scratch, Table
from gradwatch.store.journal import place_beside, sync_folder, write_beside
from gradwatch.store.manifest import Manifest, SealedFile
from gradwatch.store.parquet import Column, Grid, Words
from gradwatch.store.places import Place
from gradwatch.store.retention import FULL_ROWS, Retention, due, removal

MERGED_FILES = 10
"""Rollups of one level that become one of the next."""
LEVELS = ((10, 100), (100, 1000))
_EVENT_BYTES = 4096
"""More than a file with a single event has."""
SUBJECTS, GRAPH = "subjects.parquet", "graph.json"


@dataclass
class _Draft:
    """What the next manifest will say, beside what the last one says."""

    manifest: Manifest
    subjects: dict[int, Mapping[str, Any]]
    waiting: dict[str, list[SealedFile]]
    """Rollups that are not merged into the next level yet, by group such as `grad-10`."""
    files: list[SealedFile]
    beside: list[str]
    """Files written as `….part`, to be renamed once the manifest has their checksum."""


class Sealer:
    """Belongs to the writer's thread; `yield_gil` is called between small pieces of work."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        attempt: int,
        keep: Retention | None,
        yield_gil: Callable[[], None],
    ) -> None:
        self.folder = folder
        self._keep = keep
        self._yield_gil = yield_gil
        self._scratch = Scratch()
        self._manifest = Manifest(rank, attempt)
        self._lines: dict[str, str] = {}
        """The manifest's line of each file: making them anew would take longer at each seal."""
        self._bytes = 0
        """Of all files that are never replaced."""
        self._replaced: dict[str, int] = {}
        """Bytes of those that are: subjects, graph, manifest."""
        self._subjects: dict[int, Mapping[str, Any]] = {}
        self._waiting: dict[str, list[SealedFile]] = {}
        self._rows: dict[int, list[SealedFile]] = {}
        """Files that retention may take, by number; kept only if there is something to limit."""
        self._sealed_at: dict[int, float] = {}
        """When those were sealed, by a clock that nobody sets."""
        self._beside: list[str] = []

    def seal(
        self,
        journal: FullJournal,
        *,
        closing: Callable[[], Mapping[str, Any]] | None = None,
        unsealed: int = 0,
    ) -> None:
        """Turn a journal into its sealed form and remove it; after an OSError, call it again.

        With `closing` it is the last one: rollups are completed, and what it returns is added to
        the run's information. `unsealed` are the bytes of the other journals.
        """
        self._place_beside()
        if not self._manifest.sealed(journal.number):
            draft = _Draft(
                self._manifest,
                dict(self._subjects),
                {group: list(files) for group, files in self._waiting.items()},
                [],
                [],
            )
            events = self._write_content(journal, draft)
            self._merge(draft, whole=closing is not None)
            gone = self._due(draft, unsealed)
            if gone:
                events = [*events, removal(gone)]
            self._write_events(journal.number, events, draft)
            if closing:
                info = {**draft.manifest.info, **closing()}
                draft.manifest = replace(draft.manifest, info=info, closed=True)
            self._publish(draft, gone)
            for file in gone:
                with contextlib.suppress(OSError):
                    (self.folder / file.file).unlink()
            self._scratch.release()
            _return_memory()
        with contextlib.suppress(OSError):  # what stays is not read: the manifest says so
            journal.path.unlink(missing_ok=True)
            self._place_beside()

    # -- the journal's content ---------------------------------------------------------------------

    def _write_content(self, journal: FullJournal, draft: _Draft) -> list[Event]:
        """Everything but the events, which are given back: retention may add one."""
        content = Content(journal, self._scratch, self._yield_gil)
        columns: dict[str, Sequence[str]] = dict(draft.manifest.columns)
        for family in content.families():
            rows = content.rows(family)
            columns[family] = list(row_dtype(family).names or ())
            self._write_rows(family, journal.number, rows, draft)
            self._write_sketches(family, journal.number, rows.tables, draft)
            self._write_rollups(family, journal.number, rows.tables, draft)
        stretch = (journal.number, journal.number, journal.first, journal.last)
        journals = _with_stretch(draft.manifest.journals, stretch)
        draft.manifest = replace(draft.manifest, columns=columns, journals=journals)
        for family in Family:
            histograms = content.histograms(family)
            if histograms:
                self._write_histograms(family, journal.number, histograms, draft)
        return self._write_small(journal.number, content.others, draft)

    def _write_rows(self, family: Family, number: int, rows: JournalRows, draft: _Draft) -> None:
        grids = [table.grid for table in rows.tables]
        states = np.concatenate([table.states.reshape(-1) for table in rows.tables])
        keys = self._keys(grids)
        columns: dict[str, Column | Words] = {
            "step": keys["step"],
            "subject": keys["subject"],
            "state": states,
            "rank": keys["rank"],
            "attempt": keys["attempt"],
            **rows.columns,
        }
        file, steps = f"rows/{family}/{number:05d}.parquet", _steps(grids)
        masks = dict.fromkeys(rows.columns, HAS_VALUE[states])
        self._put(draft, parquet.encoded(file, columns, steps=steps, grids=grids, valid=masks))

    def _write_sketches(
        self, family: Family, number: int, tables: Sequence[Table], draft: _Draft
    ) -> None:
        """The statistics of several numbers, on the steps that have them for any subject."""
        on = [table.sketched.any(axis=1) for table in tables]
        if not any(steps.any() for steps in on):
            return
        both = list(zip(tables, on, strict=True))
        grids = [Grid(table.grid.steps[steps], table.grid.ids) for table, steps in both]
        there = np.concatenate([table.sketched[steps].reshape(-1) for table, steps in both])
        columns: dict[str, Column | Words] = {**self._keys(grids)}
        for name, first in tables[0].sketches.items():
            parts = [table.sketches[name].reshape(-1, first.shape[-1]) for table in tables]
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        file, steps = f"sketches/{family}/{number:05d}.parquet", _steps(grids)
        masks = dict.fromkeys(tables[0].sketches, there)
        self._put(draft, parquet.encoded(file, columns, steps=steps, grids=grids, valid=masks))

    def _write_rollups(
        self, family: Family, number: int, tables: Sequence[Table], draft: _Draft
    ) -> None:
        rank, attempt = self._manifest.rank, self._manifest.attempt
        parts = [(table.grid, table.columns, table.states) for table in tables]
        file = f"rollups/{family}-10/{number:05d}.parquet"
        sealed = rollups.sealed(file, parts, rank, attempt, self._yield_gil)
        draft.waiting.setdefault(f"{family}-10", []).append(self._put(draft, sealed))

    def _keys(self, grids: Sequence[Grid]) -> dict[str, NDArray[Any]]:
        """The columns that say what a row is about."""
        steps = [np.repeat(grid.steps, len(grid.ids)) for grid in grids]
        subjects = [np.tile(grid.ids, len(grid.steps)) for grid in grids]
        return {
            "step": np.concatenate(steps),
            "subject": np.concatenate(subjects),
            **self._origin(sum(len(part) for part in steps)),
        }

    def _origin(self, rows: int) -> dict[str, NDArray[Any]]:
        return {
            "rank": np.full(rows, self._manifest.rank, np.int32),
            "attempt": np.full(rows, self._manifest.attempt, np.int32),
        }

    # -- all else ----------------------------------------------------------------------------------

    def _write_small(
        self, number: int, records: Sequence[StoredRecord], draft: _Draft
    ) -> list[Event]:
        """Scalars, subjects, graph and notes; the events are given back."""
        events: list[Event] = []
        scalars = []
        info = dict(draft.manifest.info)
        subjects = dict(draft.subjects)
        graph: bytes | None = None
        for record in records:
            assert record.payload is not None
            match record.head.type:
                case Type.SCALARS:
                    scalars.append(unpack_scalars(record.payload))
                case Type.EVENT:
                    rank = self._manifest.rank
                    events.append(unpack_event(record.payload, record.head.step, rank))
                case Type.SUBJECTS:
                    subjects.update(from_json(record.payload))
                case Type.NOTE:
                    info.update(from_json(record.payload))
                case Type.GRAPH:
                    graph = bytes(record.payload)
            self._yield_gil()
        draft.manifest = replace(draft.manifest, info=info)
        if scalars:
            self._write_scalars(number, scalars, draft)
        if subjects != draft.subjects:
            draft.subjects = subjects
            self._write_subjects(draft)
        if graph is not None:
            entry = SealedFile(GRAPH, len(graph), 0, (), 0, (zlib.crc32(graph),))
            self._write_beside(draft, graph, entry)
        return events

    def _write_histograms(
        self, family: Family, number: int, table: Mapping[str, Any], draft: _Draft
    ) -> None:
        columns: dict[str, Column | Words] = {
            "step": table["step"],
            "subject": table["subject"],
            **self._origin(len(table["step"])),
            **table,
        }
        file = f"histograms/{family}/{number:05d}.parquet"
        self._put(draft, parquet.encoded(file, columns, steps=table["step"]))

    def _write_scalars(
        self,
        number: int,
        parts: Sequence[tuple[Sequence[str], NDArray[np.void]]],
        draft: _Draft,
    ) -> None:
        names, rows = joined_scalars(parts)
        steps = np.ascontiguousarray(rows["step"])
        columns: dict[str, Column | Words] = {
            "step": steps,
            "name": Words(rows["name"], names),
            "value": rows["value"],
        }
        self._put(draft, parquet.encoded(f"scalars/{number:05d}.parquet", columns, steps=steps))

    def _write_events(self, number: int, events: Sequence[Event], draft: _Draft) -> None:
        if events:
            self._put(draft, events_file(number, events))

    def _write_subjects(self, draft: _Draft) -> None:
        described = sorted(draft.subjects.items())
        apart = ("name", "kind", "layer", "placement")
        details = [
            to_json({key: value for key, value in subject.items() if key not in apart}).decode()
            for _, subject in described
        ]
        placements = [subject.get("placement") for _, subject in described]
        columns: dict[str, Column | Words] = {
            "subject": np.array([number for number, _ in described], np.uint32),
            **{name: [str(s.get(name, "")) for _, s in described] for name in apart[:3]},
            **self._origin(len(described)),
            "details": details,
            # Apart: all the rest is mostly the same on every rank, which readers make use of.
            "placement": [to_json(place).decode() if place else "" for place in placements],
        }
        raw, entry = parquet.encoded(SUBJECTS, columns, steps=np.empty(0, np.int64))
        self._write_beside(draft, raw, entry)

    # -- rollups of rollups, and what may go -------------------------------------------------------

    def _merge(self, draft: _Draft, *, whole: bool) -> None:
        """Every ten files of a level become one of the next; at the end the rest does too, unless
        it is a single file: then the finer level is as quickly read."""
        for fine, coarse in LEVELS:
            for family in Family:
                waiting = draft.waiting.get(f"{family}-{fine}", [])
                while len(waiting) >= MERGED_FILES or (whole and waiting):
                    batch = waiting[:MERGED_FILES]
                    file = f"rollups/{family}-{coarse}/{batch[-1].number:05d}.parquet"
                    try:
                        entry = self._put(draft, self._merged(file, batch, coarse))
                    except parquet.Unreadable:
                        # Tried again at the next seal; until then, as a file stands for all since
                        # the one before it, none may follow.
                        break
                    del waiting[:MERGED_FILES]
                    draft.waiting.setdefault(f"{family}-{coarse}", []).append(entry)
                    self._yield_gil()

    def _merged(
        self, file: str, batch: Sequence[SealedFile], most: int
    ) -> tuple[memoryview, SealedFile]:
        sources = []
        for entry in batch:
            access = Place.of(self.folder).open(entry.file)
            if access is None:
                raise parquet.Unreadable(f"{entry.file} is gone")
            sources.append((access, entry))
        return rollups.merged(file, sources, most)

    def _due(self, draft: _Draft, unsealed: int) -> list[SealedFile]:
        if self._keep is None:
            return []
        rows = {number: list(files) for number, files in self._rows.items()}
        for file in draft.files:
            if file.kind in FULL_ROWS:
                rows.setdefault(file.number, []).append(file)
        replaced = self._replaced | {f.file: f.bytes for f in draft.files if not f.number}
        total = self._bytes + _size(draft.files) + sum(replaced.values()) + unsealed + _EVENT_BYTES
        now = time.monotonic()
        return due(rows, total, self._keep, lambda number: now - self._sealed_at.get(number, now))

    # -- files -------------------------------------------------------------------------------------

    def _put(self, draft: _Draft, encoded: tuple[memoryview, SealedFile]) -> SealedFile:
        """Write a sealed file into its place; the manifest does not name it yet."""
        raw, entry = encoded
        target = self.folder / entry.file
        for folder in reversed(target.relative_to(self.folder).parents[:-1]):
            (self.folder / folder).mkdir(mode_like(self.folder), exist_ok=True)
        write_beside(target, raw)
        place_beside(target)
        draft.files.append(entry)
        self._yield_gil()
        return entry

    def _write_beside(self, draft: _Draft, raw: memoryview | bytes, entry: SealedFile) -> None:
        """A file that is replaced: the old one must stay until the manifest has the new one."""
        write_beside(self.folder / entry.file, raw)
        draft.files.append(entry)
        draft.beside.append(entry.file)

    def _place_beside(self) -> None:
        while self._beside:
            place_beside(self.folder / self._beside[-1])
            self._beside.pop()

    def _publish(self, draft: _Draft, gone: Sequence[SealedFile]) -> None:
        """Replace the manifest: from here on the files count, and the journal does not."""
        now = time.monotonic()
        lines = self._lines | {file.file: file.line() for file in draft.files}
        for file in gone:
            lines.pop(file.file, None)
        self._yield_gil()
        for folder in {(self.folder / file.file).parent for file in draft.files}:
            sync_folder(folder)
        raw = manifests.encode(draft.manifest, list(lines.values()))
        self._yield_gil()
        write_beside(self.folder / manifests.NAME, raw)
        place_beside(self.folder / manifests.NAME)
        self._manifest, self._lines, self._beside = draft.manifest, lines, draft.beside
        self._subjects, self._waiting = draft.subjects, draft.waiting
        self._bytes += _size(draft.files) - _size(gone)
        self._replaced |= {f.file: f.bytes for f in draft.files if not f.number}
        self._replaced[manifests.NAME] = len(raw)
        if self._keep:
            for file in draft.files:
                if file.kind in FULL_ROWS:
                    self._rows.setdefault(file.number, []).append(file)
                    self._sealed_at[file.number] = now
            for file in gone:
                self._rows.pop(file.number, None)
                self._sealed_at.pop(file.number, None)
        sync_folder(self.folder)


def events_file(number: int, events: Sequence[Event]) -> tuple[memoryview, SealedFile]:
    """Events as a sealed file."""
    steps = np.array([event.step for event in events], np.int64)
    columns: dict[str, Column | Words] = {
        "step": steps,
        "kind": [str(event.kind) for event in events],
        "text": [event.text for event in events],
        "subject": [event.subject for event in events],
        "data": [to_json(dict(event.data)).decode() for event in events],
        "wall": np.array([event.wall for event in events], np.float64),
    }
    return parquet.encoded(f"events/{number:05d}.parquet", columns, steps=steps)


def _size(files: Sequence[SealedFile]) -> int:
    return sum(file.bytes for file in files if file.number)


def _steps(grids: Sequence[Grid]) -> NDArray[np.int64]:
    return np.concatenate([grid.steps for grid in grids])


def _with_stretch(
    journals: tuple[tuple[int, int, int, int], ...], added: tuple[int, int, int, int]
) -> tuple[tuple[int, int, int, int], ...]:
    """The sealed journals with one more; one that follows the last belongs to its stretch."""
    if journals:
        first, last, first_record, last_record = journals[-1]
        if last + 1 == added[0] and last_record + 1 == added[2]:
            return (*journals[:-1], (first, added[1], first_record, added[3]))
    return (*journals, added)


def _return_memory() -> None:
    """Give back what the heaps keep of sealing: a training's memory must not grow with it."""
    parquet.release_memory()
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux with glibc
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
