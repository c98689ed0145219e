"""Any one file lost, emptied, cut or changed: an event names it, the run is not complete."""

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
from tests.store.trial import Trial, finishing_at

import gradwatch
from gradwatch.cli.main import gradwatch as command
from gradwatch.run import EventKind
from gradwatch.stats import State
from gradwatch.store import Retention, folder, open_run

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
@pytest.mark.parametrize("ending", small_run.ENDINGS)
def test_every_file(tmp_path, capsys, how, ending):
    small = small_run.make(tmp_path / "run", ending)
    tally = Tally(f"files of a run that was {ending}, {how}")
    for path in small.files():
        tally.counted += 1
        data, name = path.read_bytes(), path.relative_to(small.folder).as_posix()
        table, grows = name.rpartition("/")[0], path.suffix != ".parquet"
        harmed(path, how)
        tally.fired += not path.exists() or path.read_bytes() != data
        run = small.run()
        gone = small.missing(run)
        problems, texts = small.wrong(run), small_run.damage(run)
        lost = range(small_run.STEPS) if table in ("rows/grad", "steps") else ()
        if not (run.state("grad_norm") == State.MEASURED)[~np.isin(run.steps, lost)].all():
            problems.append("other rows are lost too")
        # Nobody can tell a growing file that was cut from one that a kill cut, except by the steps;
        # a short run is not read from coarse rows; a byte more at the end hides nothing.
        kill = ending == "killed" and table not in ("rows/grad", "scalars")
        kill = kill and (grows or table == "histograms/grad")
        kill = kill and not (path.name == "log.jsonl" and how in ("lost", "emptied", "zeros"))
        unread = table == "coarse/grad" and (how == "zeros" or ending == "killed")
        more = how == "one byte longer" and (grows or ending == "killed")
        if path.name == "log.jsonl" and how in ("cut", "one byte shorter"):
            kill, more = True, how == "one byte shorter"  # the line before says that it was closed
        named = any(name.partition("-")[0] in text or f"{table} has" in text for text in texts)
        if not (kill or unread or more) and not named:
            problems.append(f"no event names it, {gone} missing: {texts}")
        if not (unread or more) and run.info["complete"]:
            problems.append("it says that it is complete")
        for problem in problems:
            tally.fail(f"{name}: {problem}")
        path.write_bytes(data)
    tally.settle(capsys, 10)


def test_all_rows_are_lost(tmp_path):
    """Their cells are not sampled, and it is told."""
    small = small_run.make(tmp_path / "run")
    shutil.rmtree(small.folder / "rows")
    run = open_run(small.path)
    assert (run.state("grad_norm") == State.NOT_SAMPLED).all()
    assert run.state("grad_norm").shape == (small_run.STEPS, small_run.TENSORS)
    assert any("rows/grad" in text for text in small_run.damage(run))
    assert not run.info["complete"]


def test_rows_are_lost_that_retention_has_left(tmp_path):
    with finishing_at(4_000):
        trial = Trial(tmp_path / "run", tensors=2, keep=Retention(bytes=100_000))
        trial.steps(range(300), flush_every=2).close()
    run = open_run(tmp_path / "run")
    assert any(event.kind is EventKind.RETENTION for event in run.events)
    assert not small_run.damage(run)
    for file in tmp_path.glob("run/*/rows/*/*"):
        file.unlink()
    folder.held_columns.cache_clear()
    run = open_run(tmp_path / "run")
    run.series["grad_norm"]
    assert any("rows/grad" in text for text in small_run.damage(run))
    assert not run.info["complete"]


def test_the_list_of_runs(tmp_path, capsys):
    """Of each table one file is lost: `gradwatch runs` says so."""
    small = small_run.make(tmp_path / "whole" / "run")
    assert listed_state(tmp_path / "whole") == "complete"
    tally = Tally("lost files in `gradwatch runs`")
    for table in (*small_run.TABLES, "."):
        tally.counted += 1
        path = next((small.folder / table).glob("*.*"))
        data = path.read_bytes()
        path.unlink()
        state = listed_state(tmp_path / "whole")
        tally.fired += 1
        if state != "damaged":
            tally.fail(f"{table}: {state}")
        path.write_bytes(data)
    tally.settle(capsys, 6)


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
    for path in gradients_only.glob("run/*/**/*.parquet"):
        tally.counted += 1
        table, number = path.parent.relative_to(gradients_only / "run").as_posix(), path.name[:5]
        data = path.read_bytes()
        harmed(path, how)
        tally.fired += not path.exists() or path.read_bytes() != data
        folder.held_columns.cache_clear()
        run = open_run(gradients_only / "run")
        texts = small_run.damage(run)
        name = f"{table.partition('/')[2]}/{number}"
        if run.info["complete"] or len(texts) != 1 or name not in texts[0]:
            tally.fail(f"{name}: complete is {run.info['complete']}, damage {texts}")
        if "complete" in listed_state(gradients_only):
            tally.fail(f"{name}: listed as complete")
        if not table.endswith("rows/grad"):
            rows = whole.state("grad_norm")[np.isin(whole.steps, run.steps)]
            if not np.array_equal(run.state("grad_norm"), rows):
                tally.fail(f"{name}: other states")
        path.write_bytes(data)
    tally.settle(capsys, 5)
