"""One rank of a run: its attempts laid over one another, the newest on top."""

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.run import Run
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Event, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State
from gradwatch.store.folder import NEVER, Columns, Folder, Rows, Steps
from gradwatch.store.layout import BITS, EXTREMES, SCALAR_BIT, SCALARS, drawn
from gradwatch.store.tables import as_numpy

States = NDArray[np.uint8]
_KEYS = ("step", "subject", "state")
_COUNTS = ("zeros", "nan", "positive_inf", "negative_inf")
_BINS = ("first_exponent", "negative", "positive", *_COUNTS)


class RankSource:
    """Implements `Source` for one rank. From its first step on, an attempt takes the place of those
    before it: a resumed training goes on from its checkpoint, and one that begins anew is another.

    `begins` is the first step of each attempt on any rank.
    """

    def __init__(self, rank: int, folders: list[Folder], info: Any, begins: dict[int, int]) -> None:
        self.rank, self._info = rank, info
        self._numbers = [folder.attempt for folder in folders]
        for folder in folders:
            later = (begin for number, begin in begins.items() if number > folder.attempt)
            folder.end = min(later, default=NEVER)
        self.folders = [f for f in folders if f.end == NEVER or f.first_step < f.end]
        self.recorded: frozenset[Stat] = frozenset().union(*(f.stats for f in self.folders))
        self.ranks = {rank: Run(self)}
        """The runs of the single ranks: here only this one."""

    # -- what there is ---------------------------------------------------------------------------

    @cached_property
    def steps(self) -> Steps:
        """Every step on which an attempt counts, each once."""
        return reduce(np.union1d, (folder.marks[0] for folder in self.folders))

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Every subject any attempt has named, as the newest attempt described it."""
        newest: dict[tuple[Kind, str], Subject] = {}
        for folder in reversed(self.folders):
            for _, subject in sorted(folder.subjects.items()):
                newest.setdefault((subject.kind, subject.name), subject)
        return tuple(newest.values())

    @cached_property
    def columns(self) -> dict[Kind, dict[str, int]]:
        """The columns of the subjects of each kind, by name."""
        names = {kind: [s.name for s in self.subjects if s.kind is kind] for kind in Kind}
        return {kind: {name: at for at, name in enumerate(found)} for kind, found in names.items()}

    @cached_property
    def scalars(self) -> dict[str, NDArray[np.float64]]:
        """Logged numbers by name, one per step; NaN where the attempt that counts logged none."""
        table: dict[str, NDArray[np.float64]] = {}
        for folder in self.folders:
            steps, families = folder.marks  # first: what is marked now was logged before
            due = (families & SCALAR_BIT) > 0
            for part in folder.columns(SCALARS, ("step", "name", "value")):
                at, counts = _places(part["step"], self.steps, folder.end)
                words = part["name"].dictionary_encode()
                numbers = as_numpy(words.indices)
                for number, name in enumerate(words.dictionary.to_pylist()):
                    own = counts & (numbers == number)
                    column = table.setdefault(name, np.full(len(self.steps), np.nan))
                    column[at[own]] = part["value"][own]  # of several the last stays
                due &= ~np.isin(steps, part["step"])
            if due.any():
                folder.miss(SCALARS, steps[due])
        return table

    @property
    def events(self) -> tuple[Event, ...]:
        """What was recorded as an event, and what turned out damaged, by step."""
        found = [event for folder in self.folders for event in folder.events]
        return tuple(sorted(found, key=lambda event: (event.step, event.rank)))

    @property
    def graph(self) -> Graph | None:
        """The layer graph that was stored last."""
        graphs = [graph for folder in self.folders for graph in folder.said("graph")]
        return Graph.from_dict(graphs[-1]) if graphs else None

    @property
    def info(self) -> dict[str, Any]:
        """The notes of all attempts, newer over older, and `run.json` over all."""
        notes = [note for folder in self.folders for note in folder.said("note")]
        merged = {name: value for note in (*notes, self._info) for name, value in note.items()}
        # A killed attempt was continued by the next: only the end of the last that began tells.
        begun = [folder for folder in self.folders if folder.said("note")]
        complete = any(f.closed for f in begun[-1:]) and not any(f.problems for f in self.folders)
        return merged | {"ranks": 1, "attempts": self._numbers, "complete": complete}

    # -- series ----------------------------------------------------------------------------------

    @cached_property
    def thinned(self) -> "RankSource | None":
        """The same steps and subjects, with coarse rows in place of all finished ones."""
        _ = self.steps, self.columns  # both have the same ones, also of a run that grows
        thinned = copy(self)
        thinned.folders = [folder.thinned() for folder in self.folders]
        return thinned

    def load(self, stat: Stat) -> Loaded:
        """One statistic of every subject on the steps that have it, from the attempt that counts
        on each of them."""
        rows = self.sampled(stat)
        values, states = self._table(stat, rows, np.float64)
        values[~HAS_VALUE[states]] = np.nan
        return Loaded(values, states, rows if len(rows) < len(self.steps) else None).compact()

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """The same of a 64-bit column, exactly; 0 where there is no value."""
        values, states = self._table(stat, np.arange(len(self.steps)), np.uint64)
        return np.where(HAS_VALUE[states], values, 0)

    def sampled(self, stat: Stat) -> Rows:
        """The rows in which a statistic has values; of removed rows those that coarse rows show."""
        table, sampled = f"rows/{stat.family}", np.zeros(len(self.steps), bool)
        for folder in self.folders:
            marked = self._marked(folder, stat.family) & (self.steps >= folder.kept_from(table))
            for part in _stand_ins(folder, stat):
                at, counts = _places(part["step"], self.steps, folder.end)
                marked[at[counts]] = True
            sampled |= marked
        return np.flatnonzero(sampled)

    def _marked(self, folder: Folder, family: Family) -> NDArray[np.bool_]:
        """For every step, whether a family was recorded on it."""
        steps, families = folder.marks
        return np.isin(self.steps, steps[families & BITS[family] > 0])

    def _table(self, stat: Stat, rows: Rows, dtype: Any) -> tuple[NDArray[Any], States]:
        """Values and states of the steps in `rows`.

        Old attempts come first, rows as they were written: whatever counts more overwrites.
        """
        # One column more takes what belongs to no subject of the kind.
        shape, steps = (len(rows), len(self.columns[stat.kind]) + 1), self.steps[rows]
        values, states = np.zeros(shape, dtype), np.full(shape, State.NOT_SAMPLED, np.uint8)
        table = f"rows/{stat.family}"
        for folder in self.folders if len(rows) else ():
            columns, seen = self._columns_of(folder, stat.kind), np.zeros(len(rows), bool)
            due = self._marked(folder, stat.family)[rows]
            for _ in range(5):
                for part in _pieces(folder, stat):
                    at, counts = _places(part["step"], steps, folder.end)
                    cells = at[counts], columns.take(part["subject"][counts], mode="clip")
                    values[cells], states[cells] = part["value"][counts], part["state"][counts]
                    seen[cells[0]] = True
                due &= steps >= folder.kept_from(table)
                if folder.closed or seen[due].all():
                    break
                folder.look()  # a part that was renamed meanwhile may have been hidden
            if not seen[due].all():
                folder.miss(table, steps[due & ~seen])
        return values[:, :-1], states[:, :-1]

    def _columns_of(self, folder: Folder, kind: Kind) -> Rows:
        """By a folder's ids, the columns of subjects of a kind; beyond the last for any other."""
        names, subjects = self.columns[kind], folder.subjects
        columns = np.full(max(subjects, default=-1) + 2, len(names))
        for number, subject in subjects.items():
            if subject.kind is kind:
                columns[number] = names[subject.name]
        return columns

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """One parameter's histograms by step, from the attempt that counts on each step."""
        table: dict[int, Histogram] = {}
        for folder in self.folders:
            ids = [n for n, s in folder.subjects.items() if (s.kind, s.name) == (family.kind, name)]
            for part in folder.columns(f"histograms/{family}", ("step", "subject"), _BINS):
                own = np.isin(part["subject"], ids) & (part["step"] < folder.end)
                sides = part["negative"], part["positive"]
                bins = [(as_numpy(side.values), as_numpy(side.offsets)) for side in sides]
                for row in np.flatnonzero(own).tolist():
                    low, high = (values[ends[row] : ends[row + 1]] for values, ends in bins)
                    counts = (int(part[name][row]) for name in _COUNTS)
                    found = Histogram(int(part["first_exponent"][row]), low, high, *counts)
                    table[int(part["step"][row])] = found
        return dict(sorted(table.items()))


