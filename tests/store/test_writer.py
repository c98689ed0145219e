"""The training's side: it hands over and goes on, whatever happens around it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, finishing_at, subjects

from gradwatch.run import Event, EventKind
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer, open_run, tables
from gradwatch.store import writer as module
from gradwatch.store import writer as writer_thread

ROOT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys, threading
import numpy as np
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer, open_run
from tests.store.trial import subjects
writer = Writer.create(sys.argv[1], name="r")
ids = writer.declare(subjects(2))
def put(step):
    rows, states = np.zeros(2, row_dtype(Family.GRAD)), np.zeros(2, np.uint8)
    writer.put(Family.GRAD, step, ids, rows, states)
"""


def python(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + script, str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def put(writer: Writer, step: int, ids: np.ndarray) -> None:
    rows, states = np.zeros(len(ids), row_dtype(Family.GRAD)), np.zeros(len(ids), np.uint8)
    writer.put(Family.GRAD, step, ids, rows, states)


class BlockedDisk:
    """Writing waits until it is let go, as on a network disk that hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        real = tables.GrowingFile.append
        monkeypatch.setattr(
            tables.GrowingFile,
            "append",
            lambda file, piece: self.free.wait(WAIT) and real(file, piece),
        )


# -- handing over ----------------------------------------------------------------------------------


def test_put_makes_no_file_call(tmp_path: Path) -> None:
    """An audit hook sees every file opened by this thread while rows are put."""
    calls = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate", "os.listdir"}
    script = f"""
seen, main = [], threading.get_ident()
def hook(event, arguments):
    if event in {calls!r} and threading.get_ident() == main:
        seen.append(event)
sys.addaudithook(hook)
for step in range(500):
    put(step)
    writer.scalars(step, {{"loss": 1.0}})
print(len(seen), writer.flush())
open(sys.argv[1] + "/proof", "w").close()
print(len(seen) > 0)
"""
    done = python(script, tmp_path / "run")
    assert done.stdout.split() == ["0", "True", "True"], done.stderr


def test_what_cannot_be_kept_does_not_stop_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = Writer.create(tmp_path / "run", name="r")
    ids = written.declare(subjects(2))
    put(written, 0, ids)
    assert written.flush(WAIT)
    written.scalars(1, {"loss": "high"})  # type: ignore[dict-item]
    written.scalars(2**80, {"loss": 1.0})
    assert written.flush(WAIT)
    assert "something could not be written" in caplog.text
    written.scalars(2, {"half \ud800 of a pair": 1.0})
    written.event(Event(2**80, EventKind.AUDIT, "x"))
    written.event(Event(1, EventKind.AUDIT, "kept", data={"object": object()}))
    put(written, 3, ids)
    assert written.flush(WAIT)
    assert written.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == [0, 2, 3]
    assert "kept" in [event.text for event in run.events if event.kind is EventKind.AUDIT]
    put(written, 4, ids)  # after close: silent
    written.scalars(4, {"loss": 1.0})
    assert not written.flush(0.1)
    assert written.close()
    assert open_run(tmp_path / "run").steps.tolist() == [0, 2, 3]


def test_put_does_not_wait_and_a_full_queue_gives_up_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BlockedDisk(monkeypatch)
    size = row_dtype(Family.GRAD).itemsize * 4
    monkeypatch.setattr(module, "QUEUE_BYTES", 100 * size)
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(4))
    began = time.perf_counter()
    for step in range(1000):
        put(writer, step, ids)
    assert time.perf_counter() - began < 2
    assert not writer.flush(0.05)
    disk.free.set()
    assert writer.flush(WAIT)
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert writer.dropped > 500
    kept = run.steps.tolist()
    assert len(kept) + writer.dropped == 1000
    assert kept[-100:] == list(range(900, 1000))
    gaps = [event.text for event in run.events if event.kind is EventKind.GAP]
    ranges = [re.search(r"not all of steps (\d+) to (\d+) was kept", text) for text in gaps]
    told = {step for found in ranges for step in range(int(found[1]), int(found[2]) + 1)}
    assert told == {*range(1000)} - {*kept}


def test_a_patient_writer_waits_a_tenth_of_a_second_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BlockedDisk(monkeypatch)
    size = row_dtype(Family.GRAD).itemsize * 4
    monkeypatch.setattr(module, "QUEUE_BYTES", 10 * size)
    writer = Writer.create(tmp_path / "run", name="r")
    writer.patient = True
    ids = writer.declare(subjects(4))
    waits = []
    for step in range(24):
        began = time.perf_counter()
        for _ in range(2):  # of one step
            put(writer, step // 2, ids)
        waits.append(time.perf_counter() - began)
    assert max(waits) < 0.3
    assert sum(waits) > 0.1
    disk.free.set()
    for step in range(24, 400):  # the disk keeps up: nothing is lost
        put(writer, step, ids)
    assert writer.flush(WAIT)
    before = writer.dropped
    for step in range(400, 1000):
        put(writer, step, ids)
    assert writer.close(WAIT)
    assert writer.dropped == before
    assert {*range(400, 1000)} <= {*open_run(tmp_path / "run").steps.tolist()}


def test_where_nothing_can_be_written_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot write to .* yet"):
        written = Writer.create(tmp_path / "file" / "run", name="r")
    ids = written.declare(subjects(2))
    put(written, 0, ids)
    assert not written.flush(0.1)
    (tmp_path / "file").unlink()  # and once it can be, all is there
    assert written.flush(WAIT)
    assert written.close(WAIT)
    assert open_run(tmp_path / "file" / "run").steps.tolist() == [0]


class Failing:
    """Stands in for `os` in the module that writes: the k-th call of a kind fails, once."""

    def __init__(self, call: str, number: int) -> None:
        self.left, self.call, self.fired = number, call, False

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name != self.call:
            return real

        def counted(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                self.fired = True
                raise OSError(5, "made to fail")
            return real(*arguments, **options)

        return counted


@pytest.mark.parametrize("call", ["fsync", "write", "rename", "unlink"])
def test_what_fails_once_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(writer_thread, "SYNC_SECONDS", 0.01)
    for number in (1, 2, 9):
        failing = Failing(call, number)
        with monkeypatch.context() as patch, finishing_at(5_000):
            patch.setattr(tables, "os", failing)
            trial = Trial(tmp_path / f"{call}{number}", tensors=2, seed=number)
            trial.steps(range(40), 10)
            trial.close()
        assert failing.fired
        run = open_run(trial.path)
        trial.check(run)
        assert run.info["complete"]
        assert not [e for e in run.events if e.kind in (EventKind.DAMAGE, EventKind.GAP)]


# -- processes and their ends ----------------------------------------------------------------------


def test_a_forked_child_is_silent(tmp_path: Path) -> None:
    script = """
for step in range(200):
    put(step)
    if step % 20 == 0:
        pid = os.fork()
        if pid == 0:
            for other in range(1000, 1100):
                put(other)
            writer.scalars(7, {"loss": 1.0})
            assert not writer.flush(1) and not writer.close(1)
            sys.exit(3)  # runs atexit too
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert writer.close(60)
run = open_run(sys.argv[1])
print(run.steps.tolist() == list(range(200)), run.info["complete"], len(os.listdir(sys.argv[1])))
"""
    done = python(script, tmp_path / "run")
    assert done.stdout.split() == ["True", "True", "2"], done.stderr


@pytest.mark.parametrize(
    ("ending", "code", "complete"),
    [
        ("", 0, True),
        ("sys.exit(7)", 7, True),
        ("raise RuntimeError('the user')", 1, True),
        ("writer.flush(); os._exit(5)", 5, False),
        ("writer.flush(); os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, False),
    ],
)
def test_however_the_program_ends(tmp_path: Path, ending: str, code: int, complete: bool) -> None:
    done = python(f"for step in range(300): put(step)\n{ending}", tmp_path / "run")
    assert done.returncode == code
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(300))
    assert run.info["complete"] is complete
    assert len([*tmp_path.rglob("*.parquet")]) == (3 if complete else 0)


def test_writers_side_by_side_do_not_mix(tmp_path: Path) -> None:
    trials = [Trial(tmp_path / "run", seed=seed) for seed in range(3)]
    for step in range(50):
        for trial in trials:
            trial.step(step)
    for trial in trials:
        trial.close()
    run = open_run(tmp_path / "run")
    assert run.info["attempts"] == [0, 1, 2]
    trials[2].check(run)
    for number, trial in enumerate(trials):
        trial.check(open_run(tmp_path / "run", attempt=number))
