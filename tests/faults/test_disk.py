"""Disks that refuse: the kernel's own errors, and every write of a run failing in turn."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.faults.small_run import damage
from tests.faults.tally import Tally
from tests.store.trial import WAIT, Trial, finishing_at

from gradwatch.run import Event, EventKind
from gradwatch.stats import State
from gradwatch.store import open_run
from gradwatch.store import writer as writer_thread

ROOT = Path(__file__).parents[2]


def run_campaign(folder: Path, word: str, before: list[str] = ()) -> dict:
    command = [*before, sys.executable, "-B", "-m", "tests.faults.disk_campaign", str(folder), word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout or (folder / "result.json").read_text())


def test_full_file_system(tmp_path, capsys):
    space = tmp_path / "space"
    space.mkdir()
    script = (
        f'mount -t tmpfs -o size=1m tmpfs "{space}" && '
        f'exec "{sys.executable}" -B -m tests.faults.disk_campaign "{space}" full'
    )
    trial = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=1m tmpfs "{space}"']
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        with capsys.disabled():
            print("\ntmpfs: SKIPPED, this machine lets nobody mount; RLIMIT_FSIZE and shims count")
        pytest.skip("mounting a small tmpfs is not allowed here")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    tally = Tally("full tmpfs", 1, int(errno.ENOSPC in result["errors"]), result["problems"])
    tally.settle(capsys, 1)


@pytest.mark.parametrize(
    "fault",
    [
        "write:error=ENOSPC:when=9+3",
        "write:error=EIO:when=8+2",
        "fsync:error=EIO:when=1+2",
        "renameat:error=EIO:when=1+2",
        "unlinkat:error=EIO:when=1+2",
        "mkdirat:error=ENOSPC:when=4+3",
    ],
)
def test_injected_by_strace(tmp_path, capsys, fault):
    log = tmp_path / "strace.log"
    call = fault.partition(":")[0]
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(log),
        "-e",
        f"trace={call}",
        "-e",
        f"inject={fault}",
    ]
    if (
        not shutil.which("strace")
        or subprocess.run(["strace", "true"], capture_output=True).returncode
    ):
        with capsys.disabled():
            print(f"\nstrace {fault}: SKIPPED, this machine cannot trace; shims count")
        pytest.skip("strace is not there or not allowed")
    result = run_campaign(tmp_path, "inject", command)
    fired = log.read_text().count("(INJECTED)")
    tally = Tally(f"strace {fault}", 1, int(fired > 0), result["problems"])
    with capsys.disabled():
        print(f"\n{fired} calls made to fail", end="")
    tally.settle(capsys, 1)


@pytest.mark.parametrize("taken", ["rows", "coarse", "scalars"])
def test_a_subfolder_that_vanishes_is_made_again(tmp_path, taken):
    """What was in it is lost, which is told; all that comes later is there."""
    with finishing_at(4_000):
        trial = Trial(tmp_path / "run", tensors=2).steps(range(40), flush_every=4)
        (trial.writer.folder / taken).rename(tmp_path / "gone")
        trial.steps(range(40, 80), flush_every=4)
        trial.close()
    run = open_run(tmp_path / "run")
    there = run.state("grad_norm") != State.NOT_SAMPLED
    texts = damage(run)
    assert texts
    assert all(f"{taken}/" in text for text in texts)
    assert not run.info["complete"]
    assert (trial.writer.folder / taken).is_dir()
    assert there[run.steps >= 60].all()  # one part may have been growing when its folder went
    assert not there[run.steps < 20].any() or taken != "rows"
    lost = {step for step in range(60) if taken == "rows"}
    trial.truth = {key: value for key, value in trial.truth.items() if key[1] not in lost}
    trial.loss = {step: loss for step, loss in trial.loss.items() if taken != "scalars"}
    trial.check(run)


def test_a_folder_that_becomes_read_only(tmp_path):
    """As another user than root: nobody else is kept out."""
    if not shutil.which("setpriv") or os.getuid():
        pytest.skip("needs root, to become somebody else")
    (tmp_path / "run").mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
        if folder == Path("/tmp"):
            break
    os.chown(tmp_path / "run", 65534, 65534)
    os.chown(tmp_path, 65534, 65534)
    somebody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    result = run_campaign(tmp_path, "readonly", somebody)
    assert errno.EACCES in result["errors"]
    assert not result["problems"]


@pytest.mark.parametrize("ranks", [(0, 0), (0, 1)])
def test_two_writers_in_one_run(tmp_path, ranks):
    """Of one rank they are two attempts; both finish parts, neither touches what the other has."""
    with finishing_at(4_000):
        trials = [
            Trial(tmp_path / "run", tensors=2, seed=number, rank=rank, world=2)
            for number, rank in enumerate(ranks)
        ]
        for step in range(40):
            for trial in trials:
                trial.step(step)
                assert trial.writer.flush(WAIT)
        for trial in trials:
            trial.close()
    run = open_run(tmp_path / "run")
    assert run.info["complete"]
    assert not damage(run)
    for number, trial in enumerate(trials):
        assert len([*trial.writer.folder.glob("rows/grad/*.parquet")]) > 1
        if ranks == (0, 0):
            trial.check(open_run(tmp_path / "run", attempt=number))
        else:
            trial.check(run.ranks[number])


def test_a_stream_somebody_cuts_stays_as_it_is(tmp_path):
    """The writer notices when it turns it into Parquet; the rows before the cut are read."""
    trial = Trial(tmp_path / "run").steps(range(20), flush_every=5)
    (path,) = trial.writer.folder.glob("rows/grad/*.arrows")
    os.truncate(path, path.stat().st_size - 5)
    trial.steps(range(20, 30))
    trial.close()
    assert path.exists()
    run = open_run(tmp_path / "run")
    there = run.state("grad_norm") != State.NOT_SAMPLED
    assert there[:15].all()
    assert not there[15:].any()
    assert any("rows/grad" in text for text in damage(run))
    assert not run.info["complete"]
    trial.truth = {key: rows for key, rows in trial.truth.items() if key[1] < 15}
    trial.check(run)


def test_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot write"):
        trial = Trial(tmp_path / "file" / "run")
    trial.step(0)
    assert not trial.writer.flush(0.2)
    (tmp_path / "file").unlink()
    assert trial.writer.flush(WAIT)
    trial.close()
    trial.check(open_run(tmp_path / "file" / "run"))


@pytest.mark.parametrize("attempts", [3, 40])
def test_a_disk_that_refuses_at_the_beginning(tmp_path, monkeypatch, attempts):
    """Whatever call fails, the folder is made once, and all is there when the disk works again."""
    hurried(monkeypatch)
    left = iter(range(attempts))
    for name in ("open", "link"):
        real = getattr(os, name)

        def refuse(*arguments, _real=real, **options):
            ours = str(tmp_path) in str(arguments[0]) or str(arguments[0]).endswith("log.jsonl")
            if ours and next(left, None) is not None:
                raise OSError(errno.EIO, "made to fail")
            return _real(*arguments, **options)

        monkeypatch.setattr(os, name, refuse)
    with pytest.warns(UserWarning, match="cannot write"):
        trial = Trial(tmp_path / "run").steps(range(30), flush_every=10)
    trial.close()
    run = open_run(tmp_path / "run")
    trial.check(run)
    assert run.info["complete"]
    assert len([path for path in (tmp_path / "run").iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir", "everything"])
def test_a_disk_that_refuses_for_good(tmp_path, monkeypatch, caplog, call):
    """The training goes on, one warning says it, and memory stays bounded."""
    hurried(monkeypatch)
    monkeypatch.setattr(writer_thread, "QUEUE_BYTES", 50_000)
    monkeypatch.setattr(writer_thread, "SYNC_SECONDS", 0.05)
    monkeypatch.setattr(writer_thread, "UNSYNCED_BYTES", 20_000)
    with finishing_at(20_000):
        trial = Trial(tmp_path / "run")
        assert trial.writer.flush(WAIT)
        for name in ("write", "fsync", "rename", "mkdir") if call == "everything" else (call,):
            monkeypatch.setattr(os, name, failing(trial.writer, getattr(os, name)))
        for step in range(1500):
            trial.step(step)
            if step % 25 == 0:
                trial.writer.flush(0.01)
        time.sleep(0.2)
        assert trial.writer.backlog <= 2
        assert sum(file.size - file.synced for file in trial.writer.files()) < 600_000
        assert sum(table.part.bytes for table in trial.writer.tables.values()) < 2_000_000
        assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
        monkeypatch.undo()
        trial.step(1500)
        assert trial.writer.flush(WAIT)
        assert trial.writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.steps[-1] == 1500
    assert any(event.kind is EventKind.GAP for event in run.events) == (trial.writer.dropped > 0)
    assert not damage(run)
    assert len(caplog.records) == 1
    there = run.state("grad_norm") != State.NOT_SAMPLED
    steps = set(run.steps[there.all(axis=1)].tolist())
    trial.truth = {key: rows for key, rows in trial.truth.items() if key[1] in steps}
    trial.truth = {key: rows for key, rows in trial.truth.items() if key[0] == "grad"}
    trial.loss.clear()
    trial.check(run)


def failing(writer, real):
    def call(*arguments, **options):
        if threading.current_thread() is writer:
            raise OSError(errno.EIO, "made to fail")
        return real(*arguments, **options)

    return call


def hurried(monkeypatch) -> None:
    monkeypatch.setattr(writer_thread, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(writer_thread, "LONGEST_WAIT", 0.02)


def test_a_storm_of_events_is_cut_off(tmp_path, monkeypatch):
    """Events are no way to fill the memory."""
    hurried(monkeypatch)
    monkeypatch.setattr(writer_thread, "LINES_LIMIT", 100)
    trial = Trial(tmp_path / "run")
    assert trial.writer.flush(WAIT)
    real = os.write
    monkeypatch.setattr(os, "write", failing(trial.writer, real))
    for step in range(1000):
        trial.writer.event(Event(step, EventKind.AUDIT, "again"))
    monkeypatch.setattr(os, "write", real)
    assert trial.writer.flush(WAIT)
    assert trial.writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert 100 <= sum(event.kind is EventKind.AUDIT for event in run.events) < 500
    assert any(event.kind is EventKind.GAP for event in run.events)


def test_a_stalled_disk_costs_rows_not_time(tmp_path, monkeypatch):
    gate, real = threading.Event(), os.write
    monkeypatch.setattr(writer_thread, "QUEUE_BYTES", 200_000)
    trial = Trial(tmp_path / "run")

    def stalled(descriptor, data):
        if threading.current_thread() is trial.writer:
            gate.wait(WAIT)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", stalled)
    for step in range(600):
        trial.step(step)
    assert trial.writer.dropped > 0
    gate.set()
    assert trial.writer.flush(WAIT)
    assert trial.writer.close(WAIT)
    run = open_run(tmp_path / "run")
    gaps = [event for event in run.events if event.kind is EventKind.GAP]
    assert gaps
    assert not damage(run)
    there = {int(step) for step in run.steps}
    trial.truth = {
        key: value
        for key, value in trial.truth.items()
        if key[1] in there
        and (run.state(f"{key[0]}_norm")[run.steps == key[1]] != State.NOT_SAMPLED).all()
    }
    assert max(step for _, step in trial.truth) == 599
    logged = set(run.steps[~np.isnan(run.scalars["loss"])].tolist())
    trial.loss = {step: loss for step, loss in trial.loss.items() if step in logged}
    trial.check(run)
