"""What one writer left, finished, growing or killed; numbers are read when somebody asks."""

import contextlib
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gradwatch.run.subject import Event, EventKind, Subject
from gradwatch.stats import Family, Stat, family_stats
from gradwatch.store.layout import BITS, LOG, STEPS, Part, parts_of, read_log, schemas
from gradwatch.store.places import Place
from gradwatch.store.tables import Damaged, as_numpy, read_finished, read_stream

NEVER = (1 << 63) - 1
"""Later than any step."""
Columns = dict[str, Any]
"""Numbers as arrays of numpy, texts and lists as Arrow's."""
Steps = NDArray[np.int64]
Rows = NDArray[np.intp]


def _finished(place: Place, table: str, part: Part, names: tuple[str, ...]) -> Columns:
    with place.open(f"{table}/{part.name}") as file:
        return _as_columns(read_finished(file, names, schemas()[table]), names)


# Finished parts never change, and their folders have names of their own.
held_columns = lru_cache(maxsize=64)(_finished)


def _as_columns(table: pa.Table, names: Sequence[str]) -> Columns:
    columns = {name: table[name] for name in names}
    return {
        name: as_numpy(found) if pa.types.is_primitive(found.type) else found.combine_chunks()
        for name, found in columns.items()
    }


class Folder:
    """One writer's folder, as one look found it."""

    def __init__(self, place: Place) -> None:
        self.place, (rank, attempt, _) = place, place.name.split("-")
        self.rank, self.attempt = int(rank), int(attempt)
        self.end = NEVER
        """The step from which on a later attempt counts instead."""
        self._damage: dict[str, str] = {}
        """By file, what cannot be read; reading may find more."""
        self.look()
        if self._lost:  # a part that was renamed meanwhile may be hidden
            self.look()

    def look(self) -> None:
        """Look, or look again: a writer finishes and removes parts beside us."""
        files = self.place.files()  # before the log, which says what was removed since
        raw = self.place.read(LOG)
        self._lines, damaged = read_log(raw or b"")
        if damaged or (not self._lines and files.keys() - {LOG}):
            self._damage[LOG] = f"has {damaged} damaged lines" if damaged else "is missing or empty"
        self.closed = "closed" in self._lines
        if not self.closed:  # a part that was renamed while it was listed is in none of both names
            files |= self.place.files()
        self.removed: dict[str, int] = {}
        """By table, the number of the newest part that went to keep the run small."""
        for data in self.said("removed"):
            self.removed |= data
        tables: dict[str, list[tuple[str, int]]] = {table: [] for table in schemas()}
        for path, size in files.items():
            table, _, name = path.rpartition("/")
            tables.get(table, []).append((name, size))
        self.parts = {
            table: [part for part in parts_of(found) if part.number > self.removed.get(table, 0)]
            for table, found in tables.items()
        }
        self.first_step = self.parts[STEPS][0].first_step if self.parts[STEPS] else NEVER
        """Where the attempt begins; beyond all steps where nothing was recorded."""
        self._streams: dict[str, pa.Table] = {}
        self._lost = dict(self._missing())

    def _missing(self) -> Iterator[tuple[str, str]]:
        """Parts that should be there: those the last line lists, or all numbers up to the last."""
        closed = self._lines["closed"][-1] if self.closed else {}
        for table, parts in self.parts.items():
            there = {part.number: part for part in parts}
            due = {number: size for number, _, size in closed.get(table, ())}
            for number, size in (due or dict.fromkeys(range(1, max(there, default=0)))).items():
                part = there.get(number)
                if part is None and number > self.removed.get(table, 0):
                    yield f"{table}/{number:05d}", "is missing"
                elif part and size not in (None, part.bytes):
                    yield f"{table}/{part.name}", f"has {part.bytes} bytes instead of {size}"

    def thinned(self) -> "Folder":
        """The same as if `keep` had removed all finished rows: coarse rows stand for them."""
        thinned = copy(self)  # what it finds damaged, this one knows as well
        rows = {t: parts for t, parts in self.parts.items() if t.startswith("rows/")}
        gone = {t: [part for part in parts if part.finished] for t, parts in rows.items()}
        thinned.removed = self.removed | {t: parts[-1].number for t, parts in gone.items() if parts}
        thinned.parts = self.parts | {t: parts[len(gone[t]) :] for t, parts in rows.items()}
        return thinned

    # -- what there is -----------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """What is missing or damaged."""
        return [f"{file} {problem}" for file, problem in (self._lost | self._damage).items()]

    def kept_from(self, table: str) -> int:
        """The first step of which a table has its rows, if rows of it were removed."""
        steps = [part.first_step for part in self.parts[table][:1]]
        return [*steps, NEVER][0] if table in self.removed else -NEVER

    def said(self, kind: str) -> list[Any]:
        """What the lines of the log of one kind say."""
        return self._lines.get(kind, [])

    @cached_property
    def subjects(self) -> dict[int, Subject]:
        """By id, as they were described last."""
        described = (pair for line in self.said("subjects") for pair in line)
        return {number: Subject.from_dict(data) for number, data in described}

    @property
    def events(self) -> list[Event]:
        """As they were written; the last word on what was removed; what is missing or damaged."""
        events = [Event.from_dict(data, self.rank) for data in self.said("event")]
        if self.removed:
            before = max([0, *(self.kept_from(t) for t in self.removed if "coarse/" not in t)])
            text = f"Rows before step {before} were removed to keep the run small."
            data = {"before": before}
            events += [Event(before, EventKind.RETENTION, text, "", data, 0.0, self.rank)]
        damage = [f"Attempt {self.attempt}, rank {self.rank}: {text}." for text in self.problems]
        events += [Event(0, EventKind.DAMAGE, text, rank=self.rank) for text in damage]
        return [event for event in events if event.step < self.end]

    @cached_property
    def stats(self) -> frozenset[Stat]:
        """What was recorded."""
        tables = {table for table, parts in self.parts.items() if parts} | self.removed.keys()
        tables |= {file.rpartition("/")[0] for file in self._lost}  # was recorded all the same
        families = [Family(t.partition("/")[2]) for t in tables if t.startswith("rows/")]
        return frozenset(stat for family in families for stat in family_stats(family))

    @cached_property
    def marks(self) -> tuple[Steps, NDArray[np.uint16]]:
        """Every step that counts, and the families that were recorded on it."""
        found = [*self.columns(STEPS, ("step", "families"))]
        if not self.closed:  # what is marked now is in parts that may not have been listed before
            self.look()
        if any(file.startswith(STEPS) for file in self._lost | self._damage):
            found += self._marks_of_rows()
        steps = np.concatenate([np.empty(0, np.int64), *(part["step"] for part in found)])
        families = np.concatenate([np.empty(0, np.uint16), *(part["families"] for part in found)])
        if not (np.diff(steps) > 0).all():
            several, (steps, at) = families, np.unique(steps, return_inverse=True)
            families = np.zeros(len(steps), np.uint16)
            np.bitwise_or.at(families, at, several)
        count = np.searchsorted(steps, self.end)
        return steps[:count], families[:count]

    def _marks_of_rows(self) -> Iterator[Columns]:
        """Where the table of steps is damaged, rows tell their steps themselves."""
        for family, bit in BITS.items():
            for part in self.columns(f"rows/{family}", ("step",)):
                yield {"step": part["step"], "families": np.full(len(part["step"]), bit, np.uint16)}

    # -- reading -----------------------------------------------------------------------------------

    def columns(self, table: str, *groups: tuple[str, ...]) -> Iterator[Columns]:
        """Some columns of part after part; columns of one group are read and held together."""
        return (self.of(table, part, *groups) for part in self.parts[table])

    def of(self, table: str, part: Part, *groups: tuple[str, ...]) -> Columns:
        """Some columns of one part; without rows where it is damaged or was removed meanwhile."""
        file, names = f"{table}/{part.name}", [name for group in groups for name in group]
        try:
            if not part.finished:
                with contextlib.suppress(FileNotFoundError):
                    return _as_columns(self._stream(file, table), names)
                part = part._replace(finished=True)  # it has become Parquet meanwhile
            found: Columns = {}
            for group in groups if file not in self._lost else ():
                read = _finished if "negative" in group else held_columns  # lists are large
                found |= read(self.place, table, part, group)
            return found or _as_columns(schemas()[table].empty_table(), names)
        except FileNotFoundError:
            self.look()  # it may have been removed meanwhile, which is no damage
        except (Damaged, OSError) as error:
            self._damage[file] = str(error)
        return _as_columns(schemas()[table].empty_table(), names)

    def _stream(self, file: str, table: str) -> pa.Table:
        """A growing part as it was when it was first read, so that all statistics agree."""
        if file not in self._streams:
            with self.place.open(file) as opened:
                found, problem = read_stream(opened.read_buffer(), schemas()[table])
            if problem:
                self._damage[file] = problem
            self._streams[file] = found
        return self._streams[file]

    def miss(self, table: str, steps: Steps) -> None:
        """Note that rows were recorded on these steps and are nowhere."""
        self._damage[table] = f"has lost rows of steps {steps.min()} to {steps.max()}"
