"""What may be plugged into the watcher: a monitor that judges, a sink that rows go to."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.graph import Graph
from gradwatch.run import Event, Histogram, Subject
from gradwatch.stats import Family


class Batch(NamedTuple):
    """The rows of one family on one step, as they went to the writer."""

    family: Family
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]


class Monitor(Protocol):
    """Judges a step right after it, within the budget."""

    @property
    def should_stop(self) -> bool: ...

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """The subjects that ids stand for, whenever some are declared."""
        ...

    def noted(self, info: Mapping[str, Any]) -> None:
        """What was found out about the run: the kind of its loss, its number of classes."""
        ...

    def after_step(
        self, step: int, rows: Sequence[Batch], scalars: Mapping[str, float]
    ) -> None: ...

    def close(self) -> None: ...


class Sink(Protocol):
    """Where rows go: the store's writer, or a list in a test."""

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]: ...

    def put(
        self,
        family: Family,
        step: int,
        ids: NDArray[np.uint32],
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
    ) -> None: ...

    def histograms(self, family: Family, step: int, id: int, histogram: Histogram) -> None: ...

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Scalars of many steps at once: step, name, value."""
        ...

    def event(self, event: Event) -> None: ...

    def graph(self, graph: Graph) -> None: ...

    def note(self, info: Mapping[str, Any]) -> None: ...

    def flush(self, timeout: float = 30.0) -> bool: ...

    def close(self, timeout: float = 2.0) -> object: ...
