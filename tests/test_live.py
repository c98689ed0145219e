"""A training that is watched and judged while it runs, and what is said at its end."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gradwatch import live
from gradwatch.live import watch


def test_findings_reach_the_callback_while_training(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told: list[str] = []
    stopped_at = -1
    watcher = watch(
        model,
        optimizer,
        run=tmp_path / "live",
        on_finding=lambda finding: told.append(finding.check),
    )
    with watcher:
        for step in range(60):
            inputs = torch.randn(8, 4) * (float("nan") if step >= 20 else 1.0)
            loss = model(inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            watcher.log(loss=loss)
            optimizer.step()
            if watcher.should_stop:
                stopped_at = step
                break
    assert told.count("nonfinite") == 1
    assert 20 <= stopped_at <= 30


# -- the line at the end ---------------------------------------------------------------------------


@pytest.fixture
def spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to train in, with the line that the other tests switch off."""
    monkeypatch.delenv("GRADWATCH_MODE")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(run: Any = "first", rate: float = 0.05, **options: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    inputs = torch.randn(64, 4)
    with watch(model, optimizer, run=run, **options) as watcher:
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(inputs) - inputs[:, :1]).pow(2).mean()
            loss.backward()
            watcher.log(loss)
            optimizer.step()


def test_the_end_says_where_the_run_is_its_verdict_and_what_to_type(spoken, capsys):
    train()
    assert capsys.readouterr() == (
        "",
        "gradwatch: runs/first: healthy, no finding. Next: gradwatch diagnose first\n",
    )
    train(spoken / "else where" / "second", rate=1e6)
    said = capsys.readouterr().err
    assert said.startswith("gradwatch: else where/second: sick, ")
    assert said.endswith(" Next: gradwatch diagnose 'else where/second'\n")


def test_nothing_is_said_when_quiet_and_on_other_ranks(spoken, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GRADWATCH_MODE", "Quiet")
        train("a")
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "1")
        patch.setenv("WORLD_SIZE", "2")
        train("b")
    assert capsys.readouterr().err == ""


def test_after_an_exception_it_is_said_where_the_run_is_but_no_verdict(spoken, capsys):
    model = nn.Linear(2, 1)
    with pytest.raises(KeyError), watch(model, torch.optim.SGD(model.parameters(), 0.1), run="r"):
        raise KeyError
    assert capsys.readouterr().err == "gradwatch: runs/r. Next: gradwatch diagnose r\n"


def test_a_verdict_that_takes_too_long_is_left_out(spoken, capsys, monkeypatch):
    monkeypatch.setattr(live, "LONGEST_JUDGED", 0.0)
    train("slow")
    monkeypatch.setattr(live, "MOST_JUDGED", 10)
    train("large")
    assert capsys.readouterr().err.splitlines() == [
        "gradwatch: runs/slow. Next: gradwatch diagnose slow",
        "gradwatch: runs/large. Next: gradwatch diagnose large",
    ]


def test_a_run_that_cannot_be_read_is_still_said_to_be_there(spoken, capsys):
    live.say_where(spoken / "runs" / "gone")
    assert capsys.readouterr().err == "gradwatch: runs/gone. Next: gradwatch diagnose gone\n"


PROGRAM = """
import torch, gradwatch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
gradwatch.watch(model, optimizer, run="r")
model(torch.randn(4, 2)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("ending", ["", "1 / 0", "raise KeyboardInterrupt"])
def test_a_program_that_ends_without_closing_says_it_also_where_it_failed(ending, spoken):
    environment = {k: v for k, v in os.environ.items() if k != "GRADWATCH_MODE"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode == 0) is (not ending)
    assert done.stderr.count("gradwatch diagnose r") == 1
    # what an exception ended is not judged: the line comes at once
    assert ("no finding" in done.stderr) is (not ending)


def test_in_a_notebook_it_is_a_small_card(spoken, capsys, monkeypatch):
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, display=shown.append)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    train("<b>")
    assert capsys.readouterr().err == ""
    (card,) = shown
    assert "<b>healthy, no finding</b>" in card
    assert "!gradwatch diagnose run_b" in card or "!gradwatch diagnose b" in card
