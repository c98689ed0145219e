"""A run's folder is moved, deleted or made read-only while it is recorded; the training goes on."""

import logging
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.faults.small_run import damage
from tests.store.trial import WAIT, Trial, finishing_at

from gradwatch.store import open_run
from gradwatch.store import writer as writer_thread


@pytest.mark.parametrize("part_bytes", [4_000, 1 << 24])
def test_a_moved_folder_goes_on_where_it_is(tmp_path, caplog, part_bytes):
    with finishing_at(part_bytes):
        trial = Trial(tmp_path / "run", tensors=2).steps(range(12), flush_every=4)
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        trial.steps(range(12, 24), flush_every=4)
        trial.close()
    run = open_run(tmp_path / "elsewhere")
    trial.check(run)
    assert not damage(run)
    assert run.info["complete"]
    assert not (tmp_path / "run").exists()
    assert not caplog.records


def test_a_training_that_changes_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = Trial(Path("runs/run"), tensors=2).steps(range(4), flush_every=2)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    trial.steps(range(4, 8), flush_every=2)
    trial.close()
    trial.check(open_run(tmp_path / "runs" / "run"))
    assert not any((tmp_path / "other").iterdir())


@pytest.mark.parametrize("deleted", ["run", "folder"])
@pytest.mark.parametrize("part_bytes", [4_000, 1 << 24])
def test_a_deleted_folder_ends_the_recording(tmp_path, caplog, deleted, part_bytes):
    """One warning; nothing is made anew, nothing raises, and nothing is acknowledged any more."""
    with finishing_at(part_bytes):
        trial = Trial(tmp_path / "run", tensors=2).steps(range(12), flush_every=2)
        gone = tmp_path / "run" if deleted == "run" else trial.writer.folder
        while gone.exists():  # the writer may make something inside meanwhile
            shutil.rmtree(gone, ignore_errors=True)
        for step in range(12, 40):
            trial.step(step)
            trial.writer.flush(0.05)
        assert trial.writer.finished.wait(WAIT)
        assert not trial.writer.flush(0.1)
        assert not trial.writer.close(WAIT)
        trial.step(41)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "was deleted while it was recorded" in said
    assert not any(tmp_path.glob("run/*/*"))


def test_a_disk_that_refuses_is_told_once(tmp_path, caplog, monkeypatch):
    """Nothing raises, and what was acknowledged is there when the disk works again."""
    monkeypatch.setattr(writer_thread, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(writer_thread, "LONGEST_WAIT", 0.02)
    real = os.write

    def refuse(descriptor, data):
        if broken and threading.current_thread() is trial.writer:
            raise OSError(30, "Read-only file system")
        return real(descriptor, data)

    broken = False
    trial = Trial(tmp_path / "run", tensors=2).steps(range(4), flush_every=2)
    monkeypatch.setattr(os, "write", refuse)
    broken = True
    for step in range(4, 8):
        trial.step(step)
        assert not trial.writer.flush(0.1)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert "cannot be written to (Read-only file system)" in caplog.records[0].getMessage()
    broken = False
    assert trial.writer.flush(WAIT)
    trial.close()
    run = open_run(tmp_path / "run")
    trial.check(run)
    assert not damage(run)
