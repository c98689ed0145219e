"""Runs in memory written into run folders, whole or step by step, for views that open folders."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gradwatch.run import Run
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Writer


class Stored:
    """Copies a run's steps into a folder; `upto` may be called again for a growing run."""

    def __init__(self, run: Run, path: Path, name: str = "stored") -> None:
        self.run = run
        self.path = path
        self.writer = Writer.create(path, name=name)
        self.ids = dict(zip(run.subjects, self._declare(), strict=True))
        if run.source.graph is not None:
            self.writer.graph(run.source.graph)
        self.done = 0

    def _declare(self) -> Iterable[int]:
        return [int(number) for number in self.writer.declare(list(self.run.subjects))]

    def upto(self, steps: int) -> None:
        for row in range(self.done, steps):
            for family in Family:
                self._family(family, row)
            step = int(self.run.steps[row])
            self.writer.scalars(
                step, {name: float(values[row]) for name, values in self.run.scalars.items()}
            )
            self._histograms(step)
        self.done = steps
        assert self.writer.flush()

    def _family(self, family: Family, row: int) -> None:
        stats = [stat for stat in self.run.recorded if stat.family is family]
        subjects = self.run.by_kind[family.kind]
        if not stats or not subjects:
            return
        rows = np.zeros(len(subjects), row_dtype(family))
        for name in rows.dtype.names or ():
            if rows.dtype[name].base.kind == "f":
                rows[name] = np.nan
        for stat in stats:
            values = self.run.series[stat][row]
            whole = rows.dtype[str(stat)].kind == "u"
            rows[str(stat)] = np.nan_to_num(values) if whole else values
        states = self.run.state(stats[0])[row]
        keep = states != State.NOT_SAMPLED
        if keep.any():
            ids = np.array([self.ids[subject] for subject in subjects], np.uint32)
            step = int(self.run.steps[row])
            self.writer.put(family, step, ids[keep], rows[keep], states[keep])

    def _histograms(self, step: int) -> None:
        for subject in self.run.parameters:
            table = self.run.histograms(Family.WEIGHT, subject.name)
            if step in table:
                one = np.array([self.ids[subject]])
                packed = HistogramTable.of([table[step]])
                self.writer.histogram_table(Family.WEIGHT, step, one, packed)

    def finish(self) -> Path:
        self.upto(len(self.run.steps))
        for event in self.run.events:
            self.writer.event(event)
        self.writer.note({"complete": True})
        self.writer.close(timeout=60.0)
        return self.path


def stored(run: Run, path: Path, name: str = "stored") -> Path:
    """The whole run in a folder, closed."""
    return Stored(run, path, name).finish()
