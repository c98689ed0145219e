"""Workers: equal results, a file that shrinks, a worker that dies, a cluster that loses one."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.checkpoints.files import floats

from gradwatch.checkpoints import ScanOptions, isolated, limits, scan
from gradwatch.checkpoints.measure import (
    PartialStats,
    ShardRows,
    measure_group,
    measure_tensors,
    measuring_units,
)
from gradwatch.checkpoints.parallel import Access, WorkUnit, do_work
from gradwatch.checkpoints.readers import open_index
from gradwatch.errors import GradwatchError

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(7)


@pytest.fixture
def workers_know_this_file(monkeypatch):
    """Workers import gradwatch and numpy only; here they also have to do what this file says."""
    command = isolated.command

    def command_with_tests(*arguments: str) -> list[str]:
        *interpreter, program, pipe = command(*arguments)
        root = str(Path(__file__).parents[2])
        return [*interpreter, f"import sys\nsys.path.append({root!r})\n{program}", pipe]

    monkeypatch.setattr(isolated, "command", command_with_tests)


@pytest.fixture
def path(tmp_path):
    arrays = {f"l{i}__weight": RNG.standard_normal((64, 64)) for i in range(12)}
    return floats(tmp_path / "m.safetensors", **arrays)


Group = tuple[ShardRows, ...]


def shrink_and_map(access: Access, group: Group) -> list[PartialStats]:
    """What a worker meets when the file is cut behind its back: the page is gone, SIGBUS."""
    read = access()
    for rows in group:
        read(rows.file, 0, 1)  # mapped while whole
        os.truncate(rows.file.path, 10)
    return measure_group(access, group)


def die_once(access: Access, group: Group) -> list[PartialStats]:
    """Kill the first worker that comes here."""
    marker = f"{group[0].file.path}.died"
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return measure_group(access, group)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def die(access: Access, group: Group) -> list[PartialStats]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def units(path: Path, function) -> list[WorkUnit[list[PartialStats]]]:
    """The work of measuring the file, done by this function."""
    index = open_index(path)
    return [replace(u, function=function) for u in measuring_units(index, full=True, hashed=False)]


@pytest.mark.usefixtures("workers_know_this_file")
def test_a_file_that_shrinks_while_mapped_is_said_to_have_changed(path) -> None:
    with pytest.raises(GradwatchError, match="changed while reading"):
        do_work(units(path, shrink_and_map), ScanOptions(workers=1), str(path), 0)


@pytest.mark.usefixtures("workers_know_this_file")
def test_a_worker_that_dies_once_is_replaced(path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "TASK_BYTES", 20_000)
    work = units(path, die_once)
    assert len(work) > 3
    found = do_work(work, ScanOptions(workers=2), str(path), 0)
    assert Path(f"{path}.died").exists()
    alone = do_work(units(path, measure_group), ScanOptions(workers=0), str(path), 0)
    for a, b in zip(found, alone, strict=True):
        assert [part.moments.tobytes() for part in a] == [part.moments.tobytes() for part in b]


@pytest.mark.usefixtures("workers_know_this_file")
def test_workers_that_always_die_end_in_a_sentence(path) -> None:
    with pytest.raises(GradwatchError, match="died twice"):
        do_work(units(path, die), ScanOptions(workers=1), str(path), 0)


def test_a_file_that_is_replaced_before_measuring_is_noticed(path) -> None:
    index = open_index(path)
    raw = path.read_bytes()
    path.write_bytes(raw + b"x")
    with pytest.raises(GradwatchError, match="changed while reading"):
        measure_tensors(index, ScanOptions(workers=0), full=True, hashed=False)
    path.unlink()
    with pytest.raises(GradwatchError, match="changed while reading"):
        measure_tensors(index, ScanOptions(workers=0), full=True, hashed=False)


def test_progress_reaches_the_total(path) -> None:
    seen = []
    scan(path, workers=2, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12 * 64 * 64 * 4, 12 * 64 * 64 * 4)


def test_an_address_without_a_scheduler_is_said(path, monkeypatch) -> None:
    import distributed

    def refuse(*arguments, **options):
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(GradwatchError, match="no Dask scheduler"):
        scan(path, dask="tcp://127.0.0.1:9")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_that_loses_a_worker_gives_the_same_result(tmp_path, monkeypatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr(limits, "TASK_BYTES", 1 << 20)
    arrays = {f"l{i}__weight": RNG.standard_normal((512, 512)) for i in range(64)}
    path = floats(tmp_path / "m.safetensors", **arrays)
    alone = scan(path, workers=0)
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed = []

        def kill_one(done: int, total: int) -> None:
            if not killed and done > total // 8:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.pid)
                os.kill(worker.process.pid, signal.SIGKILL)

        together = scan(path, dask=cluster.scheduler_address, progress=kill_one)
        assert killed
    for stat in alone.series:
        np.testing.assert_array_equal(alone.series[stat], together.series[stat])


def test_any_executor_will_do_and_is_left_open(path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    alone = scan(path, workers=0)
    with ThreadPoolExecutor(2) as threads:
        together = scan(path, executor=threads)
        assert threads.submit(int, 3).result() == 3
    for stat in alone.series:
        np.testing.assert_array_equal(alone.series[stat], together.series[stat])


def test_the_run_of_several_checkpoints_can_be_diagnosed_and_shown(tmp_path) -> None:
    from gradwatch.diagnosis import diagnose
    from gradwatch.views.model import build
    from gradwatch.views.page import report
    from gradwatch.views.terminal import screen

    paths = [
        floats(tmp_path / f"step-{step}.safetensors", a__weight=x, b__weight=x * (step + 1))
        for step, x in ((0, RNG.standard_normal((8, 8))), (50, RNG.standard_normal((8, 8))))
    ]
    run = scan(paths)
    assert run.steps.tolist() == [0, 50]
    diagnosis = diagnose(run)
    model = build(run, diagnosis)
    assert list(run.layers) == ["a", "b"]
    assert list(screen(model, 80))
    assert "b" in report(model)
