"""Disks that refuse: the kernel's own errors, and every write of a run failing in turn."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.faults.tally import Tally
from tests.store.trial import WAIT, Trial, sealing_at

from gradwatch.run import EventKind
from gradwatch.store import journal, open_run

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
    ["write:error=ENOSPC:when=9+3", "write:error=EIO:when=8+2", "fsync:error=EIO:when=1+2"],
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


class Shim:
    """Stands in for `os.write`: fails or writes short on the k-th call, once."""

    def __init__(self, kind: str, call: int) -> None:
        self.kind, self.call, self.calls, self.fired = kind, call, 0, 0

    def write(self, descriptor, data):
        self.calls += 1
        if self.calls != self.call:
            return os.write(descriptor, data)
        self.fired += 1
        if self.kind == "short":
            return os.write(descriptor, data[: max(1, len(data) // 3)])
        if self.kind == "torn":
            os.write(descriptor, data[: max(1, len(data) // 2)])
        raise OSError(getattr(errno, "EIO" if self.kind == "EIO" else "ENOSPC"), "made to fail")

    def __getattr__(self, name):
        return getattr(os, name)


@pytest.mark.parametrize("kind", ["short", "torn", "ENOSPC", "EIO"])
def test_every_write_fails_in_turn(tmp_path, monkeypatch, capsys, kind):
    tally = Tally(f"{kind} on the k-th write")
    for call in (*range(1, 9), 20, 40):
        shim = Shim(kind, call)
        tally.counted += 1
        with monkeypatch.context() as patch, sealing_at(4_000):
            patch.setattr(journal, "os", shim)
            trial = Trial(tmp_path / f"{kind}{call}", tensors=2, seed=call)
            trial.steps(range(24), flush_every=4)
            trial.close()
        tally.fired += shim.fired
        run = open_run(trial.path)
        try:
            trial.check(run)
        except AssertionError as error:
            tally.fail(f"write {call}: {error}")
        for event in run.events:
            if event.kind in (EventKind.DAMAGE, EventKind.GAP):
                tally.fail(f"write {call}: {event.text}")
    tally.settle(capsys, 10)


def test_a_folder_that_vanishes_is_made_again(tmp_path):
    trial = Trial(tmp_path / "run").steps(range(10))
    assert trial.writer.flush(WAIT)
    shutil.rmtree(tmp_path / "run")
    trial.truth.clear(), trial.loss.clear()
    trial.steps(range(10, 30))
    trial.close()
    run = open_run(tmp_path / "run")
    trial.check(run)
    assert [event for event in run.events if event.kind is EventKind.DAMAGE]


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
    trial = Trial(tmp_path / "run", ring_bytes=200_000)
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
