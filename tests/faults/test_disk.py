"""Disks that refuse: the kernel's own errors, and every write of a run failing in turn."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.faults.tally import Tally
from tests.store.trial import WAIT, Trial, sealing_at

from gradwatch.run import Event, EventKind
from gradwatch.stats import State
from gradwatch.store import journal, open_run, queue, writer_thread

ROOT = Path(__file__).parents[2]


def run_campaign(folder: Path, word: str, before: list[str] = ()) -> dict:
    command = [*before, sys.executable, "-B", "-m", "tests.faults.disk_campaign", str(folder), word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout or (folder / "result.json").read_text())


def test_file_size_limit(tmp_path, capsys):
    result = run_campaign(tmp_path, "limit")
    tally = Tally("RLIMIT_FSIZE", 1, int(errno.EFBIG in result["errors"]), result["problems"])
    assert result["files"] > 2
    tally.settle(capsys, 1)


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
        "rename:error=EIO:when=1+2",
        "unlink:error=EIO:when=1+2",
        "mkdir:error=ENOSPC:when=4+3",
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


@pytest.mark.parametrize("synced", [False, True])
def test_a_folder_that_vanishes_is_made_again(tmp_path, monkeypatch, synced):
    """What was not synced yet is still in memory; that the rest is gone is told."""
    monkeypatch.setattr(writer_thread, "SYNC_SECONDS", 0.0 if synced else 1000.0)
    trial = Trial(tmp_path / "run").steps(range(10))
    for _ in range(2):  # the sync comes after the acknowledgement, before the next one
        assert trial.writer.flush(WAIT)
        trial.step(10)
    shutil.rmtree(tmp_path / "run")
    if synced:
        trial.truth.clear(), trial.loss.clear()
    trial.steps(range(11, 30))
    trial.close()
    run = open_run(tmp_path / "run")
    trial.check(run)
    assert any(event.kind is EventKind.DAMAGE for event in run.events) == synced


@pytest.mark.parametrize("taken", ["rows", "rollups", "scalars"])
def test_a_subfolder_that_vanishes_is_made_again(tmp_path, taken):
    """What was in it is lost, which is told; all that comes later is there."""
    with sealing_at(4_000):
        trial = Trial(tmp_path / "run", tensors=2).steps(range(40), flush_every=4)
        await_sealing(trial)
        (trial.writer.folder / taken).rename(tmp_path / "gone")
        before = set(trial.truth)
        trial.steps(range(40, 80), flush_every=4)
        trial.close()
    run = open_run(tmp_path / "run")
    texts = [event.text for event in run.events if event.kind is EventKind.DAMAGE]
    assert texts
    assert all(f"{taken}/" in text for text in texts)
    assert not run.info["complete"]
    assert (trial.writer.folder / taken).is_dir()
    if taken == "rows":
        assert (run.state("grad_norm")[run.steps < 20] == State.DAMAGED).all()
    trial.truth = {
        key: value for key, value in trial.truth.items() if taken != "rows" or key not in before
    }
    trial.loss = {
        step: loss for step, loss in trial.loss.items() if taken != "scalars" or step >= 40
    }
    trial.check(run)


def await_sealing(trial: Trial) -> None:
    deadline = time.monotonic() + WAIT
    while len([*trial.writer.folder.glob("journal-*")]) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)


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
    """Of one rank they are two attempts; both seal, neither touches what the other has."""
    with sealing_at(4_000):
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
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    for number, trial in enumerate(trials):
        assert len([*trial.writer.folder.glob("rows/grad/*.parquet")]) > 1
        if ranks == (0, 0):
            trial.check(open_run(tmp_path / "run", attempt=number))
        else:
            trial.check(run.ranks[number])


def test_a_journal_somebody_cuts_is_left_behind(tmp_path):
    trial = Trial(tmp_path / "run").steps(range(10))
    assert trial.writer.flush(WAIT)
    (path,) = trial.writer.folder.glob("j*")
    os.truncate(path, path.stat().st_size - 5)
    lost = {key: value for key, value in trial.truth.items() if key[1] < 10}
    for key in lost:
        del trial.truth[key]
    trial.loss.clear()
    trial.steps(range(10, 30))
    trial.close()
    trial.check(open_run(tmp_path / "run"))


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


def test_what_is_given_up_last_is_told_too(tmp_path, monkeypatch):
    """A storm of events comes while the thread takes the last ones: no later turn would tell."""
    monkeypatch.setattr(queue, "SMALL_LIMIT", 100)
    trial = Trial(tmp_path / "run")
    assert trial.writer.flush(WAIT)
    take_lost, storm = queue.Queue.take_lost, iter([True])

    def taking(waiting):
        lost = take_lost(waiting)
        if next(storm, False):
            for step in range(1000):
                trial.writer.event(Event(step, EventKind.AUDIT, "again"))
        return lost

    monkeypatch.setattr(queue.Queue, "take_lost", taking)
    trial.writer.event(Event(0, EventKind.AUDIT, "again"))
    assert trial.writer.flush(WAIT)
    assert trial.writer.close(WAIT)
    run = open_run(tmp_path / "run")
    kept = [event for event in run.events if event.kind is EventKind.AUDIT]
    gaps = [event.data["records"] for event in run.events if event.kind is EventKind.GAP]
    assert sum(gaps) == trial.writer.dropped == 901
    assert len(kept) == 100


def test_a_stalled_disk_costs_rows_not_time(tmp_path, monkeypatch):
    import threading

    gate = threading.Event()

    class Stalled:
        def write(self, descriptor, data):
            gate.wait(WAIT)
            return os.write(descriptor, data)

        def __getattr__(self, name):
            return getattr(os, name)

    monkeypatch.setattr(journal, "os", Stalled())
    trial = Trial(tmp_path / "run", queue_bytes=200_000)
    for step in range(600):
        trial.step(step)
    assert trial.writer.dropped > 0
    gate.set()
    assert trial.writer.flush(WAIT)
    assert trial.writer.close(WAIT)
    run = open_run(tmp_path / "run")
    gaps = [event for event in run.events if event.kind is EventKind.GAP]
    assert sum(event.data["records"] for event in gaps) == trial.writer.dropped
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    there = {int(step) for step in run.steps}
    trial.truth = {
        key: value
        for key, value in trial.truth.items()
        if key[1] in there
        and not np.isin(run.state(f"{key[0]}_norm")[run.steps == key[1]], [1]).all()
    }
    assert max(step for _, step in trial.truth) == 599
    trial.check(run)
