"""The caller's side: it copies and returns, whatever happens around it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, subjects

from gradwatch.errors import GradwatchError
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer, folder_name, list_runs, open_run, queue
from gradwatch.store.format import FORMAT

ROOT = Path(__file__).parents[2]
FILE_CALLS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate", "os.listdir"}


def test_put_makes_no_file_call(tmp_path):
    """An audit hook sees every file opened by this thread while rows are put."""
    script = f"""
import sys, threading
import numpy as np
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer
from tests.store.trial import subjects
writer = Writer.create({str(tmp_path / "run")!r}, name="r")
ids = writer.declare(subjects(4))
rows, states = np.zeros(4, row_dtype(Family.GRAD)), np.zeros(4, np.uint8)
seen, main = [], threading.get_ident()
def hook(event, arguments):
    if event in {FILE_CALLS!r} and threading.get_ident() == main:
        seen.append(event)
sys.addaudithook(hook)
for step in range(500):
    writer.put(Family.GRAD, step, ids, rows, states)
    writer.scalars(step, {{"loss": 1.0}})
print(len(seen), writer.flush())
open({str(tmp_path / "proof")!r}, "w").close()
print(len(seen) > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["0", "True", "True"], done.stderr


def test_nothing_that_is_put_raises(tmp_path):
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(2))
    rows, states = np.zeros(2, row_dtype(Family.GRAD)), np.zeros(2, np.uint8)
    writer.put(Family.GRAD, None, ids, rows, states)  # type: ignore[arg-type]
    writer.put(Family.GRAD, 2**80, ids, rows, states)
    writer.put("no family", 0, ids, rows, states)  # type: ignore[arg-type]
    writer.put(Family.GRAD, 0, ids, np.zeros(2), states)  # type: ignore[arg-type]
    writer.put(Family.GRAD, 0, ids[:1], rows, states)
    writer.put(Family.GRAD, 0, None, rows, states)  # type: ignore[arg-type]
    writer.put(Family.GRAD, 1, ids, rows[::-1], states)
    writer.scalars(0, {"loss": "high"})  # type: ignore[dict-item]
    writer.scalars(2**80, {"loss": 1.0})
    writer.event(Event(2**80, EventKind.AUDIT, "x"))
    writer.event(Event(1, EventKind.AUDIT, "kept", data={"object": object()}))
    writer.put(Family.GRAD, 3, ids, rows, states)
    assert writer.flush(WAIT)
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert {1, 3} <= set(run.steps.tolist())
    assert [event.text for event in run.events if event.kind is EventKind.AUDIT] == ["kept", "x"]
    assert len([event for event in run.events if event.kind is EventKind.NOT_RECORDED]) == 1
    assert writer.dropped == 8
    writer.put(Family.GRAD, 4, ids, rows, states)  # after close: silent
    writer.scalars(4, {"loss": 1.0})
    assert not writer.flush(0.1)
    assert writer.close()


def test_a_wrong_rank_is_said_at_once(tmp_path):
    with pytest.raises(GradwatchError, match="rank"):
        Writer.create(tmp_path / "run", name="r", rank=2, world=2)


def test_a_storm_of_events_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(queue, "SMALL_LIMIT", 1000)
    writer = Writer.create(tmp_path / "run", name="r")
    with writer.thread.queue.lock:  # the thread cannot take anything meanwhile
        pass
    for step in range(20_000):
        writer.event(Event(step, EventKind.AUDIT, "again"))
        assert len(writer.thread.queue.small) <= 1000
    assert writer.flush(WAIT)
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    kept = sum(event.kind is EventKind.AUDIT for event in run.events)
    gone = sum(event.data["records"] for event in run.events if event.kind is EventKind.GAP)
    assert kept + gone >= 20_000
    assert gone == writer.dropped


