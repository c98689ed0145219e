"""A sink that keeps everything in lists, and a watcher that writes to it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn import Module

from gradwatch.graph import Graph
from gradwatch.record import Watcher
from gradwatch.record.options import Options
from gradwatch.run import Event, EventKind, Histogram, HistogramTable, Subject
from gradwatch.stats import Family, Kind, State


class MemorySink:
    """The writer's methods over plain Python objects."""

    def __init__(self) -> None:
        self.subjects: list[Subject] = []
        self._rows: dict[tuple[Family, int, str], tuple[np.void, State]] = {}
        self._logged: dict[int, dict[str, float]] = {}
        self._bins: dict[tuple[Family, int, str], Histogram] = {}
        self.events: list[Event] = []
        self.info: dict[str, Any] = {}
        self.graphs: list[Graph] = []
        self.closed = False
        self.background = 0.25
        """Seconds of processor time, as if a thread had used them."""
        self.backlog = 0.0
        self.source: Any = lambda: None
        self._ids: dict[tuple[Kind, str], int] = {}

    # Whoever reads takes what the recorder still holds, as the writer's thread does.

    @property
    def rows(self) -> dict[tuple[Family, int, str], tuple[np.void, State]]:
        self.source()
        return self._rows

    @property
    def logged(self) -> dict[int, dict[str, float]]:
        self.source()
        return self._logged

    @property
    def bins(self) -> dict[tuple[Family, int, str], Histogram]:
        self.source()
        return self._bins

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        ids = []
        for subject in subjects:
            key = (subject.kind, subject.name)
            number = self._ids.setdefault(key, len(self._ids))
            if number == len(self.subjects):
                self.subjects.append(subject)
            self.subjects[number] = subject
            ids.append(number)
        return np.array(ids, np.uint32)

    def put(
        self,
        family: Family,
        step: int,
        ids: NDArray[np.uint32],
        rows: NDArray[np.void],
        states: NDArray[np.uint8],
    ) -> None:
        for number, row, state in zip(ids, rows, states, strict=True):
            key = (family, step, self.subjects[number].name)
            assert key not in self._rows, f"recorded twice: {key}"
            self._rows[key] = (row.copy(), State(int(state)))

    def histogram_table(
        self, family: Family, step: int, ids: NDArray[np.uint32], table: HistogramTable
    ) -> None:
        for number, histogram in zip(ids, table, strict=True):
            self._bins[family, step, self.subjects[number].name] = histogram

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._logged.setdefault(step, {}).update(values)

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        for step, name, value in items:
            self._logged.setdefault(step, {})[name] = value

    def event(self, event: Event) -> None:
        self.events.append(event)

    def graph(self, graph: Graph) -> None:
        self.graphs.append(graph)

    def note(self, info: Mapping[str, Any]) -> None:
        self.info.update(info)

    def wake(self) -> None:
        self.source()

    def flush(self, timeout: float = 30.0) -> bool:
        return True

    def close(self, timeout: float = 2.0) -> None:
        self.closed = True

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.events]

    def steps(self, family: Family) -> list[int]:
        return sorted({step for kind, step, _ in self.rows if kind is family})


def watch_into(
    sink: Any, model: Module, *optimizers: Any, every: int | None = 1, **how: Any
) -> Watcher:
    """A watcher without files."""
    return Watcher(model, optimizers, sink, Options(every=every, **how))
