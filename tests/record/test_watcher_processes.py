"""Watchers and processes: forked children, loader workers, interpreters that just end."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch.utils.data import DataLoader, TensorDataset

from gradwatch.live import watch
from gradwatch.store import open_run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_forked_child_is_silent_and_the_parent_goes_on(tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch(model, optimizer, run=tmp_path / "r")

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()

    step(0)
    child = os.fork()
    if child == 0:
        try:
            for number in range(1, 4):
                step(number)
            watcher.log(loss=1.0)
            silent = not watcher.recording and not watcher.controller.recorder.sink.flush(0.1)
            watcher.close()
            os._exit(0 if silent else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    step(1)
    watcher.close()
    run = open_run(tmp_path / "r")
    assert list(run.steps) == [0, 1, 2]
    assert "loss" not in run.scalars


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_know_nothing_of_a_watcher(tmp_path: Path, start: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch(model, optimizer, run=tmp_path / "r")
    data = TensorDataset(torch.randn(12, 6), torch.zeros(12, dtype=torch.long))
    loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=start)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    watcher.close()
    assert list(open_run(tmp_path / "r").steps) == [*range(7)]
    assert len(list((tmp_path / "r").glob("0000-*"))) == 1


def _script(body: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    start = """
        import sys, torch
        from gradwatch.live import watch
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
    """
    code = textwrap.dedent(start) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_process_that_just_ends_leaves_a_complete_run(tmp_path: Path) -> None:
    done = _script("watch(model, optimizer, run=sys.argv[1])\ntrain(5)", str(tmp_path / "r"))
    assert (done.returncode, done.stderr) == (0, "")
    run = open_run(tmp_path / "r")
    assert run.info["complete"] is True
    assert list(run.steps) == [0, 1, 2, 3, 4, 5]


def test_an_error_of_the_users_keeps_its_exit_code_and_its_rows(tmp_path: Path) -> None:
    body = "watch(model, optimizer, run=sys.argv[1])\ntrain(3)\nraise SystemExit(7)"
    done = _script(body, str(tmp_path / "r"))
    assert (done.returncode, done.stderr) == (7, "")
    assert list(open_run(tmp_path / "r").steps) == [0, 1, 2, 3]


def test_a_child_of_the_user_that_trains_is_not_watched(tmp_path: Path) -> None:
    body = """
        import os
        watcher = watch(model, optimizer, run=sys.argv[1])
        child = os.fork()
        if child == 0:
            train(4)
            sys.exit(0)
        os.waitpid(child, 0)
        train(2)
    """
    done = _script(body, str(tmp_path / "r"))
    assert (done.returncode, done.stderr) == (0, "")
    assert list(open_run(tmp_path / "r").steps) == [0, 1, 2]


def test_threads_that_train_two_models_do_not_mix() -> None:
    import threading

    sinks, watchers = [], []

    def train(number: int) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1 * (number + 1))
        sink = MemorySink()
        watchers.append(watch_into(sink, model, optimizer, record={"gradients"}))
        sinks.append((sink, number))
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all(watcher.guard.error is None for watcher in watchers)
    for sink, number in sinks:
        from gradwatch.stats import Family

        assert sink.steps(Family.GRAD) == [*range(20)]
        rates = {row["lr"] for (f, _, _), (row, _) in sink.rows.items() if f is Family.GROUP}
        assert rates == {0.1 * (number + 1)}
