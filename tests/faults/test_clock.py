"""Somebody sets the clock while a training is recorded: a year ahead, hours back."""

import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.store.trial import Trial, finishing_at

import gradwatch
from gradwatch.cli.runs import command
from gradwatch.run import EventKind
from gradwatch.store import Retention, list_runs, open_run

YEAR, HOURS = 365 * 86400.0, -5 * 3600.0


class SetClock:
    """What `time.time` says, which the tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    return SetClock(monkeypatch)


@pytest.mark.parametrize("jump", [YEAR, pytest.param(HOURS, marks=pytest.mark.security)])
def test_retention_by_age_takes_nothing_of_the_last_minutes(tmp_path, clock, jump):
    with finishing_at(4_000):
        trial = Trial(tmp_path / "run", tensors=2, keep=Retention(seconds=7 * 86400))
        trial.steps(range(20), flush_every=4)
        clock.ahead = jump
        trial.steps(range(20, 40), flush_every=4)
        trial.close()
    assert len([*tmp_path.glob("run/*/rows/grad/*.parquet")]) > 2
    run = open_run(tmp_path / "run")
    assert not [event for event in run.events if event.kind is EventKind.RETENTION]
    trial.check(run)


@pytest.mark.parametrize("jump", [YEAR, pytest.param(HOURS, marks=pytest.mark.security)])
def test_a_recorded_training(tmp_path, clock, jump):
    """Steps stay in order, no duration is negative, and the run is whole."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watcher = gradwatch.watch(model, optimizer, every=1, run=tmp_path / "run")
    for step in range(30):
        clock.ahead = jump if 10 <= step < 20 else 0.0
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
    assert watcher.overhead >= 0
    watcher.close()
    run = open_run(tmp_path / "run")
    assert run.info["complete"]
    assert run.steps.tolist() == list(range(31))
    seconds = run.scalars["step_seconds"]
    assert (seconds[np.isfinite(seconds)] >= 0).all()
    assert np.nanmax(seconds) < 60
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]


@pytest.mark.parametrize("jump", [YEAR, -time.time() - 1])
def test_the_list_of_runs(tmp_path, clock, jump):
    """A run begun by a wrong clock is listed like any other, and is no reason to stop."""
    clock.ahead = jump
    Trial(tmp_path / "wrong").steps(range(2)).close()
    clock.ahead = 0.0
    Trial(tmp_path / "right").steps(range(2)).close()
    assert {item.name for item in list_runs(tmp_path)} == {"trial"}
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.count("complete") == 2
