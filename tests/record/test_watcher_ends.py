"""What was recorded survives, whoever is gone first: model, optimizer, watcher or process."""

import gc
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch import nn

from gradwatch.live import watch
from gradwatch.record import Disabled, Watcher
from gradwatch.record.schedule import Schedule
from gradwatch.run import Run
from gradwatch.stats import Family, Stat
from gradwatch.store import open_run
from gradwatch.store.writer import EXIT_SECONDS

STEPS = 30
OF_FAMILY = {
    Family.GRAD: Stat.GRAD_NORM,
    Family.WEIGHT: Stat.WEIGHT_NORM,
    Family.UPDATE: Stat.UPDATE_NORM,
    Family.OPTIM: Stat.OPTIM_RATIO_RMS,
    Family.ACT: Stat.ACT_STD,
    Family.GROUP: Stat.LR,
}


def train(path: Path, every: int | None) -> tuple[nn.Module, torch.optim.Optimizer, Watcher]:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch(model, optimizer, run=path, every=every)
    assert not isinstance(watcher, Disabled)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)
        optimizer.step()
    return model, optimizer, watcher


def measured(run: Run, stat: Stat) -> set[int]:
    return set(run.steps[np.isfinite(run.series[stat]).any(axis=1)].tolist())


def check_whole(run: Run, every: int | None) -> None:
    """Every family that has a schedule on each of its steps, and every logged number."""
    families = frozenset(OF_FAMILY)
    for family, stat in OF_FAMILY.items():
        schedule = Schedule(families, 0, every)
        due = {s for s in range(STEPS) if family in schedule.plan(s, 1).due}
        assert measured(run, stat) - {STEPS} == due, family
    assert np.isfinite(run.scalars["loss"][:STEPS]).all()
    assert run.info["complete"] is True
    assert run.info["overhead"] > 0.0


def close(watcher: Watcher) -> None:
    """Close, which waits for the thread; on a busy machine not long enough for it."""
    writer, began = watcher.controller.recorder.sink, time.monotonic()
    watcher.close()
    assert writer.finished.is_set() or time.monotonic() - began >= EXIT_SECONDS
    assert writer.finished.wait(60)


@pytest.mark.parametrize("every", [1, None])
@pytest.mark.parametrize("gone", ["model", "optimizer", "both"])
def test_a_watcher_outlives_what_it_watched(gone: str, every: int | None, tmp_path: Path) -> None:
    model, optimizer, watcher = train(tmp_path / "r", every)
    if gone != "optimizer":
        del model
    if gone != "model":
        del optimizer
    gc.collect()
    assert watcher.recording is (gone == "optimizer")
    close(watcher)
    run = open_run(tmp_path / "r")
    check_whole(run, every)
    said = "closed" if gone == "optimizer" else "closed because the model is gone"
    assert run.events[-1].text == said


@pytest.mark.parametrize("every", [1, None])
def test_a_watcher_that_nobody_kept_is_finished_when_the_model_goes(
    every: int | None, tmp_path: Path
) -> None:
    kept = train(tmp_path / "r", every)[0]
    gc.collect()
    assert not open_run(tmp_path / "r").info["complete"]
    del kept
    gc.collect()
    deadline = time.monotonic() + 30
    while not open_run(tmp_path / "r").info["complete"] and time.monotonic() < deadline:
        time.sleep(0.05)
    check_whole(open_run(tmp_path / "r"), every)


@pytest.mark.parametrize(
    ("end", "every", "code"),
    [
        ("kept = start()", None, 0),
        ("watcher = start()[2]", 1, 0),
        ("watcher = start()[2]", None, 0),
        ("model = start()[0]", 1, 0),
        ("start()", 1, 0),
        ("kept = start(); sys.exit(3)", 1, 3),
        ("watcher = start()[2]; raise KeyError", 1, 1),
    ],
)
def test_a_process_may_end_without_closing(
    end: str, every: int | None, code: int, tmp_path: Path
) -> None:
    script = f"""
        import pathlib, sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from tests.record.test_watcher_ends import train
        def start():
            return train(pathlib.Path(sys.argv[1]), {every})
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    check_whole(open_run(tmp_path / "r"), every)


def test_a_closed_watcher_keeps_nothing_that_is_logged() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch_into(MemorySink(), model, optimizer, every=1000)
    for step in range(20):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        watcher.log(loss=1.0)
    assert watcher.controller.clock.idle_left
    del model, optimizer
    gc.collect()
    assert not watcher.controller.clock.idle_left
    assert not watcher.controller.logs.keep({"loss": 1.0})