def _pieces(folder: Folder, stat: Stat) -> Iterator[Columns]:
    """Rows part by part; before them, in place of rows that were removed, coarse rows."""
    yield from _stand_ins(folder, stat)
    for part in folder.columns(f"rows/{stat.family}", _KEYS, (str(stat),)):
        yield part | {"value": part[str(stat)]}


def _stand_ins(folder: Folder, stat: Stat) -> Iterator[Columns]:
    """Three values of each coarse row; on which of its steps its extremes were is not known."""
    if f"rows/{stat.family}" not in folder.removed or stat not in drawn(stat.family):
        return
    steps, families = folder.marks
    steps = steps[families & BITS[stat.family] > 0]
    extremes = tuple(f"{stat}_{extreme}" for extreme in EXTREMES)
    for part in folder.columns(f"coarse/{stat.family}", (*_KEYS, "last_step"), extremes):
        gone = part["last_step"] < folder.kept_from(f"rows/{stat.family}")
        part = {name: column[gone] for name, column in part.items()}
        ends = (_places(part[name], steps, NEVER)[0] for name in ("step", "last_step"))
        middle = steps.take(sum(ends) // 2, mode="clip")  # one that has a row
        for extreme, step in zip(extremes, (part["step"], middle, part["last_step"]), strict=True):
            yield part | {"step": step, "value": part[extreme]}


def _places(given: Steps, steps: Steps, end: int) -> tuple[Rows, NDArray[np.bool_]]:
    """Where each step stands among `steps`, and whether it is one of them and before `end`."""
    if not len(given) or not len(steps):
        return np.zeros(len(given), np.intp), np.zeros(len(given), bool)
    # Rows of one step stand together: each step is looked up once.
    starts = np.flatnonzero(np.append(True, given[1:] != given[:-1]))
    lengths = np.diff(np.append(starts, len(given)))
    at = np.minimum(np.searchsorted(steps, given[starts]), len(steps) - 1)
    counts = (steps[at] == given[starts]) & (given[starts] < end)
    return np.repeat(at, lengths), np.repeat(counts, lengths)
