"""Where a run's data come from: arrays in memory, a run folder, a scan of checkpoints."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.downsample import Downsampled
from gradwatch.run.subject import Event, Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, Stat, State

Read = TypeVar("Read")


class ReadCache:
    """What was read lately, the oldest let go where all of it takes more than `limit` bytes."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Read], size: Callable[[Read], int]) -> Read:
        """What `read` gives, unless it is held; `size` tells the bytes it takes."""
        if (held := self.peek(key)) is not None:
            return cast(Read, held)
        found = read()  # outside the lock: two threads may read the same
        self.put(key, found, size(found))
        return found

    def peek(self, key: Hashable) -> Any:
        """What is held by this name; None where nothing is."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, found: Any, size: int) -> None:
        """Hold it; what was not asked for the longest is let go where there is no room."""
        with self._lock:
            if key not in self._held:
                self._held[key] = found, size
                self._size += size
            while self._size > self._limit() and len(self._held) > 1:
                self._size -= self._held.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True)
class Loaded:
    """One statistic: values [row, subject of its kind(, width)], and a state byte for each.

    Rows are the steps of the run, or only those of them (`rows`, ascending) that were sampled: one
    in a hundred, often, so that a table of all would be nearly empty.
    """

    values: NDArray[np.float64]
    states: NDArray[np.uint8]
    rows: NDArray[np.intp] | None = None

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
        values = np.full((count, *self.values.shape[1:]), np.nan)
        states = np.full((count, *self.states.shape[1:]), State.NOT_SAMPLED, np.uint8)
        values[self.rows], states[self.rows] = self.values, self.states
        return Loaded(values, states)

    def at(self, rows: Any, columns: Any = slice(None)) -> NDArray[np.float64]:
        """`values[rows, columns]` of the whole; not copied where it is all that is held."""
        return self._at(self.values, rows, columns, np.nan)

    def states_at(self, rows: Any, columns: Any = slice(None)) -> NDArray[np.uint8]:
        """`states[rows, columns]` of the whole."""
        return self._at(self.states, rows, columns, np.uint8(State.NOT_SAMPLED))

    def _at(self, table: NDArray[Any], rows: Any, columns: Any, none: Any) -> NDArray[Any]:
        rows, held = np.asarray(rows), self.rows
        every = isinstance(columns, slice) and columns == slice(None)
        if every and rows.shape == (len(table),):
            own = np.arange(len(table)) if held is None else held
            if np.array_equal(rows, own):
                return table
        if held is None:
            return np.asarray(table[rows, columns])
        if not len(held):
            table, held = np.full((1, *table.shape[1:]), none, table.dtype), np.array([-1])
        places = np.minimum(np.searchsorted(held, rows), len(held) - 1)
        there, found = held[places] == rows, np.asarray(table[places, columns])
        if there.all():
            return found
        return np.where(there.reshape(there.shape + (1,) * (found.ndim - there.ndim)), found, none)

    @property
    def bytes(self) -> int:
        """Memory it takes; one number that is seen from everywhere takes none."""
        return sum(array.nbytes for array in (self.values, self.states) if any(array.strides))


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
        """One statistic; a `Run` keeps it, as far as the source has `room` for."""

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact values of a 64-bit column (counts, hashes); 0 where there is none."""

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """By step."""

    def downsample(self, stat: Stat, first: int, last: int, points: int) -> Downsampled | None:
        """From stored rollups, or None where the caller should downsample the whole series."""


@dataclass(frozen=True)
class MemorySource:
    """Everything in memory: runs made from arrays, tests, live windows, scans.

    `values` and `states` are [step, subject of the kind]. Counts that are 0 or 1 may be truth
    values: an eighth of the memory until somebody asks for them.
    """

    steps: NDArray[np.int64]
    subjects: Sequence[Subject]
    values: Mapping[Stat, NDArray[np.float64]] = field(default_factory=dict)
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
        values, states = self.values[stat], self.states.get(stat)
        if states is None:
            states = np.zeros(values.shape[:2], np.uint8)
        if values.dtype == bool:
            measured = HAS_VALUE[states]
            if measured.all() and not values.any():
                return Loaded(np.broadcast_to(0.0, values.shape), states)  # takes no memory
            values = np.where(measured, values, np.nan)
        return Loaded(values.astype(np.float64, copy=False), states)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """The exact column where one was given, else the floats, with 0 for NaN."""
        if stat in self.exact:
            return self.exact[stat]
        return np.nan_to_num(self.values[stat]).astype(np.uint64)

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """By step; empty where none were given."""
        return self.bins.get((family, name), {})

    def downsample(self, stat: Stat, first: int, last: int, points: int) -> Downsampled | None:
        """None: the series are in memory, the caller downsamples them."""
        return None