def test_a_forked_child_is_silent(tmp_path):
    script = f"""
import os, sys
import numpy as np
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer, open_run
from tests.store.trial import subjects
writer = Writer.create({str(tmp_path / "run")!r}, name="r")
ids = writer.declare(subjects(2))
rows, states = np.zeros(2, row_dtype(Family.GRAD)), np.zeros(2, np.uint8)
for step in range(200):
    writer.put(Family.GRAD, step, ids, rows, states)
    if step % 10 == 0:
        pid = os.fork()
        if pid == 0:
            for other in range(1000, 1100):
                writer.put(Family.GRAD, other, ids, rows, states)
            writer.scalars(7, {{"loss": 1.0}})
            assert not writer.flush(1) and not writer.close(1)
            sys.exit(3)  # runs atexit too
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert writer.close(60)
print(open_run({str(tmp_path / "run")!r}).steps.tolist() == list(range(200)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "True", done.stderr


END = """
import os, sys, signal
import numpy as np
from gradwatch.stats import Family, row_dtype
from gradwatch.store import Writer
from tests.store.trial import subjects
writer = Writer.create(sys.argv[1], name="r")
ids = writer.declare(subjects(2))
for step in range(300):
    writer.put(Family.GRAD, step, ids, np.zeros(2, row_dtype(Family.GRAD)), np.zeros(2, np.uint8))
"""


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
def test_however_the_program_ends(tmp_path, ending, code, complete):
    done = subprocess.run(
        [sys.executable, "-c", END + ending, str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == code
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(300))
    assert run.info["complete"] is complete


def test_writers_side_by_side_do_not_mix(tmp_path):
    trials = [Trial(tmp_path / "run", seed=seed) for seed in range(4)]
    for step in range(50):
        for trial in trials:
            trial.step(step)
    for trial in trials:
        trial.close()
    run = open_run(tmp_path / "run")
    assert run.info["attempts"] == [0, 1, 2, 3]
    trials[3].check(run)
    for number, trial in enumerate(trials):
        trial.check(open_run(tmp_path / "run", attempt=number))


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("run 1/2", "run_1_2"),
        ("../../etc", "etc"),
        ("", "run"),
        ("...", "run"),
        ("CON", "run_CON"),
        ("-rf", "rf"),
        ("ü\x1b\n", "run"),
        ("x" * 500, "x" * 100),
    ],
)
def test_folder_names(name, folder):
    assert folder_name(name) == folder


def test_hostile_trees_are_left_alone(tmp_path):
    trial = Trial(tmp_path / "runs" / "run").steps(range(20))
    trial.close()
    folder = trial.writer.folder
    os.mkfifo(folder / "journal-00009.gwj")
    (folder / "rows" / "grad" / "00009.parquet").symlink_to("/dev/zero")
    (folder / "scalars" / "00009.parquet").mkdir()
    (folder / "rollups" / "00009.parquet").write_bytes(os.urandom(5000))
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "runs" / "run" / "0001-0000-00000000").symlink_to(folder)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    began = time.monotonic()
    run = open_run(tmp_path / "runs" / "run")
    trial.check(run)
    assert run.info["ranks"] == 1
    assert [item.name for item in list_runs(tmp_path / "runs")] == ["trial"]
    assert time.monotonic() - began < WAIT


@pytest.mark.parametrize(
    ("number", "remedy"), [(FORMAT + 1, "a newer gradwatch"), (FORMAT - 1, "that wrote it")]
)
def test_another_format_is_refused_politely(tmp_path, number, remedy):
    trial = Trial(tmp_path / "run").steps(range(3))
    trial.close()
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {number}'))
    with pytest.raises(GradwatchError, match=remedy):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("path", ["missing", "empty"])
def test_nothing_to_read_is_a_sentence(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(GradwatchError, match="Expected a run folder"):
        open_run(tmp_path / path)


@pytest.mark.timing
def test_the_caller_pays_little(tmp_path):
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(200))
    rows, states = np.ones(200, row_dtype(Family.GRAD)), np.zeros(200, np.uint8)
    calls = []
    for step in range(2000):
        began = time.perf_counter()
        writer.put(Family.GRAD, step, ids, rows, states, owned=True)  # as a training does
        calls.append(time.perf_counter() - began)
        if step % 100 == 0:
            writer.flush(WAIT)
    assert writer.close(WAIT)
    assert np.median(calls) / 200 < 0.15e-6
