"""A small run of every kind of file, with its truth: truncation and mutation start from it."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.store.trial import WAIT, sealing_at, subjects

from gradwatch.run import Event, EventKind, Histogram, Run
from gradwatch.stats import Family, State, row_dtype
from gradwatch.store import Writer

TENSORS = 2
STEPS = 20
NAMES = [subject.name for subject in subjects(TENSORS)]


@dataclass(frozen=True)
class SmallRun:
    path: Path
    norms: np.ndarray
    loss: np.ndarray

    def wrong(self, run: Run) -> list[str]:
        """Values that are there and not the true ones."""
        if "update_norm" not in run.recorded:
            return []
        found = []
        norm, state = run.series["update_norm"], run.state("update_norm")
        for number, name in enumerate(NAMES):
            if name not in run.names:
                continue
            column = run.names.index(name)
            for row, step in enumerate(run.steps.tolist()):
                if state[row, column] not in (State.MEASURED, State.PARTIAL):
                    continue
                if not 0 <= step < STEPS or norm[row, column] != self.norms[step, number]:
                    found.append(f"{name} at step {step}: {norm[row, column]}")
        for step, value in zip(run.steps.tolist(), run.scalars.get("loss", ()), strict=False):
            if not np.isnan(value) and (not 0 <= step < STEPS or value != self.loss[step]):
                found.append(f"loss at step {step}: {value}")
        return found

    def missing(self, run: Run) -> int:
        """How many of the true values the run does not have."""
        have = 0
        if "update_norm" in run.recorded and set(NAMES) <= set(run.names):
            columns = [run.names.index(name) for name in NAMES]
            have = int((run.state("update_norm")[:, columns] == State.MEASURED).sum())
        logged = int((~np.isnan(run.scalars.get("loss", np.empty(0)))).sum())
        return STEPS * TENSORS - have + STEPS - logged

    def told(self, run: Run) -> bool:
        """Whether the run says that it is not whole."""
        damage = any(event.kind is EventKind.DAMAGE for event in run.events)
        return damage or not run.info["complete"]


def make(path: Path) -> SmallRun:
    """Two journals sealed, one left; levels, events, histograms, scalars."""
    rng = np.random.default_rng(7)
    norms = rng.integers(1, 1 << 20, (STEPS, TENSORS)) / 64.0
    loss = rng.normal(size=STEPS)
    writer = Writer.create(path, name="small")
    ids = writer.declare(subjects(TENSORS))
    rows = np.zeros(TENSORS, row_dtype(Family.UPDATE))
    for step in range(STEPS):
        rows["update_norm"], rows["update_ratio"] = norms[step], norms[step] / 2
        writer.put(Family.UPDATE, step, ids, rows, np.zeros(TENSORS, np.uint8))
        writer.scalars(step, {"loss": loss[step]})
        if step in (6, 12):
            with sealing_at(0):
                writer.event(Event(step, EventKind.AUDIT, "an event"))
                bins = np.ones(2, np.uint64)
                writer.histograms(Family.UPDATE, step, 0, Histogram(-3, bins, bins))
                assert writer.flush(WAIT)
                _wait_until_sealed(path)
    assert writer.close(WAIT)
    assert writer.thread.finished.wait(WAIT)
    return SmallRun(path, norms, loss)


def _wait_until_sealed(path: Path) -> None:
    """A journal that is sealed is deleted last."""
    deadline = time.monotonic() + WAIT
    while any(path.glob("*/j*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not any(path.glob("*/j*"))
