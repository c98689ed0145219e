"""Where a run's data come from: arrays in memory, a run folder, a scan of checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.subject import Event, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Stat, State

ALL = slice(None)
"""Every column of a series."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """One statistic: values [row, subject of its kind], and a state byte for each.

    Rows are the steps of the run, or only those of them (`rows`, ascending) that were sampled: one
    in a hundred, often, so that a table of all would be nearly empty. The arrays become read-only,
    as everybody who asks for a statistic gets the same ones.
    """

    values: NDArray[np.float64]
    states: NDArray[np.uint8]
    rows: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        self.values.setflags(write=False)
        self.states.setflags(write=False)

    def compact(self) -> "Loaded":
        """Without the rows of which nothing was sampled, where these are most of them."""
        sampled = np.flatnonzero((self.states != State.NOT_SAMPLED).any(axis=1))
        if 2 * len(sampled) > len(self.states):
            return self
        rows = sampled if self.rows is None else self.rows[sampled]
        return Loaded(self.values[sampled], self.states[sampled], rows)

    def whole(self, count: int) -> "Loaded":
        """The same of all `count` rows of the run."""
        if self.rows is None:
            return self
        values = np.full((count, self.values.shape[1]), np.nan)
        states = np.full(values.shape, State.NOT_SAMPLED, np.uint8)
        values[self.rows], states[self.rows] = self.values, self.states
        return Loaded(values, states)

    def at(self, rows: Any, columns: Any = ALL) -> NDArray[np.float64]:
        """`values[rows, columns]` of the whole; not copied where it is all that is held."""
        return self._at(self.values, rows, columns, np.nan)

    def states_at(self, rows: Any, columns: Any = ALL) -> NDArray[np.uint8]:
        """`states[rows, columns]` of the whole."""
        return self._at(self.states, rows, columns, np.uint8(State.NOT_SAMPLED))

    def _at(self, table: NDArray[Any], rows: Any, columns: Any, none: Any) -> NDArray[Any]:
        held = np.arange(len(table)) if self.rows is None else self.rows
        if columns is ALL and np.shape(rows) == held.shape and np.array_equal(rows, held):
            return table
        if self.rows is None:
            return np.asarray(table[rows, columns])
        if not len(held):
            table, held = np.full((1, *table.shape[1:]), none, table.dtype), np.array([-1])
        places = np.minimum(np.searchsorted(held, rows), len(held) - 1)
        there, found = np.asarray(held[places] == rows), np.asarray(table[places, columns])
        return np.where(there.reshape(there.shape + (1,) * (found.ndim - there.ndim)), found, none)


class Source(Protocol):
    """What a `Run` reads from. Everything but `steps` and `subjects` may be loaded on first use."""

    @property
    def steps(self) -> NDArray[np.int64]:
        """Ascending, each once."""

    @property
    def subjects(self) -> Sequence[Subject]:
        """Those of one kind, in this order, are the columns of its series."""

    @property
    def recorded(self) -> frozenset[Stat]:
        """The statistics `load` may be called for."""

    @property
    def scalars(self) -> Mapping[str, NDArray[np.float64]]:
        """Aligned with `steps`; NaN where nothing was logged."""

    @property
    def events(self) -> Sequence[Event]:
        """By step."""

    @property
    def graph(self) -> Graph | None:
        """The layer graph, or None where none was recorded."""

    @property
    def info(self) -> Mapping[str, Any]:
        """Plain JSON: name, versions, options."""

    def load(self, stat: Stat) -> Loaded:
        """One statistic; the `Run` keeps it."""

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact values of a 64-bit column (counts, hashes); 0 where there is none."""

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """By step."""


@dataclass(frozen=True)
class MemorySource:
    """Everything in memory: runs made from arrays, tests, live windows, scans.

    `values` and `states` are [step, subject of the kind]. Values may be of any numeric type, so
    that they take less memory until somebody asks for them.
    """

    steps: NDArray[np.int64]
    subjects: Sequence[Subject]
    values: Mapping[Stat, NDArray[Any]] = field(default_factory=dict)
    states: Mapping[Stat, NDArray[np.uint8]] = field(default_factory=dict)
    exact: Mapping[Stat, NDArray[np.uint64]] = field(default_factory=dict)
    scalars: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    graph: Graph | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    bins: Mapping[tuple[Family, str], Mapping[int, Histogram]] = field(default_factory=dict)

    @property
    def recorded(self) -> frozenset[Stat]:
        """The statistics that were given."""
        return frozenset(self.values)

    def load(self, stat: Stat) -> Loaded:
        """The given arrays; without states every value counts as measured."""
        values = self.values[stat]
        states = self.states.get(stat, np.zeros(values.shape[:2], np.uint8))
        if values.dtype.kind != "f":
            measured = HAS_VALUE[states]
            if measured.all() and not values.any():
                return Loaded(np.broadcast_to(0.0, values.shape), states)  # takes no memory
            values = np.where(measured, values, np.nan)
        return Loaded(np.ascontiguousarray(values, np.float64), states)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """The exact column where one was given, else the floats, with 0 for NaN."""
        values = self.exact.get(stat, self.values[stat])
        return np.asarray(np.nan_to_num(values), np.uint64)

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """By step; empty where none were given."""
        return self.bins.get((family, name), {})
