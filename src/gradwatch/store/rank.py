"""One rank of a run: its attempts laid over one another, the newest on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph
from gradwatch.run.downsample import Downsampled, downsample
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Event, EventKind, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.attempt import LOOKS, Attempt
from gradwatch.store.chunks import Chunk, Damage, Vanished, distinct, lay
from gradwatch.store.downsample import RangeBuckets, joined_buckets, level_for
from gradwatch.store.format import joined_scalars
from gradwatch.store.rollups import LAST_ONLY

_DENSE_CELLS = 1 << 27
"""A table of up to so many cells is made whatever it holds …"""
_SPARSEST = 1 / 256
"""… a larger one only if at least this share of its cells is stored in the run."""


@dataclass(frozen=True)
class _Table:
    """One statistic of some steps while it is filled in, chunk after chunk.

    The order matters: attempts from old to new, within one the coarse chunks before the fine, so
    that whatever counts more comes later and overwrites.
    """

    steps: NDArray[np.int64]
    owners: NDArray[np.int64]
    """For every step, which attempt (by position) counts."""
    values: NDArray[Any]
    states: NDArray[np.uint8]

    def lay(self, chunk: Chunk, stat: Stat, position: int, columns: NDArray[np.int64]) -> None:
        """Put a chunk of the attempt at `position` where it belongs."""
        # `searchsorted` gives a row for any step, also for one outside the table: compare again.
        rows = np.minimum(np.searchsorted(self.steps, chunk.steps), len(self.steps) - 1)
        wanted = (self.owners[rows] == position) & (self.steps[rows] == chunk.steps)
        if not wanted.any():
            return
        present = np.flatnonzero(columns >= 0)  # all, unless the run grew since it was opened
        columns = columns[present]
        column, states = chunk.column(stat), chunk.states(stat)
        if column is None or states is None or column.shape[2:] != self.values.shape[2:]:
            damaged = np.full((len(rows), len(columns)), State.DAMAGED)
            lay(self.states, rows, columns, wanted, damaged)
            return
        if self.values.dtype == np.uint64 and column.dtype.kind == "f":
            # Another version may store a count as a float; casting NaN or a giant is undefined.
            column = np.nan_to_num(column, posinf=0.0).clip(0.0, 2.0**63).astype(np.uint64)
        with np.errstate(invalid="ignore"):  # a forged signalling NaN is no reason to warn
            lay(self.values, rows, columns, wanted, column[:, present])
        lay(self.states, rows, columns, wanted, states[:, present])

    def mark_damage(self, damage: Damage, position: int) -> None:
        """Steps an attempt has nothing for are damaged, not unsampled, where rows were lost."""
        assert damage.first_step is not None
        last = damage.first_step if damage.last_step is None else damage.last_step
        begin = np.searchsorted(self.steps, damage.first_step)
        end = np.searchsorted(self.steps, last, side="right")
        states = self.states[begin:end]
        owned = (self.owners[begin:end] == position)[:, None]
        states[owned & (states == State.NOT_SAMPLED)] = State.DAMAGED

    def blank(self, fill: float) -> None:
        """Clear the numbers beside states that mean "no value": a file may hold anything there."""
        without = ~HAS_VALUE[self.states]
        if without.any():
            self.values[without] = fill


class RankSource:
    """Implements `Source` for one rank. On every step the newest attempt that has it counts: a
    resumed training repeats the steps since its checkpoint, and goes on from the repeated ones."""

    def __init__(self, rank: int, attempts: Sequence[Attempt], info: Mapping[str, Any]) -> None:
        self.rank = rank
        self.attempts = list(attempts)
        self._info = info
        self._zero: dict[Stat, bool] = {}
        self._subjects_of: dict[int, dict[int, Subject]] = {}
        self._columns_of: dict[tuple[int, Kind, bytes], NDArray[np.int64]] = {}

    # -- what there is ---------------------------------------------------------------------------

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step that any attempt has, each once."""
        parts = [attempt.steps for attempt in self.attempts]
        return distinct(np.concatenate([*parts, np.empty(0, np.int64)]))

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """For every step, which attempt (by position) counts."""
        owners = np.zeros(len(self.steps), np.int64)
        # Old attempts first, so that the newest takes the steps it repeats.
        for position, attempt in enumerate(self.attempts):
            owners[np.searchsorted(self.steps, attempt.steps)] = position
        return owners

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Every subject any attempt has named, as the newest attempt described it."""
        return tuple(self.by_name.values())

    @cached_property
    def by_name(self) -> dict[tuple[Kind, str], Subject]:
        """The newest description of each subject, in the order in which they first appeared."""
        newest: dict[tuple[Kind, str], Subject] = {}
        for attempt in self.attempts:
            for _, subject in sorted(self._named(attempt).items()):
                newest[subject.kind, subject.name] = subject
        return newest

    @cached_property
    def columns(self) -> dict[tuple[Kind, str], int]:
        """Column of each subject in the series of its kind."""
        widths = dict.fromkeys(Kind, 0)
        columns = {}
        for kind, name in self.by_name:
            columns[kind, name] = widths[kind]
            widths[kind] += 1
        return columns

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        """What at least one attempt has a column for."""
        return frozenset().union(*(attempt.stats for attempt in self.attempts))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """Logged numbers by name, one per step; NaN where the attempt that counts logged none."""
        table: dict[str, NDArray[np.float64]] = {}
        for position, attempt in enumerate(self.attempts):
            names, rows = joined_scalars(attempt.small.scalars)
            at = self._places(rows["step"])
            owned = self.owners[at] == position
            for number, name in enumerate(names):
                chosen = owned & (rows["name"] == number)
                if name not in table:
                    table[name] = np.full(len(self.steps), np.nan)
                table[name][at[chosen]] = rows["value"][chosen]  # of several the last stays
        for column in table.values():
            column.setflags(write=False)
        return table

    def _places(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where steps that the run has are in `self.steps`; no search where none is left out."""
        if len(self.steps) and self.steps[-1] - self.steps[0] + 1 == len(self.steps):
            places: NDArray[np.int64] = steps - self.steps[0]
            return places
        return np.searchsorted(self.steps, steps)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was recorded as an event, and what turned out damaged, by step."""
        events = [event for attempt in self.attempts for event in attempt.small.events]
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

    @property
    def graph(self) -> Graph | None:
        """The layer graph of the newest attempt that stored one."""
        graphs = [a.small.graph for a in self.attempts if a.small.graph is not None]
        return graphs[-1] if graphs else None

    @cached_property
    def info(self) -> dict[str, Any]:
        """The notes of all attempts, newer over older, and `run.json` over all."""
        merged: dict[str, Any] = {}
        for attempt in self.attempts:
            for note in attempt.small.notes:
                merged.update(note)
        merged.update(self._info)
        merged["ranks"] = 1
        merged["attempts"] = [attempt.number for attempt in self.attempts]
        # A killed attempt was continued by the next: only the last one's end tells.
        merged["complete"] = bool(self.attempts) and self.attempts[-1].small.closed
        return merged

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """The runs of the single ranks: here only this one."""
        return {self.rank: Run(self)}

    # -- reading ---------------------------------------------------------------------------------

    def load(self, stat: Stat) -> Loaded:
        """One statistic of every step and subject, from the attempt that counts on each step."""
        table = self._filled(stat, np.float64, np.nan)
        if stat is Stat.GRAD_SKETCH:
            # Its row is shared with the other statistics of the gradient, which are taken oftener.
            none = HAS_VALUE[table.states] & np.isnan(table.values).all(axis=2)
            table.states[none] = State.NOT_SAMPLED
        return Loaded(table.values, table.states)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """The same of a 64-bit column, exactly; 0 where there is no value."""
        return self._filled(stat, np.uint64, 0).values

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """One parameter's histograms by step, from the attempt that counts on each step."""
        by_step: dict[int, Histogram] = {}
        for position, attempt in enumerate(self.attempts):
            for number, subject in attempt.small.subjects.items():
                if subject.name != name or subject.kind is not family.kind:
                    continue
                for step, histogram in attempt.small.histograms.get((family, number), {}).items():
                    at = int(np.searchsorted(self.steps, step))
                    # A step may have a histogram and no rows; then no attempt owns it, and the
                    # newest one's, which comes last, stays.
                    present = at < len(self.steps) and self.steps[at] == step
                    if not present or self.owners[at] == position:
                        by_step[step] = histogram
        return dict(sorted(by_step.items()))

    def downsample(self, stat: Stat, first: int, last: int, points: int) -> Downsampled | None:
        """From the rollups, where one attempt has all steps of the range and it is long enough."""
        begin, end = np.searchsorted(self.steps, [first, last + 1]).tolist()
        owners = self.owners[begin:end]
        alone = len(owners) > 0 and bool((owners == owners[0]).all())
        if not alone or stat.width > 1 or str(stat) in LAST_ONLY:
            return None
        attempt = self.attempts[int(owners[0])]
        level = level_for(end - begin, points)
        if not level or stat.family not in attempt.rollup_index:
            return self._downsample_rows(stat, begin, end, points)
        chunks = attempt.chunk_index.meeting(stat.family, first, last)
        rollups = attempt.rollup_index.meeting(stat.family, first, last)
        reading = RangeBuckets(stat, first, last, level, attempt.index.cache)
        try:
            parts = reading.collect(chunks, rollups)
        except Vanished:
            return None  # retention was faster
        if not parts:
            return None
        names = self._named(attempt)
        ids = {number for part in parts for number in part.ids.tolist()}
        columns = {n: self.columns[stat.kind, _name_of(names, n, stat.kind)] for n in ids}
        return joined_buckets(parts, columns, self._width(stat.kind), points)

    def _downsample_rows(self, stat: Stat, begin: int, end: int, points: int) -> Downsampled | None:
        """A short range of a long run is read alone, not with all the rest."""
        if 2 * (end - begin) > len(self.steps):
            return None
        values = self._filled(stat, np.float64, np.nan, slice(begin, end)).values
        steps = self.steps[begin:end]
        return downsample(steps, values, int(steps[0]), int(steps[-1]), points)

    def never(self, stat: Stat) -> bool:
        """Whether rollups show, at little cost, that a count is zero in the whole run."""
        if stat not in self._zero:
            covered = all(stat.family in attempt.rollup_index for attempt in self.attempts)
            ends = (int(self.steps[0]), int(self.steps[-1])) if len(self.steps) else (0, 0)
            point = self.downsample(stat, *ends, 1) if covered else None
            self._zero[stat] = point is not None and not (point.high > 0).any()
        return self._zero[stat]

    def _filled(self, stat: Stat, dtype: type, fill: float, rows: slice = slice(None)) -> _Table:
        """Values and states of all steps, or of those in `rows`."""
        for _ in range(LOOKS):
            steps, owners = self.steps[rows], self.owners[rows]
            shape = (len(steps), self._width(stat.kind))
            self._refuse_sparse(stat.family, *shape)
            full = shape if stat.width == 1 else (*shape, stat.width)
            states = np.full(shape, State.NOT_SAMPLED, np.uint8)
            table = _Table(steps, owners, np.full(full, fill, dtype), states)
            # A writer seals and deletes beside us. Where a file went, its rows are in another by
            # now: the table is begun again from a fresh index, since parts of it may be stale.
            try:
                self._fill(stat, table)
            except Vanished:
                self._look_again()
                continue
            table.blank(fill)
            return table
        raise GradwatchError(
            "Expected a run that stays while it is read, but its files go as fast as they are "
            "looked at. Try again when nobody deletes it."
        )

    def _fill(self, stat: Stat, table: _Table) -> None:
        if not len(table.steps):
            return
        family = stat.family
        first, last = int(table.steps[0]), int(table.steps[-1])
        for position, attempt in enumerate(self.attempts):
            for chunk in attempt.chunks_near(family, first, last):
                if stat in chunk.stats:
                    table.lay(chunk, stat, position, self._columns(chunk, attempt))
            for damage in attempt.damage:  # after the chunks: reading them may have found some
                if damage.first_step is not None and damage.family in (None, family):
                    table.mark_damage(damage, position)

    def _look_again(self) -> None:
        """Index the folders anew; steps that came meanwhile are left for the next opening."""
        for attempt in self.attempts:
            attempt.index.refresh()
        self.attempts = [Attempt.of(attempt.index) for attempt in self.attempts]
        # Keyed by id(attempt), which Python may give to a new attempt again.
        self._subjects_of.clear()
        self._columns_of.clear()

    def _width(self, kind: Kind) -> int:
        return sum(1 for subject in self.subjects if subject.kind is kind)

    def _columns(self, chunk: Chunk, attempt: Attempt) -> NDArray[np.int64]:
        """Where the chunk's subjects stand in the table; −1 for one that is not in it."""
        kind = chunk.family.kind
        key = id(attempt), kind, chunk.ids.tobytes()  # the same for nearly all chunks of a family
        columns = self._columns_of.get(key)
        if columns is None:
            subjects = self._named(attempt)
            names = [_name_of(subjects, number, kind) for number in chunk.ids.tolist()]
            columns = np.array([self.columns.get((kind, name), -1) for name in names], np.int64)
            self._columns_of[key] = columns
        return columns

    def _named(self, attempt: Attempt) -> dict[int, Subject]:
        """The attempt's subjects; ids whose name was lost get one that says so."""
        subjects = self._subjects_of.get(id(attempt))
        if subjects is None:
            subjects = dict(attempt.small.subjects)
            # Nearly all chunks of a kind have the same list of ids: a set leaves a few to walk.
            lists = {(chunk.family.kind, chunk.ids.tobytes()) for chunk in attempt.chunks}
            for kind, ids in sorted(lists):
                for number in np.frombuffer(ids, np.uint32).tolist():
                    if number not in subjects:
                        subjects[number] = Subject(kind, _name_of(subjects, number, kind))
            self._subjects_of[id(attempt)] = subjects
        return subjects

    def _refuse_sparse(self, family: Family, steps: int, width: int) -> None:
        """A small hostile file could ask for a table of any size: sparse giants are refused."""
        cells = steps * width
        if cells <= _DENSE_CELLS:
            return
        stored = sum(
            len(chunk.steps) * len(chunk.ids)
            for attempt in self.attempts
            for chunk in attempt.chunks
            if chunk.family is family
        )
        if stored < cells * _SPARSEST:
            raise GradwatchError(
                f"Expected a table that is mostly filled, but {steps} steps × {width} "
                f"subjects of {family} hold only {stored} rows. The run is damaged or was made "
                "up; read it with a narrower tool, or record it again."
            )


def _name_of(subjects: Mapping[int, Subject], number: int, kind: Kind) -> str:
    subject = subjects.get(number)
    if subject is not None and subject.kind is kind:
        return subject.name
    return f"(name lost: {kind} {number})"
