"""Which run a person means; what is listed, refused, held and deleted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.trial import Trial

from gradwatch.errors import Exit, GradwatchError
from gradwatch.store import list_runs, open_run
from gradwatch.store.layout import FORMAT
from gradwatch.store.places import Place
from gradwatch.store.runs import delete_run, find_run, folder_name, hold

NAMES = ("mlp-small", "mlp-large", "vit", "gan")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for number, name in enumerate(NAMES):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"name": f"true {name}", "created": number}))
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return Place.of("runs")


# -- finding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("vit", "runs/vit"),
        ("runs/vit", "runs/vit"),
        ("other", "other"),
        ("true vit", "runs/vit"),
        ("small", "runs/mlp-small"),
        ("GAN", "runs/gan"),
        ("", "runs/gan"),  # the newest
        ("runs", "runs"),  # a folder, but no run: whoever opens it says so
    ],
)
def test_a_name_a_folder_a_part_or_nothing(typed: str, found: str, home: Place) -> None:
    assert str(find_run(typed, home)) == found


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("mlp", "found 2: mlp-large and mlp-small; say more"),
        ("mlp-smal1", "The nearest: mlp-small, mlp-large or "),
        ("notes", "found none"),
        ("../runs/nowhere", "found none"),
        ("x" * 5000, "xxx' in 'runs', found none"),  # longer than a file's name may be
    ],
)
def test_what_fits_several_or_none_is_refused(typed: str, words: str, home: Place) -> None:
    with pytest.raises(GradwatchError) as caught:
        find_run(typed, home)
    assert words in str(caught.value)


def test_opening_by_name_part_folder_and_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Trial(tmp_path / "runs" / "mlp-small").steps(range(3)).close()
    shutil.copytree(path, tmp_path / "runs" / "vit")
    monkeypatch.chdir(tmp_path)
    for given in ("mlp-small", "small", "runs/mlp-small", path, str(path), f"file://{path}"):
        assert len(open_run(given).steps) == 3
    for wrong in ("nothing", "trial", "runs/nothing", tmp_path / "nothing", "runs"):
        with pytest.raises(GradwatchError, match="Expected") as caught:
            open_run(wrong)
        assert "found none" in str(caught.value) or "found 2" in str(caught.value)


# -- refusing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 2, FORMAT + 1])
def test_another_format_is_refused_in_one_sentence(tmp_path: Path, number: int) -> None:
    """As such runs look: `run.json`, and folders of writers with files that we do not know."""
    path = Trial(tmp_path / "run").steps(range(3)).close()
    document = path / "run.json"
    document.write_text(document.read_text().replace(f'"format": {FORMAT}', f'"format": {number}'))
    for old in path.glob("*/*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    (next(path.glob("0*")) / "journal-00001.gwj").write_bytes(b"GWJ1")
    with pytest.raises(GradwatchError, match=f"of format {number}.") as caught:
        open_run(path)
    assert "the gradwatch that wrote it" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [run.name for run in list_runs(tmp_path)] == ["trial"]  # to be deleted by name
    assert delete_run(path) == []


# -- names and lists -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("run 1/2", "run_1_2"),
        ("../../etc", "etc"),
        ("", "run"),
        ("...", "run"),
        ("-rf", "rf"),
        ("ü\x1b\n", "run"),
        ("x" * 500, "x" * 100),
    ],
)
def test_folder_names(name: str, folder: str) -> None:
    assert folder_name(name) == folder


def test_listing(home: Place, tmp_path: Path) -> None:
    Trial(tmp_path / "runs" / "new").steps(range(3)).close()
    Trial(tmp_path / "runs" / "new", rank=1, world=2).steps(range(3)).close()
    Trial(tmp_path / "runs" / "new").steps(range(3)).close()
    new, *others = list_runs(home)
    assert (new.name, new.path.name, new.ranks, new.attempts) == ("trial", "new", 2, 2)
    files = [path for path in (tmp_path / "runs/new").rglob("*") if path.is_file()]
    assert new.bytes == sum(path.stat().st_size for path in files)
    assert new.created > 1.6e9
    assert [run.name for run in others] == [
        "true gan",
        "true vit",
        "true mlp-large",
        *["true mlp-small"],
    ]
    (tmp_path / "runs/run.json").write_text("{}")  # hides no run
    assert len(list_runs(home)) == 5
    (single,) = list_runs(tmp_path / "runs" / "new")  # a run is a list of itself
    assert single.name == "trial"
    with pytest.raises(GradwatchError, match="Expected a folder of runs"):
        list_runs(tmp_path / "nowhere")


# -- deleting --------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Trial(tmp_path / "runs" / "one").steps(range(5)).close()


def test_a_run_goes_wholly(run: Path) -> None:
    (run / "tensorboard").mkdir()
    (run / "tensorboard/events.out.tfevents.1").write_bytes(b"")
    assert delete_run(run) == []
    assert not run.exists()
    assert run.parent.exists()


def test_what_is_not_ours_stays_and_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/thesis.txt").write_text("years of work")
    (run / "plot.py").write_text("")
    (run / "figures").mkdir()
    (run / "0007-0000-0123abcd").symlink_to(tmp_path / "outside")
    (next(run.glob("0000-*")) / "rows/link").symlink_to(tmp_path / "outside")
    assert sorted(delete_run(run)) == ["0007-0000-0123abcd", "figures", "plot.py"]
    assert sorted(path.name for path in run.iterdir()) == [
        "0007-0000-0123abcd",
        "figures",
        "plot.py",
    ]
    assert (tmp_path / "outside/thesis.txt").read_text() == "years of work"


def test_what_is_no_run_is_not_deleted(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").write_text("")
    for wrong in (tmp_path / "link", tmp_path / "project", tmp_path / "nowhere", run.parent):
        with pytest.raises(GradwatchError, match="nothing was deleted") as caught:
            delete_run(wrong)
        assert caught.value.exit_code == Exit.USAGE
    assert len(open_run(run).steps) == 5
    assert (tmp_path / "project/train.py").exists()


# -- holding ---------------------------------------------------------------------------------------


def test_one_training_holds_a_run(tmp_path: Path) -> None:
    held = hold(tmp_path / "run", "r", {})
    assert held is not None
    with pytest.raises(BlockingIOError):
        hold(tmp_path / "run", "r", {})
    script = (
        "import sys, pathlib as p, gradwatch.store.runs as r; r.hold(p.Path(sys.argv[1]), 'r', {})"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    other = subprocess.run(command, capture_output=True, text=True)
    assert "BlockingIOError" in other.stderr
    os.close(held)
    again = hold(tmp_path / "run", "r", {})
    assert again is not None
    trial = Trial(tmp_path / "run")
    trial.writer.held = again
    trial.steps(range(3))
    with pytest.raises(BlockingIOError):
        hold(tmp_path / "run", "r", {})
    trial.close()  # gives it back
    free = hold(tmp_path / "run", "r", {})
    assert free is not None
    os.close(free)


def test_where_nothing_can_be_held_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert hold(tmp_path / "file" / "run", "r", {}) is None
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").symlink_to(tmp_path / "file")
    assert hold(tmp_path / "run", "r", {}) is None  # a link is not followed
    assert (tmp_path / "file").read_text() == ""
