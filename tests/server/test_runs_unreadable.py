"""Runs that cannot be read, or not soon: each is a line in the list, and the others are as ever."""

import json
import threading
import time
from pathlib import Path

import pytest
from tests.server.visiting import Visit
from tests.views.samples import network
from tests.views.stored import stored

from gradwatch.diagnosis import Diagnosis, diagnose
from gradwatch.run import Run
from gradwatch.server import runs as served_runs
from gradwatch.server.encoded import EncodedView
from gradwatch.server.runs import ServedRun

UNREADABLE = "cannot be read: the terminal says why"
SOUND = "no finding in 3 layers, 20 steps; 15 checks had nothing to look at"
PLANTED = {
    "giant": b'{"name": "giant", "created": 1' + b"0" * 400 + b"}",
    "endless": b'{"name": "endless", "created": Infinity}',
    "lone": b'{"name": "lone \\ud800", "created": 1e9}',
    "listed": b'{"name": ["x"], "created": {}}',
    "cut": b"{",
}


def lines(visit: Visit) -> dict[str, str]:
    return {run["name"]: run["line"] for run in visit.listing()}


def answered(visit: Visit) -> dict[str, str]:
    """The lines of one answer, which must come at once."""
    begun = time.monotonic()
    found = visit.get("/api/runs").json()["runs"]
    assert time.monotonic() - begun < 5  # it waits 0.3 s, on a machine that may be busy
    return {run["name"]: run["line"] for run in found}


def test_made_up_files_of_one_run_hide_no_other_run(tmp_path: Path) -> None:
    for name in ("sound", "salvaged"):
        stored(network(3, 20), tmp_path / name, name)
    (log,) = (tmp_path / "salvaged").glob("*/log.jsonl")
    log.write_bytes(log.read_bytes() + b'{"kind": "closed", "data": [' + b"[" * 9999 + b"\n")
    for name, text in PLANTED.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(text)
    odd = tmp_path / "odd \udcff"  # a name of bytes that are no UTF-8
    odd.mkdir()
    (odd / "run.json").write_text("{}")
    visit = Visit(tmp_path)
    runs = visit.listing()
    assert len(runs) == len(PLANTED) + 2  # the odd one cannot be named, and hides none
    for run in runs:
        answer = visit.get(f"/api/runs/{run['id']}/view")
        if run["name"] in ("sound", "salvaged"):
            assert run["line"] == SOUND
            assert answer.json()["run"]["steps"] == 20
        else:
            assert run["line"] == UNREADABLE
            assert answer.status_code == 422
            assert str(tmp_path) not in answer.text


def test_whatever_fails_in_one_run_is_an_error_of_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"deep": RecursionError, "large": MemoryError}
    for name in ("sound", *errors):
        stored(network(3, 20), tmp_path / name, name)

    def failing(run: Run) -> Diagnosis:
        if run.info["name"] in errors:
            raise errors[run.info["name"]]("made up")
        return diagnose(run)

    monkeypatch.setattr(served_runs, "diagnosed", failing)
    visit = Visit(tmp_path)
    runs = {run["name"]: run for run in visit.listing()}
    assert runs["sound"]["line"] == SOUND
    for name, status in {"sound": 200, "deep": 422, "large": 422}.items():
        assert (runs[name]["line"] == UNREADABLE) == (status == 422)
        assert visit.get(f"/api/runs/{runs[name]['id']}/view").status_code == status


def test_a_slow_run_holds_up_neither_the_list_nor_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow", "sound", "third"):
        stored(network(3, 20), tmp_path / name, name)
    free = threading.Event()

    def slow(run: Run) -> Diagnosis:
        if run.info["name"] == "slow":
            assert free.wait(60)
        return diagnose(run)

    monkeypatch.setattr(served_runs, "diagnosed", slow)
    monkeypatch.setattr(served_runs, "LISTING_SECONDS", 0.3)
    visit = Visit(tmp_path)
    try:
        end = time.monotonic() + 30
        while sorted(answered(visit).values()) != [SOUND, SOUND, "not looked at yet"]:
            assert time.monotonic() < end
        assert answered(visit)["slow"] == "not looked at yet"
    finally:
        free.set()


def test_a_run_that_cannot_be_read_is_tried_again_only_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{}")
    tries: list[str] = []
    whole = ServedRun.whole

    def counted(run: ServedRun, first: int | None, last: int | None) -> EncodedView:
        tries.append(run.name)
        return whole(run, first, last)

    monkeypatch.setattr(ServedRun, "whole", counted)
    visit = Visit(tmp_path)
    assert lines(visit) == lines(visit) == {"bad": UNREADABLE}
    assert len(tries) == 1
    (tmp_path / "bad" / "run.json").write_text(json.dumps({"name": "worse"}))
    end = time.monotonic() + 20.0  # what a slow look found counts for a while
    while len(tries) == 1 and time.monotonic() < end:
        assert list(lines(visit).values()) == [UNREADABLE]
    assert list(lines(visit).values()) == [UNREADABLE]
    assert len(tries) == 2
