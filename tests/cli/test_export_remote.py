"""Runs in object storage: copied there by `export`, and read there by every command."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.s3 import KEY, S3, SECRET, s3_server
from tests.store.trial import Trial

from gradwatch.cli.main import main
from gradwatch.errors import Exit
from gradwatch.server import runs
from gradwatch.server.encoded import ViewRequest
from gradwatch.store import open_run
from gradwatch.store.places import Place


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gradwatch(capsys: pytest.CaptureFixture[str]):
    """The program; whatever it says, it says no credentials."""

    def run(*arguments: object) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        for hidden in (KEY, SECRET, "endpoint_override"):
            assert hidden not in out + err
        return Said(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Trial(tmp_path_factory.mktemp("runs") / "x").steps(range(120)).close()


@pytest.fixture(scope="module")
def url(s3: S3, run: Path) -> str:
    """Of a copy of the run."""
    target = s3.url("runs/x/")
    with pytest.raises(SystemExit):
        main(["export", str(run), "-o", target])
    return target


# -- copying ---------------------------------------------------------------------------------------


def test_a_growing_run_is_copied_again_and_again(gradwatch, s3, tmp_path):
    trial = Trial(tmp_path / "growing").steps(range(60), flush_every=30)
    target = s3.url("growing/")
    first = gradwatch("export", trial.path, "-o", target)
    assert first.code == 0
    assert first.err.startswith("Copied to s3://bucket/growing: ")
    assert len(open_run(target).steps) == 60
    trial.steps(range(60, 90), flush_every=30)
    assert gradwatch("export", trial.path, "-o", target).code == 0
    assert len(open_run(target).steps) == 90
    assert not open_run(target).info["complete"]
    trial.close()
    gradwatch("export", trial.path, "-o", target)
    copied = open_run(target)
    assert copied.info["complete"]
    assert not [event for event in copied.events if event.kind == "damage"]
    assert trial.check(copied) > 0


def test_a_copy_goes_anywhere_and_back(gradwatch, url, run, tmp_path):
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    assert files
    for target in ("memory://somewhere/x", f"{tmp_path}/back/"):
        said = gradwatch("export", url, "-o", target)
        assert said.code == 0
        assert f": {len(files)} files" in said.err
        assert open_run(target).steps.tolist() == open_run(run).steps.tolist()
    for file in files:
        assert (tmp_path / "back" / file).read_bytes() == (run / file).read_bytes()


def test_wrong_uses_are_refused(gradwatch, s3, run, url):
    for options in (["--stat", "grad_norm"], ["--format", "csv"], ["--exact-names"]):
        said = gradwatch("export", run, "-o", url, *options)
        assert said.code == Exit.USAGE
        assert "copied as it is" in said.err
    said = gradwatch("export", run, "-o", s3.url("values.csv"))
    assert said.code == Exit.USAGE
    assert "Expected a folder, got 's3://bucket/values.csv'" in said.err
    assert gradwatch(url).code == Exit.USAGE  # click says: no such command
    for removal in (["--delete", "x"], ["--prune", "--keep", "1MB"]):
        said = gradwatch("runs", s3.url("runs"), *removal, "--yes")
        assert said.code == Exit.USAGE
        assert "a folder of this machine to remove from, got 's3://bucket/runs'" in said.err
    assert len(open_run(url).steps) == 120


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["show", "--json"],
        ["show", "--signals"],
        ["diagnose"],
        ["diagnose", "--json"],
        ["analyze", "--json"],
    ],
    ids=" ".join,
)
def test_commands_say_of_a_url_what_they_say_of_the_folder(gradwatch, run, url, command):
    here, there = gradwatch(*command, run), gradwatch(*command, url)
    assert here == there
    assert here.out


@pytest.mark.parametrize("command", ["report", "animate", "export"])
def test_files_made_of_a_url_are_those_made_of_the_folder(gradwatch, run, url, tmp_path, command):
    endings = {"report": "html", "animate": "txt", "export": "csv"}
    here, there = (tmp_path / f"{name}.{endings[command]}" for name in ("here", "there"))
    assert gradwatch(command, run, "-o", here).code == 0
    assert gradwatch(command, url, "-o", there).code == 0
    assert here.read_bytes() == there.read_bytes()


def test_runs_are_listed_where_they_lie(gradwatch, s3, run, url):
    (here,) = json.loads(gradwatch("runs", run, "--json").out)["runs"]
    for folder in (url, s3.url("runs")):
        (there,) = json.loads(gradwatch("runs", folder, "--json").out)["runs"]
        assert there == {**here, "path": "s3://bucket/runs/x"}
    assert "x " in gradwatch("runs", s3.url("runs")).out


def test_the_page_serves_them(s3, url, monkeypatch):
    library = runs.Library([Place.of(s3.url("runs"))])
    (row,) = library.listing()
    assert row["name"] == "trial"
    assert row["steps"] == 120
    served = library.run(row["id"])
    assert served.view(ViewRequest(None, None))
    before = s3.requests
    for _ in range(5):  # a page asks every second; the storage is not asked as often
        library.scan()
        assert library.run(row["id"]).mark() == served.mark()
    assert s3.requests == before
    monkeypatch.setattr(runs, "REMOTE_SECONDS", 0.0)
    monkeypatch.setattr(s3, "down", True)
    later = time.monotonic() + 60
    monkeypatch.setattr(runs.time, "monotonic", lambda: later)
    assert library.run(row["id"]) is library.scan()[row["id"]] is served
    assert s3.requests > before


def test_what_cannot_be_reached_is_one_sentence(gradwatch, s3, tmp_path):
    for command in ("show", "diagnose", "analyze", "report", "animate", "export", "runs", "serve"):
        output = ["-o", f"{tmp_path}/out.csv"] if command == "export" else []
        for wrong in (s3.url("x", bucket="denied"), s3.url("x", bucket="nobody"), "nope://x"):
            said = gradwatch(command, wrong, *output)
            assert said.code == Exit.UNREADABLE
            assert said.out == ""
            assert said.err.startswith("gradwatch: Expected ")
            assert said.err.count("\n") == 1
