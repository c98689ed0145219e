"""Two trainings of one name: side by side they stay apart, one after another the newer counts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.store.trial import Trial

import gradwatch
from gradwatch.run import Event, EventKind
from gradwatch.stats import State
from gradwatch.store import open_run

CHILD = """
import sys, torch, gradwatch
torch.manual_seed(int(sys.argv[2]))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
watcher = gradwatch.watch(model, optimizer, run=sys.argv[1], every=1, record=["weights"])
print("begun", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()
watcher.log(norm=float(model.weight.norm()))
watcher.close()
print(float(model.weight.norm()), flush=True)
"""


def started(path: Path, seed: int) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", CHILD, str(path), str(seed)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.security
def test_two_processes_side_by_side(tmp_path):
    both = [started(tmp_path / "x", seed) for seed in (7, 9)]
    for process in both:
        assert process.stdout.readline() == "begun\n"
    told = [process.communicate("\n", timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x-2"]
    assert sum("another training is recorded" in error for _, error in told) == 1
    norms = {}
    for name in ("x", "x-2"):
        run = open_run(tmp_path / name)
        assert run.info["complete"]
        norms[len(run.steps) - 1] = np.nanmax(run.scalars["norm"])
    assert norms == {7: float(told[0][0]), 9: float(told[1][0])}


@pytest.mark.security
def test_a_killed_training_holds_nothing(tmp_path):
    process = started(tmp_path / "x", 3)
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.communicate()
    watcher = watched(tmp_path / "x", torch.nn.Linear(2, 2))
    watcher.close()
    assert watcher.run_dir == tmp_path / "x"


def watched(path: Path, model: torch.nn.Module) -> gradwatch.Watcher:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return gradwatch.watch(model, optimizer, run=path, every=1)


def test_two_in_one_process(tmp_path, caplog):
    models = [torch.nn.Linear(2, 2) for _ in range(3)]
    first, second = (watched(tmp_path / "x", model) for model in models[:2])
    assert [w.run_dir.name for w in (first, second)] == ["x", "x-2"]
    assert "another training is recorded" in caplog.text
    first.close()
    third = watched(tmp_path / "x", models[2])  # a new attempt: the run is free again
    second.close(), third.close()
    assert third.run_dir.name == "x"
    assert open_run(tmp_path / "x-2").info["name"] == "x-2"


@pytest.mark.parametrize("first_step", [0, 6])
def test_one_after_another(tmp_path, first_step):
    """Begun anew, nothing of the old one shows; resumed, what was before the checkpoint does."""
    old = Trial(tmp_path / "run", seed=1, tensors=5).steps(range(20))
    old.writer.event(Event(19, EventKind.AUDIT, "old"))
    old.close()
    new = Trial(tmp_path / "run", seed=2, tensors=3).steps(range(first_step, 10))
    new.close()
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(10))
    assert run.info["complete"]
    assert not run.events
    new.check(run)
    assert len(run.names) == (5 if first_step else 3)
    old.check(open_run(tmp_path / "run", attempt=0))
    old.truth = {key: rows for key, rows in old.truth.items() if key[1] < first_step}
    old.loss = {step: loss for step, loss in old.loss.items() if step < first_step}
    if first_step:
        old.check(run)
        assert (run.state("grad_norm")[run.steps >= 6][:, 3:] == State.NOT_SAMPLED).all()


def test_a_training_of_fewer_ranks(tmp_path):
    """The second rank of the old training has no place in the new one."""
    for rank in (0, 1):
        Trial(tmp_path / "run", seed=rank, rank=rank, world=2).steps(range(20)).close()
    new = Trial(tmp_path / "run", seed=2).steps(range(10))
    new.close()
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(10))
    assert run.info["ranks"] == 1
    new.check(run)
