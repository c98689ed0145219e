"""A small run of every kind of file, with its truth: truncation and mutation start from it."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from tests.store.trial import WAIT, subjects

from gradwatch.graph import Graph, Node
from gradwatch.run import Event, EventKind, Histogram, Run
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Writer, sealer, writer_thread

TENSORS = 2
STEPS = 11
SEALED = (3, 7)
"""After these steps the journal is sealed, and its rollups become coarser ones at once."""
NAMES = [subject.name for subject in subjects(TENSORS)]
GRAPH = Graph((Node("layer0", "Linear"), Node("layer1", "Linear")), (("layer0", "layer1"),))
FAMILY = "grad"


@dataclass(frozen=True)
class SmallRun:
    path: Path
    norms: np.ndarray
    loss: np.ndarray

    @property
    def folder(self) -> Path:
        """The one writer's."""
        (folder,) = (path for path in self.path.iterdir() if path.is_dir())
        return folder

    def kinds(self) -> dict[str, Path]:
        """The first file of each kind: `rows/grad`, `manifest.json`, `journal`, …"""
        found: dict[str, Path] = {"run.json": self.path / "run.json"}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(self.folder).as_posix()
                kind = name.rpartition("/")[0] or name.partition("-")[0]
                found.setdefault(kind, path)
        return found

    # -- what a run says -------------------------------------------------------------------------

    def wrong(self, run: Run) -> list[str]:
        """Values that are there and not the true ones."""
        found = [*self.wrong_numbers(run), *self.wrong_windows(run)]
        for step, value in zip(run.steps.tolist(), run.scalars.get("loss", ()), strict=False):
            if not np.isnan(value) and (not 0 <= step < STEPS or value != self.loss[step]):
                found.append(f"loss at step {step}: {value}")
        for number, name in enumerate(NAMES):
            for step, histogram in run.histograms(FAMILY, name).items():
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

    def wrong_numbers(self, run: Run) -> list[str]:
        """Wrong norms and sketches."""
        found = []
        inside = (run.steps >= 0) & (run.steps < STEPS)
        at = np.where(inside, run.steps, 0)
        for stat, true in (("grad_norm", self.norms), ("grad_sketch", self.sketches)):
            if stat not in run.recorded:
                continue
            values, states = run.series[stat], run.state(stat)
            for number, name in enumerate(NAMES):
                if name in run.names:
                    column = run.names.index(name)
                    valued = np.isin(states[:, column], (State.MEASURED, State.PARTIAL))
                    same = values[:, column] == true[at, number]
                    good = inside & (same if same.ndim == 1 else same.all(axis=1))
                    steps = run.steps[valued & ~good].tolist()
                    found += [f"{stat} of {name} at step {step}" for step in steps]
        return found

    def wrong_windows(self, run: Run) -> list[str]:
        """Extremes of all steps and of some, which rollups may give."""
        found = []
        for points in (1,):
            if "grad_norm" in run.recorded and set(NAMES) <= set(run.names):
                columns = [run.names.index(name) for name in NAMES]
                window = run.window(points=points).stat("grad_norm")
                for values in (window.low, window.high, window.last):
                    values = values[:, columns]
                    bad = ~np.isnan(values) & ~np.isin(values, self.norms)
                    found += [f"{value} in a window" for value in values[bad].tolist()]
        return found

    @property
    def sketches(self) -> np.ndarray:
        """[step, tensor, 32], of few binary digits, so that rounding leaves them alone."""
        return np.broadcast_to(np.floor(self.norms % 128)[..., None], (STEPS, TENSORS, 32))

    def missing(self, run: Run) -> list[str]:
        """Which of the true values the run does not have."""
        gone = [f"name {name}" for name in NAMES if name not in run.names]
        if not gone:
            columns = [run.names.index(name) for name in NAMES]
            for stat in ("grad_norm", "grad_sketch"):
                have = int((run.state(stat)[:, columns] == State.MEASURED).sum())
                gone += [stat] * (have != STEPS * TENSORS)
            for name in NAMES:
                have = len(run.histograms(FAMILY, name).items())
                gone += [f"histograms of {name}"] * (have != len(SEALED) + 1)
        logged = int((~np.isnan(run.scalars.get("loss", np.empty(0)))).sum())
        gone += ["loss"] * (logged != STEPS)
        events = sum(event.kind is EventKind.AUDIT for event in run.events)
        gone += ["events"] * (events != len(SEALED) + 1)
        gone += ["graph"] * (run.graph is None or run.graph.edges != GRAPH.edges)
        return gone

    def problems(self, run: Run) -> list[str]:
        """Wrong values, and missing ones of which nothing is said."""
        problems, gone = self.wrong(run), self.missing(run)
        if gone and not (damaged(run) or not run.info["complete"]):
            problems.append(f"{', '.join(gone)} missing, and nothing says so")
        return problems


def damaged(run: Run) -> list[str]:
    """What the events say of damage."""
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


def make(path: Path, *, journal: bool = True) -> SmallRun:
    """Two journals sealed with all rollups; the last one, with the end of the run, left if asked.

    One that cannot be sealed is left: here because the sealer is told to refuse it.
    """
    rng = np.random.default_rng(7)
    norms = rng.integers(1, 1 << 20, (STEPS, TENSORS)) / 64.0
    small = SmallRun(path, norms, rng.normal(size=STEPS))
    refusing = mock.patch.object(sealer.Sealer, "seal", side_effect=RuntimeError("left"))
    merging = mock.patch.object(sealer, "MERGED_FILES", 1)
    rows_of_four_steps = mock.patch.object(writer_thread, "SEAL_ROWS", 4 * TENSORS)
    with merging, rows_of_four_steps:
        writer = Writer.create(path, name="small")
        ids = writer.declare(subjects(TENSORS))
        writer.graph(GRAPH)
        rows = np.zeros(TENSORS, row_dtype(Family.GRAD))
        for step in range(STEPS):
            if step in SEALED or step == STEPS - 1:
                writer.event(Event(step, EventKind.AUDIT, f"event of step {step}"))
                for number in range(TENSORS):
                    writer.histograms(Family.GRAD, step, number, histogram_of(step, number))
            writer.scalars(step, {"loss": small.loss[step]})
            rows["grad_norm"], rows["grad_sketch"] = norms[step], small.sketches[step]
            writer.put(Family.GRAD, step, ids, rows, np.zeros(TENSORS, np.uint8))
            assert writer.flush(WAIT)
            if step in SEALED:
                _wait_until_sealed(path)
        with refusing if journal else contextlib.nullcontext():
            assert writer.close(WAIT)
    return small


def _wait_until_sealed(path: Path) -> None:
    """A journal that is sealed is deleted last."""
    deadline = time.monotonic() + WAIT
    while any(path.glob("*/journal-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not any(path.glob("*/journal-*"))
