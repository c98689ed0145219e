"""A small run of every kind of file, with its truth: truncation and mutation start from it."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from tests.store.trial import WAIT, subjects

from gradwatch.graph import Graph, Node
from gradwatch.run import Event, EventKind, Histogram, Run
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Writer, folder, open_run
from gradwatch.store import writer as writer_thread
from gradwatch.store.tables import TableWriter

TENSORS = 2
STEPS = 22
WITH_MORE = (3, 7, 11, 15, 19, 20)
"""These steps have histograms and an event."""
NAMES = [subject.name for subject in subjects(TENSORS)]
GRAPH = Graph((Node("layer0", "Linear"), Node("layer1", "Linear")), (("layer0", "layer1"),))
TABLES = ("steps", "scalars", "rows/grad", "coarse/grad", "histograms/grad")
ENDINGS = ("closed", "left", "killed")
"""All Parquet; closed, but the last parts could not be finished; killed, with growing parts."""


@dataclass(frozen=True)
class SmallRun:
    path: Path
    norms: np.ndarray
    loss: np.ndarray
    ending: str

    @property
    def folder(self) -> Path:
        """The one writer's."""
        (found,) = (path for path in self.path.iterdir() if path.is_dir())
        return found

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def run(self) -> Run:
        """As a process that has never read it opens it."""
        folder.held_columns.cache_clear()
        return open_run(self.path)

    # -- what a run says -------------------------------------------------------------------------

    def wrong(self, run: Run) -> list[str]:
        """Values that are there and not the true ones."""
        found = self.wrong_norms(run)
        for step, value in zip(run.steps.tolist(), run.scalars.get("loss", ()), strict=False):
            if not np.isnan(value) and (not 0 <= step < STEPS or value != self.loss[step]):
                found.append(f"loss at step {step}: {value}")
        for number, name in enumerate(NAMES):
            for step, histogram in run.histograms("grad", name).items():
                if not _same(histogram, histogram_of(step, number)):
                    found.append(f"histogram of {name} at step {step}")
        found += [
            f"event {event.text!r} at step {event.step}"
            for event in run.events
            if event.kind is EventKind.AUDIT and event.text != f"event of step {event.step}"
        ]
        if run.graph is not None and run.graph.edges not in ((), GRAPH.edges):
            found.append(f"edges {run.graph.edges}")
        return found

    def wrong_norms(self, run: Run) -> list[str]:
        values, states = run.series["grad_norm"], run.state("grad_norm")
        found = []
        inside = (run.steps >= 0) & (run.steps < STEPS)
        at = np.where(inside, run.steps, 0)
        for number, name in enumerate(NAMES):
            if name in run.names:
                column = run.names.index(name)
                valued = states[:, column] != State.NOT_SAMPLED
                good = inside & (values[:, column] == self.norms[at, number])
                steps = run.steps[valued & ~good].tolist()
                found += [f"norm of {name} at step {step}" for step in steps]
        return found

    def missing(self, run: Run) -> list[str]:
        """Which of the true values the run does not have."""
        gone = [f"name {name}" for name in NAMES if name not in run.names]
        have = int((run.state("grad_norm") == State.MEASURED).sum())
        gone += ["norms"] * (have != STEPS * TENSORS)
        for name in NAMES:
            have = len(run.histograms("grad", name).items())
            gone += [f"histograms of {name}"] * (have != len(WITH_MORE))
        logged = int((~np.isnan(run.scalars.get("loss", np.empty(0)))).sum())
        gone += ["loss"] * (logged != STEPS)
        events = sum(event.kind is EventKind.AUDIT for event in run.events)
        gone += ["events"] * (events != len(WITH_MORE))
        gone += ["graph"] * (run.graph is None or run.graph.edges != GRAPH.edges)
        return gone

    def problems(self, *, cut: bool = False) -> list[str]:
        """Wrong values, and missing ones of which nothing is said.

        `cut`: a file that grew was cut at its end, as a kill may do it; that has no event.
        """
        run = self.run()
        found, gone = self.wrong(run), self.missing(run)
        complete = run.info["complete"]
        if gone and (complete or not (damage(run) or cut)):
            found.append(f"{', '.join(gone)} missing, and nothing says so")
        if complete and damage(run):
            found.append("complete, in spite of damage")
        return found


def damage(run: Run) -> list[str]:
    """What the events say of it."""
    return [event.text for event in run.events if event.kind is EventKind.DAMAGE]


def histogram_of(step: int, number: int) -> Histogram:
    bins = np.array([step + 1, number + 1], np.uint64)
    return Histogram(-3, bins, bins[::-1])


def _same(one: Histogram, other: Histogram) -> bool:
    return (
        one.first_exponent == other.first_exponent
        and np.array_equal(one.negative, other.negative)
        and np.array_equal(one.positive, other.positive)
    )


def make(path: Path, ending: str = "closed") -> SmallRun:
    """Three finished parts of rows and one that grows; of the other tables two or one."""
    rng = np.random.default_rng(7)
    norms = rng.integers(1, 1 << 20, (STEPS, TENSORS)) / 64.0
    small = SmallRun(path, norms, rng.normal(size=STEPS), ending)
    refuse = OSError(5, "made to fail")
    refusing = mock.patch.object(TableWriter, "finish", side_effect=refuse)
    with mock.patch.object(writer_thread, "PART_ROWS", 6 * TENSORS):
        writer = Writer.create(path, name="small")
        ids = writer.declare(subjects(TENSORS))
        writer.graph(GRAPH)
        for step in range(STEPS):
            if step in WITH_MORE:
                writer.event(Event(step, EventKind.AUDIT, f"event of step {step}"))
                table = HistogramTable.of([histogram_of(step, n) for n in range(TENSORS)])
                writer.histogram_table(Family.GRAD, step, ids, table)
            writer.scalars(step, {"loss": small.loss[step]})
            rows = np.zeros(TENSORS, row_dtype(Family.GRAD))
            rows["grad_norm"] = norms[step]
            writer.put(Family.GRAD, step, ids, rows, np.zeros(TENSORS, np.uint8))
            assert writer.flush(WAIT)
        left = path.with_name("left")
        shutil.copytree(path, left)
        with refusing if ending == "left" else contextlib.nullcontext():
            assert writer.close(WAIT)
            assert writer.finished.wait(WAIT)
    if ending == "killed":
        shutil.rmtree(path)
        left.rename(path)
    shutil.rmtree(left, ignore_errors=True)
    tables = {file.parent.relative_to(small.folder).as_posix() for file in small.files()}
    assert tables == {*TABLES, "."}
    assert any(file.suffix == ".arrows" for file in small.files()) == (ending != "closed")
    run = open_run(path)
    assert not small.missing(run)
    assert not small.problems()
    assert not damage(run)
    assert run.info["complete"] == (ending != "killed")
    return small
