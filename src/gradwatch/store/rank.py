"""One rank of a run: its attempts laid over one another, the newest on top."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph
from gradwatch.run.downsample import Downsampled, downsample
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Event, EventKind, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.attempt import Attempt, Part, Scalars
from gradwatch.store.chunks import Chunk, GridChunk, Vanished, ahead, distinct, lay
from gradwatch.store.downsample import SHOWN, LevelReader, joined_buckets, level_for
from gradwatch.store.format import joined_scalars
from gradwatch.store.histograms import HistogramPart, StoredHistograms
from gradwatch.store.manifest import SealedFile, numbers_of
from gradwatch.store.parquet import Unreadable
from gradwatch.store.rollups import LAST_ONLY, SIZES
from gradwatch.store.subjects import Placements, SubjectTable

LOOKS = 50
"""How often to look again where a growing run changes under the reader; mostly once is enough."""
LITTLE_CELLS = 1 << 20
SCALARS_AT_ONCE = 256
"""Records or files of logged numbers that are joined: each alone is slow, all take memory twice."""

_NEVER = 1 << 63
"""Later than any step."""

Result = TypeVar("Result")


class _Piece(NamedTuple):
    """A chunk that was read: one statistic of it, or only one half where they lie in two files."""

    steps: NDArray[np.int64]
    ids: NDArray[np.uint32]
    values: NDArray[Any] | None
    states: NDArray[np.uint8] | None


@dataclass(frozen=True)
class _Table:
    """One statistic of some steps while it is filled in, chunk after chunk.

    The order matters: attempts from old to new, within one as it was written, so that whatever
    counts more comes later and overwrites.
    """

    steps: NDArray[np.int64]
    owners: NDArray[np.int64]
    """For every step, which attempt (by position) counts."""
    values: NDArray[Any]
    states: NDArray[np.uint8]

    def owns(self, position: int, first: int, last: int) -> bool:
        """Whether the attempt at `position` counts on any step of a range."""
        begin, end = np.searchsorted(self.steps, [first, last + 1])
        return bool((self.owners[begin:end] == position).any())

    def lay(self, piece: _Piece, position: int, columns: NDArray[np.int64]) -> None:
        """Put a piece of the attempt at `position` where it belongs."""
        rows, wanted = self._rows(piece.steps, position)
        if not wanted.any():
            return
        present = np.flatnonzero(columns >= 0)  # all, unless the run grew since it was opened
        columns, whole = columns[present], len(present) == len(columns)
        if piece.values is not None:
            values = piece.values
            if self.values.dtype == np.uint64 and values.dtype.kind == "f":
                # Another version may store a count as a float; casting NaN or a giant is undefined.
                values = np.nan_to_num(values, posinf=0.0).clip(0.0, 2.0**63).astype(np.uint64)
            with np.errstate(invalid="ignore"):  # a forged signalling NaN is no reason to warn
                lay(self.values, rows, columns, wanted, values if whole else values[:, present])
        if piece.states is not None:
            states = piece.states if whole else piece.states[:, present]
            lay(self.states, rows, columns, wanted, states)

    def mark_damage(self, steps: NDArray[np.int64], position: int) -> None:
        """On these steps an attempt's values are damaged, not unsampled, where it has none."""
        rows, wanted = self._rows(steps, position)
        states = self.states[rows[wanted]]
        states[states == State.NOT_SAMPLED] = State.DAMAGED
        self.states[rows[wanted]] = states

    def _rows(
        self, steps: NDArray[np.int64], position: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        # `searchsorted` gives a row for any step, also for one outside the table: compare again.
        rows = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        return rows, (self.owners[rows] == position) & (self.steps[rows] == steps)

    def blank(self, fill: float) -> None:
        """Clear the numbers beside states that mean "no value": a file may hold anything there."""
        without = ~HAS_VALUE[self.states]
        if without.any():
            self.values[without] = fill


class RankSource:
    """Implements `Source` for one rank. From its first step on, an attempt takes the place of those
    before it: a resumed training goes on from its checkpoint, and one that begins anew is another.

    `begins` is the first step of each attempt on any rank. What counts nowhere is left out.
    """

    def __init__(
        self,
        rank: int,
        attempts: Sequence[Attempt],
        info: Mapping[str, Any],
        begins: Mapping[int, int],
    ) -> None:
        self.rank = rank
        self._numbers = [attempt.number for attempt in attempts]
        later = sorted(begins)
        # For each place among them, the lowest first step of those from there on.
        lowest = [*accumulate((begins[n] for n in reversed(later)), min, initial=_NEVER)][::-1]
        ends = (lowest[bisect_right(later, own)] for own in self._numbers)
        both = zip(attempts, ends, strict=True)
        counting = [(a, end) for a, end in both if end == _NEVER or (a.steps < end).any()]
        self.attempts = [attempt for attempt, _ in counting]
        self._ends = [end for _, end in counting]
        """For each attempt, the step from which on it does not count."""
        self._info = info
        self.budget = attempts[0].folder.budget
        self._zero: dict[Stat, bool] = {}
        self._columns_of: dict[tuple[int, Kind, bytes], NDArray[np.int64]] = {}

    # -- what there is ---------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes of series that a `Run` may keep."""
        return self.budget.room

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step on which an attempt counts, each once."""
        parts = self._counting
        return distinct(np.concatenate(parts)) if len(parts) > 1 else parts[0]

    @cached_property
    def _counting(self) -> list[NDArray[np.int64]]:
        """The steps on which each attempt counts, unless one of the same number has them too."""
        both = zip(self.attempts, self._ends, strict=True)
        return [attempt.steps[attempt.steps < end] for attempt, end in both]

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """For every step, which attempt (by position) counts."""
        owners = np.zeros(len(self.steps), np.int64)
        # Old attempts first, so that the newest takes the steps it repeats.
        for position, steps in enumerate(self._counting[1:], start=1):
            owners[np.searchsorted(self.steps, steps)] = position
        return owners

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Every subject any attempt has named, as the newest attempt described it."""
        newest: dict[tuple[Kind, str], Subject] = {}
        for table, placements in self._tables:
            for subject, place in zip(table.by_id.values(), placements, strict=True):
                placed = subject if place is None else replace(subject, placement=place)
                newest[subject.kind, subject.name] = placed
        return tuple(newest.values())

    @cached_property
    def table(self) -> SubjectTable:
        """The same without the placements; ranks share it."""
        first = self._tables[0][0]
        alone = all(table is first for table, _ in self._tables)
        return first if alone else SubjectTable(dict(enumerate(self.subjects)))

    def names(self, kind: Kind) -> tuple[str, ...]:
        """The subjects of a kind: the columns of its series."""
        return self.table.names[kind]

    def placements(self, kind: Kind) -> Placements:
        """Those of the subjects of a kind."""
        newest = {}
        for table, placements in self._tables:
            for subject, place in zip(table.by_id.values(), placements, strict=True):
                if subject.kind is kind:
                    newest[subject.name] = place
        return list(newest.values())

    @cached_property
    def _tables(self) -> list[tuple[SubjectTable, Placements]]:
        """Of each attempt, as it was when it was first looked at."""
        return self._steadily(lambda: [(a.subjects, a.placements) for a in self.attempts])

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        """What at least one attempt has a column for."""
        return frozenset().union(*(attempt.stats for attempt in self.attempts))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """Logged numbers by name, one per step; NaN where the attempt that counts logged none."""
        table = self._steadily(self._logged)
        for column in table.values():
            column.setflags(write=False)
        return table

    def _logged(self) -> dict[str, NDArray[np.float64]]:
        table: dict[str, NDArray[np.float64]] = {}
        for position, attempt in enumerate(self.attempts):
            parts = attempt.scalars()
            while some := list(islice(parts, SCALARS_AT_ONCE)):
                self._log(position, some, table)
        return table

    def _log(
        self, position: int, parts: Sequence[Scalars], table: dict[str, NDArray[np.float64]]
    ) -> None:
        """Put what an attempt logged on its own steps into the table."""
        names, rows = joined_scalars(parts)
        rows = rows[rows["step"] < self._ends[position]]
        columns = len(table.keys() | set(names))
        claim = f"{columns:,} scalars of {len(self.steps):,} steps"
        self.budget.keep((self.rank, "scalars"), 8 * len(self.steps) * columns, claim)
        at = np.minimum(np.searchsorted(self.steps, rows["step"]), len(self.steps) - 1)
        owned = (self.owners[at] == position) & (self.steps[at] == rows["step"])
        order = np.argsort(rows["name"], kind="stable")
        order = order[owned[order]]
        ends = np.searchsorted(rows["name"][order], np.arange(len(names) + 1))
        for name, begin, end in zip(names, ends[:-1], ends[1:], strict=True):
            chosen = order[begin:end]
            if name not in table:
                table[name] = np.full(len(self.steps), np.nan)
            table[name][at[chosen]] = rows["value"][chosen]  # of several the last stays

    @property
    def events(self) -> tuple[Event, ...]:
        """What was recorded as an event, and what turned out damaged, by step."""
        read = self._steadily(lambda: [attempt.events for attempt in self.attempts])
        both = zip(read, self._ends, strict=True)
        events = [event for recorded, end in both for event in recorded if event.step < end]
        for attempt in self.attempts:
            events += [
                Event(
                    max(damage.first_step or 0, 0),
                    EventKind.DAMAGE,
                    f"Attempt {attempt.number}, rank {self.rank}: {damage.text}.",
                    rank=self.rank,
                )
                for damage in attempt.damage
            ]
        return tuple(sorted(events, key=lambda event: event.step))

    @cached_property
    def graph(self) -> Graph | None:
        """The layer graph of the newest attempt that stored one."""
        graphs = self._steadily(lambda: [attempt.graph for attempt in self.attempts])
        return next((graph for graph in reversed(graphs) if graph is not None), None)

    @property
    def info(self) -> dict[str, Any]:
        """The notes of all attempts, newer over older, and `run.json` over all."""
        merged: dict[str, Any] = {}
        for attempt in self.attempts:
            merged.update(attempt.notes)
        merged.update(self._info)
        merged["ranks"] = 1
        merged["attempts"] = self._numbers
        # A killed attempt was continued by the next: only the last one's end tells.
        damaged = any(attempt.damage for attempt in self.attempts)
        merged["complete"] = bool(self.attempts) and self.attempts[-1].closed and not damaged
        return merged

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """The runs of the single ranks: here only this one."""
        return {self.rank: Run(self)}

    # -- reading ---------------------------------------------------------------------------------

    def load(self, stat: Stat) -> Loaded:
        """One statistic of every subject on the steps that have it, from the attempt that counts
        on each of them."""

        def loaded() -> Loaded:
            rows = np.flatnonzero(self.sampled(stat))
            table = self._table(stat, np.float64, np.nan, rows)
            known = rows if len(rows) < len(self.steps) else None
            return Loaded(table.values, table.states, known).compact()

        return self._steadily(loaded)

    def sampled(self, stat: Stat) -> NDArray[np.bool_]:
        """On which steps a statistic has rows, readable or not; no file is read for that."""
        marks = np.zeros(len(self.steps), bool)
        if stat not in self.recorded or not len(marks):
            return marks
        for attempt in self.attempts:
            if any(damage.last_step is not None for damage in attempt.damage):
                return ~marks  # what was lost counts as *damaged*: look everywhere
            parts = attempt.parts(stat, -(1 << 62), 1 << 62)
            steps = np.concatenate([np.empty(0, np.int64), *map(_steps_of, parts)])
            at = np.minimum(np.searchsorted(self.steps, steps), len(marks) - 1)
            marks[at[self.steps[at] == steps]] = True
        return marks

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """The same of a 64-bit column, exactly; 0 where there is no value."""
        rows = np.arange(len(self.steps))
        return self._steadily(lambda: self._table(stat, np.uint64, 0, rows)).values

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """One parameter's histograms by step, from the attempt that counts on each step."""
        return StoredHistograms(self._steadily(lambda: self._histograms(family, name)))

    def _histograms(self, family: Family, name: str) -> list[HistogramPart]:
        parts = []
        for position, attempt in enumerate(self.attempts):
            for number in attempt.subjects.numbers.get((family.kind, name), ()):
                for part in attempt.histograms(family, number):
                    # A step may have a histogram and no rows; then no attempt owns it, and the
                    # newest one's, which comes last, stays.
                    known = np.isin(part.steps, self.steps)
                    mine = ~known & (part.steps < self._ends[position])
                    at = np.searchsorted(self.steps, part.steps[known])
                    mine[known] = self.owners[at] == position
                    parts.append(HistogramPart(part.steps[mine], part.rows[mine], part.read))
        return parts

    def downsample(self, stat: Stat, first: int, last: int, points: int) -> Downsampled | None:
        """From the rollups, where one attempt has all steps of the range and it is long enough."""
        begin, end = np.searchsorted(self.steps, [first, last + 1]).tolist()
        owners = self.owners[begin:end]
        alone = len(owners) > 0 and bool((owners == owners[0]).all())
        if not alone or stat.width > 1 or str(stat) in LAST_ONLY:
            return None
        position = int(owners[0])
        attempt, last = self.attempts[position], min(last, self._ends[position] - 1)
        files = [attempt.files("rollups", f"{stat.family}-{size}") for size in SIZES]
        if self._little(stat, files[0]):
            return None
        level = level_for(end - begin, points)
        newest = files[0][-1].number if files[0] else 0
        # A journal that could not be sealed is in no rollup, though later ones are.
        left = any(chunk.number < newest for chunk in attempt.journal_chunks)
        if level < 0 or not newest or left:
            return self._downsample_rows(stat, begin, end, points)

        def rows(after: int, upto: int | None, low: int, high: int) -> Iterator[Chunk]:
            for part in attempt.parts(stat, low, high):
                if part.number > after and (upto is None or part.number <= upto):
                    yield from attempt.chunks(part, low, high)

        reader = LevelReader(stat, files, lambda file: attempt.table(file).chunks(), rows)
        try:
            parts = list(reader.buckets(level, first, last))
        except Unreadable:
            return None  # the whole series tells what is damaged
        if not parts:
            return None
        buckets = sum(len(part.first) for part in parts)
        self.budget.table(buckets, self._width(stat.kind) + 1, "buckets", len(SHOWN))
        ids = np.unique(np.concatenate([part.ids for part in parts]))
        at = self._columns(ids, position, stat.kind).tolist()
        columns = dict(zip(ids.tolist(), at, strict=True))
        return joined_buckets(parts, columns, self._width(stat.kind), points)

    def _little(self, stat: Stat, rollups: Sequence[SealedFile]) -> bool:
        """Whether all rows are there and few: then the series itself is as quick.

        Where buckets end depends on when files were sealed, so that of the same training twice they
        would look a little different.
        """
        rows = np.flatnonzero(self.sampled(stat))
        if not len(rows) or len(rows) * self._width(stat.kind) > LITTLE_CELLS:
            return False
        return not rollups or int(self.steps[rows[0]]) <= rollups[0].first_step

    def _downsample_rows(self, stat: Stat, begin: int, end: int, points: int) -> Downsampled | None:
        """A short range of a long run is read alone, not with all the rest."""
        if 2 * (end - begin) > len(self.steps):
            return None
        rows = np.arange(begin, end)
        values = self._steadily(lambda: self._table(stat, np.float64, np.nan, rows)).values
        steps = self.steps[begin:end]
        return downsample(steps, values, int(steps[0]), int(steps[-1]), points)

    def never(self, stat: Stat) -> bool:
        """Whether rollups show, at little cost, that a count is zero in the whole run."""
        if stat not in self._zero:
            covered = all(
                attempt.files("rollups", f"{stat.family}-10") for attempt in self.attempts
            )
            ends = (int(self.steps[0]), int(self.steps[-1])) if len(self.steps) else (0, 0)
            point = self.downsample(stat, *ends, 1) if covered else None
            self._zero[stat] = point is not None and not (point.high > 0).any()
        return self._zero[stat]

    def _table(self, stat: Stat, dtype: type, fill: float, rows: NDArray[np.intp]) -> _Table:
        """Values and states of the steps in `rows`."""
        steps, owners = self.steps[rows], self.owners[rows]
        shape = (len(steps), self._width(stat.kind))
        # A vector is laid out in one piece; of its numbers less is made beside it.
        self.budget.table(*shape, "steps", max(1, stat.width // 4))
        states = np.full(shape, State.NOT_SAMPLED, np.uint8)
        if stat.width == 1:  # every cell is filled or blanked
            values: NDArray[Any] = np.empty(shape, dtype)
        else:
            values = np.full((*shape, stat.width), fill, dtype)
        table = _Table(steps, owners, values, states)
        if len(steps):
            self._fill(stat, table)
        table.blank(fill)
        return table

    def _fill(self, stat: Stat, table: _Table) -> None:
        first, last = int(table.steps[0]), int(table.steps[-1])
        jobs = [
            (position, attempt, part)
            for position, attempt in enumerate(self.attempts)
            for part in attempt.parts(stat, first, last)
            if table.owns(position, part.first_step, part.last_step)
        ]
        damaged: list[tuple[int, Part]] = []
        self.budget.pieces(count := len(jobs))
        read = lambda job: _read(stat, job[1], job[2], first, last)  # noqa: E731
        for (position, _, part), pieces in zip(jobs, ahead(read, jobs), strict=True):
            if pieces is None:
                damaged.append((position, part))
            self.budget.pieces(count := count + len(pieces or ()))
            for piece in pieces or ():
                columns = self._columns(piece.ids, position, stat.kind)
                table.lay(piece, position, columns)
        if stat.width > 1:
            # Its row is shared with the other statistics of the gradient, which are taken oftener.
            none = HAS_VALUE[table.states] & np.isnan(table.values).all(axis=2)
            table.states[none] = State.NOT_SAMPLED
        for position, part in damaged:
            table.mark_damage(_steps_of(part), position)
        for position, attempt in enumerate(self.attempts):
            for damage in attempt.damage:
                if damage.last_step is not None and damage.family in (None, stat.family):
                    begin = np.searchsorted(table.steps, damage.first_step or 0)
                    end = np.searchsorted(table.steps, damage.last_step, side="right")
                    table.mark_damage(table.steps[begin:end], position)

    def _steadily(self, read: Callable[[], Result]) -> Result:
        """What `read` gives. A writer seals and deletes beside us: where a file went that need not
        be there any more, all is read again after a fresh look, since parts may be stale."""
        for _ in range(LOOKS):
            try:
                return read()
            except Vanished:
                # Steps that came meanwhile are left for the next opening.
                self.attempts = [attempt.folder.look() for attempt in self.attempts]
                self._columns_of.clear()
        raise GradwatchError(
            "Expected a run that stays while it is read, but its files go as fast as they are "
            "looked at. Try again when nobody deletes it."
        )

    def _width(self, kind: Kind) -> int:
        return len(self.names(kind))

    def _columns(self, ids: NDArray[np.uint32], position: int, kind: Kind) -> NDArray[np.int64]:
        """Where an attempt's subjects stand in the table; −1 for one that is not in it."""
        key = position, kind, ids.tobytes()  # the same for nearly all chunks of a family
        columns = self._columns_of.get(key)
        if columns is None:
            subjects, column_of = self.attempts[position].subjects.by_id, self.table.columns[kind]
            found = [subjects.get(number) for number in ids.tolist()]
            columns = np.array([column_of.get(s.name, -1) if s else -1 for s in found], np.int64)
            self._columns_of[key] = columns
        return columns


def _steps_of(part: Part) -> NDArray[np.int64]:
    return numbers_of(part.steps) if isinstance(part, SealedFile) else part.steps


def _read(stat: Stat, attempt: Attempt, part: Part, first: int, last: int) -> list[_Piece] | None:
    """One statistic of a part; None where it is damaged."""
    try:
        return [
            piece
            for chunk in attempt.chunks(part, first, last)
            if (piece := _piece(stat, chunk)) is not None
        ]
    except Unreadable as error:
        attempt.blame(part, error)
        return None


def _piece(stat: Stat, chunk: Chunk) -> _Piece | None:
    if stat.width > 1 and isinstance(chunk, GridChunk):  # the states are in another file
        if chunk.table.entry.kind == "sketches":
            return _Piece(chunk.steps, chunk.ids, chunk.vectors(stat), None)
        return _Piece(chunk.steps, chunk.ids, None, chunk.states(stat))
    if stat not in chunk.stats:
        return None
    values = chunk.column(stat)
    if values.shape[2:] != ((stat.width,) if stat.width > 1 else ()):
        raise Unreadable(f"its column {stat} is of another width")
    return _Piece(chunk.steps, chunk.ids, values, chunk.states(stat))
