"""One rank of a run: its attempts laid over one another, the newest on top."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph
from gradwatch.run.event import Event, EventKind
from gradwatch.run.histogram import Histogram
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Subject
from gradwatch.run.window import Bands, thin
from gradwatch.stats import Family, Kind, Stat, State, entry
from gradwatch.store.attempt import LOOKS, Attempt, Stretch
from gradwatch.store.block import Block, Vanished, distinct
from gradwatch.store.bodies import joined_scalars
from gradwatch.store.levels import LAST_ONLY
from gradwatch.store.scatter import blank, put
from gradwatch.store.thinning import banded, level_for, pieces

_DENSE_CELLS = 1 << 27
_SPARSEST = 1 / 256


class RankSource:
    """Implements `Source` for one rank. On every step the newest attempt that has it counts."""

    def __init__(self, rank: int, attempts: Sequence[Attempt], info: Mapping[str, Any]) -> None:
        self.rank = rank
        self.attempts = list(attempts)
        self._info = info

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        parts = [attempt.steps for attempt in self.attempts]
        return distinct(np.concatenate([*parts, np.empty(0, np.int64)]))

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """For every step, which attempt (by position) counts."""
        owners = np.zeros(len(self.steps), np.int64)
        for position, attempt in enumerate(self.attempts):
            owners[np.searchsorted(self.steps, attempt.steps)] = position
        return owners

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        newest: dict[tuple[Kind, str], Subject] = {}
        for attempt in self.attempts:
            for _, subject in sorted(self._named(attempt).items()):
                newest[subject.kind, subject.name] = subject
        return tuple(newest.values())

    @cached_property
    def by_name(self) -> dict[tuple[Kind, str], Subject]:
        return {(subject.kind, subject.name): subject for subject in self.subjects}

    @cached_property
    def columns(self) -> dict[tuple[Kind, str], int]:
        """Column of each subject in the series of its kind."""
        counters = dict.fromkeys(Kind, 0)
        found = {}
        for subject in self.subjects:
            found[subject.kind, subject.name] = counters[subject.kind]
            counters[subject.kind] += 1
        return found

    @cached_property
    def recorded(self) -> frozenset[Stat]:
        return frozenset().union(*(attempt.stats for attempt in self.attempts))

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        table: dict[str, NDArray[np.float64]] = {}
        for position, attempt in enumerate(self.attempts):
            names, rows = joined_scalars(attempt.side.scalars)
            at = self._places(rows["step"])
            mine = self.owners[at] == position
            for number, name in enumerate(names):
                chosen = mine & (rows["name"] == number)
                if name not in table:
                    table[name] = np.full(len(self.steps), np.nan)
                table[name][at[chosen]] = rows["value"][chosen]  # of several the last stays
        for column in table.values():
            column.setflags(write=False)
        return table

    def _places(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where steps that the run has are in `steps`; no search where none is left out."""
        own = self.steps
        if len(own) and own[-1] - own[0] + 1 == len(own):
            found: NDArray[np.int64] = steps - own[0]
            return found
        return np.searchsorted(own, steps)

    @property
    def events(self) -> tuple[Event, ...]:
        found = [event for attempt in self.attempts for event in attempt.side.events]
        for attempt in self.attempts:
            found += [
                Event(
                    max(damage.first_step or 0, 0),
                    EventKind.DAMAGE,
                    f"Attempt {attempt.number}, rank {self.rank}: {damage.text}.",
                    rank=self.rank,
                )
                for damage in attempt.damage
            ]
        return tuple(sorted(found, key=lambda event: event.step))

    @property
    def graph(self) -> Graph | None:
        graphs = [a.side.graph for a in self.attempts if a.side.graph is not None]
        return graphs[-1] if graphs else None

    @cached_property
    def info(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for attempt in self.attempts:
            for note in attempt.side.notes:
                merged.update(note)
        merged.update(self._info)
        merged["ranks"] = 1
        merged["attempts"] = [attempt.number for attempt in self.attempts]
        merged["complete"] = bool(self.attempts) and self.attempts[-1].side.closed
        return merged

    @cached_property
    def ranks(self) -> dict[int, Run]:
        """The runs of the single ranks: here only this one."""
        return {self.rank: Run(self)}

    def load(self, stat: Stat) -> Loaded:
        values, states = self._filled(stat, np.float64, np.nan)
        return Loaded(values, states)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        values: NDArray[np.uint64] = self._filled(stat, np.uint64, 0)[0]
        return values

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        found: dict[int, Histogram] = {}
        for position, attempt in enumerate(self.attempts):
            for number, subject in attempt.side.subjects.items():
                if subject.name != name or subject.kind is not family.kind:
                    continue
                for step, histogram in attempt.side.histograms.get((family, number), {}).items():
                    at = int(np.searchsorted(self.steps, step))
                    known = at < len(self.steps) and self.steps[at] == step
                    if not known or self.owners[at] == position:
                        found[step] = histogram
        return dict(sorted(found.items()))

    def bands(self, stat: Stat, first: int, last: int, points: int) -> Bands | None:
        """From the levels, where one attempt has the whole stretch and it is long enough."""
        begin, end = np.searchsorted(self.steps, [first, last + 1])
        owners = self.owners[begin:end]
        item = entry(stat)
        one = len(owners) > 0 and bool((owners == owners[0]).all())
        if not one or item.width > 1 or str(stat) in LAST_ONLY:
            return None
        attempt = self.attempts[int(owners[0])]
        level = level_for(int(end - begin), points)
        if not level or item.family not in attempt.level_spans:
            return self._thinned(stat, int(begin), int(end), points)
        try:
            found = pieces(
                stat,
                attempt.spans.meeting(item.family, first, last),
                attempt.level_spans.meeting(item.family, first, last),
                attempt.index.decoded,
                first,
                last,
                level,
            )
        except Vanished:
            found = None  # retention was faster
        if not found:
            return None
        kind, names = item.kind, self._named(attempt)
        ids = {number for piece in found for number in piece.ids.tolist()}
        columns = {n: self.columns[kind, _name_of(names, n, kind)] for n in ids}
        width = sum(1 for subject in self.subjects if subject.kind is kind)
        return banded(found, columns, width, points)

    def never(self, stat: Stat) -> bool:
        """Whether a count is zero in the whole run, as far as its levels tell at little cost."""
        if stat not in self._zero:
            levels = all(entry(stat).family in attempt.level_spans for attempt in self.attempts)
            whole = (int(self.steps[0]), int(self.steps[-1])) if len(self.steps) else (0, 0)
            bands = self.bands(stat, *whole, 1) if levels else None
            self._zero[stat] = bands is not None and not (bands.high > 0).any()
        return self._zero[stat]

    @cached_property
    def _zero(self) -> dict[Stat, bool]:
        return {}

    def _thinned(self, stat: Stat, begin: int, end: int, points: int) -> Bands | None:
        """A short stretch of a long run is read alone, not with all the rest."""
        if 2 * (end - begin) > len(self.steps):
            return None
        values, _ = self._filled(stat, np.float64, np.nan, slice(begin, end))
        steps = self.steps[begin:end]
        return thin(steps, values, int(steps[0]), int(steps[-1]), points)

    def _filled(
        self, stat: Stat, dtype: type, fill: float, rows: slice = slice(None)
    ) -> tuple[Any, NDArray[np.uint8]]:
        """Values and states of all steps, or of those in `rows`."""
        item = entry(stat)
        family = item.family
        width = sum(1 for subject in self.subjects if subject.kind is family.kind)
        for _ in range(LOOKS):
            stretch = Stretch(self.steps[rows], self.owners[rows])
            self._refuse_monsters(family, len(stretch.steps), width)
            shape: tuple[int, ...] = (len(stretch.steps), width)
            full = shape if item.width == 1 else (*shape, item.width)
            values: NDArray[Any] = np.full(full, fill, dtype)
            states = np.full(shape, State.NOT_SAMPLED, np.uint8)
            try:
                self._fill(stat, stretch, values, states)
            except Vanished:
                self._look_again()
                continue
            blank(values, states, fill)
            return values, states
        raise GradwatchError(
            "Expected a run that stays while it is read, but its files go as fast as they are "
            "looked at. Try again when nobody deletes it."
        )

    def _look_again(self) -> None:
        """Index the folders anew; steps that came meanwhile are left for the next opening."""
        for attempt in self.attempts:
            attempt.index.refresh()
        self.attempts = [Attempt.of(attempt.index) for attempt in self.attempts]
        self._names.clear()
        self._seats.clear()

    def _fill(
        self, stat: Stat, stretch: Stretch, values: NDArray[Any], states: NDArray[np.uint8]
    ) -> None:
        family = entry(stat).family
        for position, attempt in enumerate(self.attempts):
            for block in stretch.blocks(attempt, family):
                if stat in block.stats:
                    self._scatter(block, stat, attempt, position, stretch, values, states)
            self._mark_damage(attempt, position, family, stretch, states)

    def _scatter(
        self,
        block: Block,
        stat: Stat,
        attempt: Attempt,
        position: int,
        stretch: Stretch,
        values: NDArray[Any],
        states: NDArray[np.uint8],
    ) -> None:
        steps = stretch.steps
        rows = np.minimum(np.searchsorted(steps, block.steps), len(steps) - 1)
        mine = (stretch.owners[rows] == position) & (steps[rows] == block.steps)
        if not mine.any():
            return
        columns = self._columns_of(block, attempt)
        known = np.flatnonzero(columns >= 0)  # all, unless the run grew since it was opened
        columns = columns[known]
        column, state = block.column(stat), block.states(stat)
        if column is None or state is None or column.shape[2:] != values.shape[2:]:
            put(states, rows, columns, mine, np.full((len(rows), len(columns)), State.DAMAGED))
            return
        if values.dtype == np.uint64 and column.dtype.kind == "f":
            column = np.nan_to_num(column, posinf=0.0).clip(0.0, 2.0**63).astype(np.uint64)
        with np.errstate(invalid="ignore"):  # a forged signalling NaN is no reason to warn
            put(values, rows, columns, mine, column[:, known])
        put(states, rows, columns, mine, state[:, known])

    def _columns_of(self, block: Block, attempt: Attempt) -> NDArray[np.int64]:
        """Where the block's subjects stand; −1 for one that is not in the table."""
        kind = block.family.kind
        key = id(attempt), kind, block.ids.tobytes()  # the same for nearly all blocks of a family
        places = self._seats.get(key)
        if places is None:
            names = self._named(attempt)
            found = [(kind, _name_of(names, number, kind)) for number in block.ids.tolist()]
            places = np.array([self.columns.get(one, -1) for one in found], np.int64)
            self._seats[key] = places
        return places

    @cached_property
    def _seats(self) -> dict[tuple[int, Kind, bytes], NDArray[np.int64]]:
        return {}

    def _named(self, attempt: Attempt) -> dict[int, Subject]:
        """The attempt's subjects; ids whose name was lost get one that says so."""
        known = self._names.get(id(attempt))
        if known is None:
            known = dict(attempt.side.subjects)
            lists = {(block.family.kind, block.ids.tobytes()) for block in attempt.blocks}
            for kind, ids in sorted(lists):
                for number in np.frombuffer(ids, np.uint32).tolist():
                    if number not in known or known[number].kind is not kind:
                        known.setdefault(number, Subject(kind, _name_of(known, number, kind)))
            self._names[id(attempt)] = known
        return known

    @cached_property
    def _names(self) -> dict[int, dict[int, Subject]]:
        return {}

    def _mark_damage(
        self,
        attempt: Attempt,
        position: int,
        family: Family,
        stretch: Stretch,
        states: NDArray[np.uint8],
    ) -> None:
        for damage in attempt.damage:
            if damage.first_step is None or damage.family not in (None, family):
                continue
            last = damage.first_step if damage.last_step is None else damage.last_step
            begin = np.searchsorted(stretch.steps, damage.first_step)
            end = np.searchsorted(stretch.steps, last, side="right")
            part = states[begin:end]
            hit = (stretch.owners[begin:end] == position)[:, None] & (part == State.NOT_SAMPLED)
            part[hit] = State.DAMAGED

    def _refuse_monsters(self, family: Family, steps: int, width: int) -> None:
        """A small hostile file could ask for a table of any size: sparse giants are refused."""
        cells = steps * width
        if cells <= _DENSE_CELLS:
            return
        real = sum(
            len(block.steps) * len(block.ids)
            for attempt in self.attempts
            for block in attempt.blocks
            if block.family is family
        )
        if real < cells * _SPARSEST:
            raise GradwatchError(
                f"Expected a table that is mostly filled, but {steps} steps × {width} "
                f"subjects of {family} hold only {real} rows. The run is damaged or was made up; "
                "read it with a narrower tool, or record it again."
            )


def _name_of(known: Mapping[int, Subject], number: int, kind: Kind) -> str:
    subject = known.get(number)
    if subject is not None and subject.kind is kind:
        return subject.name
    return f"(name lost: {kind} {number})"
