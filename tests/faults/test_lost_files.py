"""Any one sealed file lost, emptied, cut or changed: *damaged*, an event, not complete."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.faults import small_run
from tests.faults.tally import Tally
from tests.faults.test_truncation import SEALED

import gradwatch
from gradwatch.cli.main import gradwatch as command
from gradwatch.stats import State
from gradwatch.store import manifest, open_run

HARM: dict[str, Callable[[bytes], bytes | None]] = {
    "lost": lambda data: None,
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one byte shorter": lambda data: data[:-1],
    "one byte longer": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
}


def harmed(path: Path, how: str) -> None:
    left = HARM[how](path.read_bytes())
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)


def listed_state(runs: Path) -> str:
    """What `gradwatch runs --json` says of the one run there."""
    done = CliRunner().invoke(command, ["runs", str(runs), "--json"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    return run["state"]


@pytest.mark.parametrize("how", HARM)
def test_every_sealed_file(tmp_path, capsys, how):
    small = small_run.make(tmp_path / "whole", journal=False)
    shutil.copytree(small.path, tmp_path / "run")
    copied = small_run.SmallRun(tmp_path / "run", small.norms, small.loss)
    entries = {
        entry.file: entry
        for entry in manifest.decode((copied.folder / "manifest.json").read_bytes()).files
    }
    tally = Tally(f"sealed files, {how}")
    assert {name.rpartition("/")[0] or name for name in entries} == set(SEALED)
    for name, entry in entries.items():
        tally.counted += 1
        path = copied.folder / name
        data = path.read_bytes()
        harmed(path, how)
        tally.fired += not path.exists() or path.read_bytes() != data
        run = open_run(copied.path)
        problems = copied.problems(run)
        lost = manifest.numbers_of(entry.steps)
        damaged_steps = {
            "rows": ("grad_norm", "grad_sketch"),
            "sketches": ("grad_sketch",),
        }.get(entry.kind, ())
        for stat in ("grad_norm", "grad_sketch"):
            expected = np.isin(run.steps, lost) & (stat in damaged_steps)
            if not np.array_equal((run.state(stat) == State.DAMAGED).all(axis=1), expected):
                problems.append(f"{stat} is damaged on other steps")
            if not np.isin(run.state(stat), (State.MEASURED, State.DAMAGED)).all():
                problems.append(f"{stat} has another state")
        unread = how == "zeros" and entry.kind == "rollups"  # a short run is not read from them
        if not unread and not any(name in text for text in small_run.damaged(run)):
            problems.append("no event names it")
        if not unread and run.info["complete"]:
            problems.append("it says that it is complete")
        for problem in problems:
            tally.fail(f"{name}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, len(SEALED))


def test_the_list_of_runs(tmp_path, capsys):
    """Of each kind one file is lost: `gradwatch runs` says so."""
    small = small_run.make(tmp_path / "whole" / "run", journal=False)
    assert listed_state(tmp_path / "whole") == "complete"
    tally = Tally("lost files in `gradwatch runs`")
    for kind in (*SEALED, "manifest.json"):
        tally.counted += 1
        path = small.kinds()[kind]
        data = path.read_bytes()
        path.unlink()
        state = listed_state(tmp_path / "whole")
        tally.fired += 1
        if state != "damaged":
            tally.fail(f"{kind}: {state}")
        path.write_bytes(data)
    tally.settle(capsys, 11)


@pytest.fixture(scope="module")
def gradients_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,600 steps of three numbers into three, of which only the gradients are recorded."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    path = tmp_path_factory.mktemp("linear")
    watcher = gradwatch.watch(model, optimizer, record=["gradients"], every=1, run=path / "run")
    for _ in range(4600):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
    watcher.close()
    return path


@pytest.mark.parametrize("how", ["lost", "emptied", "cut"])
def test_a_long_run_of_gradients_only(gradients_only, capsys, how):
    tally = Tally(f"files of 4,600 steps, {how}")
    whole = open_run(gradients_only / "run")
    assert len(whole.steps) == 4600
    assert whole.info["complete"]
    states = whole.state("grad_norm")
    (listed,) = gradients_only.glob("run/*/manifest.json")
    for entry in manifest.decode(listed.read_bytes()).files:
        tally.counted += 1
        path = listed.parent / entry.file
        data = path.read_bytes()
        harmed(path, how)
        tally.fired += not path.exists() or path.read_bytes() != data
        run = open_run(gradients_only / "run")
        complete, texts = run.info["complete"], small_run.damaged(run)
        if complete or len(texts) != 1 or entry.file not in texts[0]:
            tally.fail(f"{entry.file}: complete is {complete}, damage {texts}")
        lost = np.isin(run.steps, manifest.numbers_of(entry.steps)) & (entry.kind == "rows")
        lost &= entry.group == "grad"
        expected = np.where(lost[:, None], np.uint8(State.DAMAGED), states)
        if not np.array_equal(run.state("grad_norm"), expected):
            tally.fail(f"{entry.file}: states {np.unique(run.state('grad_norm')).tolist()}")
        if entry.kind == "rows" and "complete" in listed_state(gradients_only):
            tally.fail(f"{entry.file}: listed as complete")
        path.write_bytes(data)
    tally.settle(capsys, 5)
