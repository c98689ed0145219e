"""A source that holds everything in memory: runs made from arrays, tests, live windows, scans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.event import Event
from gradwatch.run.histogram import Histogram
from gradwatch.run.source import Loaded
from gradwatch.run.subject import Subject
from gradwatch.run.window import Bands
from gradwatch.stats import Family, Stat


@dataclass(frozen=True)
class MemorySource:
    """Implements `Source` over arrays; `values` and `states` are [step, subject of the kind]."""

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
        return frozenset(self.values)

    def load(self, stat: Stat) -> Loaded:
        values = self.values[stat]
        states = self.states.get(stat)
        if states is None:
            states = np.zeros(values.shape[:2], np.uint8)
        return Loaded(values, states)

    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        if stat in self.exact:
            return self.exact[stat]
        return np.nan_to_num(self.values[stat]).astype(np.uint64)

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        return self.bins.get((family, name), {})

    def bands(self, stat: Stat, first: int, last: int, points: int) -> Bands | None:
        return None
