"""Where a run's data come from: arrays in memory, a run folder, a scan of checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run.event import Event
from gradwatch.run.histogram import Histogram
from gradwatch.run.subject import Subject
from gradwatch.run.window import Bands
from gradwatch.stats import Family, Stat


@dataclass(frozen=True, slots=True)
class Loaded:
    """One statistic whole: values [step, subject of its kind(, width)], a state byte for each."""

    values: NDArray[np.float64]
    states: NDArray[np.uint8]


class Source(Protocol):
    """What a `Run` asks for. Everything but `steps` and `subjects` may be loaded on first use."""

    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def subjects(self) -> Sequence[Subject]: ...
    @property
    def recorded(self) -> frozenset[Stat]: ...
    @property
    def scalars(self) -> Mapping[str, NDArray[np.float64]]:
        """Aligned with `steps`; NaN where nothing was logged."""
        ...

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def graph(self) -> Graph | None: ...
    @property
    def info(self) -> Mapping[str, Any]: ...
    def load(self, stat: Stat) -> Loaded: ...
    def integers(self, stat: Stat) -> NDArray[np.uint64]:
        """Exact values of a 64-bit column (counts, hashes); 0 where there is none."""
        ...

    def histograms(self, family: Family, name: str) -> Mapping[int, Histogram]:
        """By step."""
        ...

    def bands(self, stat: Stat, first: int, last: int, points: int) -> Bands | None:
        """Thinned from stored levels, or None where the caller should thin the whole series."""
        ...
