"""Only what gradwatch wrote is listed as a run, pruned or deleted."""

import json
import shutil
from pathlib import Path

import pytest
from tests.store.trial import Trial, sealing_at

from gradwatch.cli.main import main
from gradwatch.errors import GradwatchError
from gradwatch.store import delete_run, list_runs, prunable, prune, retention
from gradwatch.store.places import Place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with sealing_at(10_000):
        Trial(folder / "one").steps(range(40), flush_every=10).close()
    return folder / "one"


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    home = tmp_path / "runs"
    for name in ("one", "two"):
        shutil.copytree(made, home / name)
    (home / "notes").mkdir()
    (home / "notes/thesis.txt").write_text("years of work")
    return home


def deleted(home: Path, name: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(["runs", str(home), "--delete", name, "--yes"])
    return ended.value.code


def test_a_run_goes_wholly(home: Path) -> None:
    (home / "one/tensorboard").mkdir()
    (home / "one/tensorboard/events.out.tfevents.1.host.2.0").write_bytes(b"")
    (writer,) = (home / "one").glob("0*")
    for file in ("manifest.json.part", ".manifest.json.0123456789ab", "journal-00099.gwj"):
        (writer / file).write_bytes(b"")  # as a kill leaves them
    assert delete_run(home / "one") == []
    assert sorted(path.name for path in home.iterdir()) == ["notes", "two"]


def test_a_planted_run_json_makes_no_run_of_the_folder(home: Path) -> None:
    (home / "run.json").write_text(json.dumps({"format": 3, "name": "one", "created": 9e9}))
    assert {run.path.name for run in list_runs(home)} == {"one", "two"}
    assert deleted(home, "runs") == 2
    assert deleted(home, "one") == 0
    assert sorted(path.name for path in home.iterdir()) == ["notes", "run.json", "two"]
    assert (home / "notes/thesis.txt").read_text() == "years of work"


def test_a_planted_writer_folder_hides_no_run(home: Path) -> None:
    (home / "0000-0000-00000000").mkdir()
    assert {run.path.name for run in list_runs(home)} == {"runs", "one", "two"}
    assert deleted(home, "runs") == 2  # only what is below
    with pytest.raises(GradwatchError):
        delete_run(home / "notes")
    left = delete_run(home)  # from Python whoever names a folder means it: still only what is ours
    assert str(Path("notes/thesis.txt")) in left
    assert (home / "one").is_dir()


def test_a_project_with_a_run_json_is_no_run(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "run.json").write_text("{}")
    (project / "train.py").write_text("print()")
    assert deleted(tmp_path, "project") == 2
    with pytest.raises(GradwatchError, match="nothing was deleted"):
        delete_run(project)
    assert len(list(project.iterdir())) == 2


def test_a_name_read_from_a_file_chooses_nothing(home: Path) -> None:
    (home / "two/run.json").write_text(json.dumps({"format": 3, "name": "victim"}))
    assert deleted(home, "victim") == 2
    for name in ("", ".", "..", "../runs/one", str(home / "one"), "o*"):
        assert deleted(home, name) == 2
    assert (home / "one").is_dir()


def test_what_is_not_ours_stays_and_is_named(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00001.parquet").write_text("theirs")
    (writer,) = (home / "one").glob("0*")
    (home / "one/plot.py").write_text("")
    (home / "one/empty").mkdir()
    (writer / "rows/grad/thesis.txt").write_text("")
    (writer / "rows/other").symlink_to(outside)
    (writer / "scalars/00099.parquet").symlink_to(outside / "00001.parquet")
    assert deleted(home, "one") == 0
    said = capsys.readouterr().err
    left = sorted(p.relative_to(home / "one") for p in (home / "one").rglob("*") if not p.is_dir())
    here = Path(writer.name)
    assert left == sorted(
        [
            here / "scalars/00099.parquet",
            here / "rows/grad/thesis.txt",
            Path("plot.py"),
        ]
    )
    assert (home / "one/empty").is_dir()
    assert (writer / "rows/other").is_symlink()
    assert (outside / "00001.parquet").read_text() == "theirs"
    assert "except what is not of gradwatch: " in said


def test_a_link_is_not_a_run(home: Path) -> None:
    (home / "three").symlink_to(home / "one")
    assert deleted(home, "three") == 2
    with pytest.raises(GradwatchError):
        delete_run(home / "three")
    assert (home / "one").is_dir()


def test_pruning_takes_no_file_beyond_a_link(home: Path, tmp_path: Path) -> None:
    keep = retention("1MB")
    assert keep
    (writer,) = (home / "one").glob("0*")
    outside = tmp_path / "outside"
    (writer / "rows").rename(outside)
    (writer / "rows").symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.rglob("*.parquet")}
    small = prunable(home / "one", type(keep)(bytes=1000))
    assert all(not file.file.startswith("rows/") for files in small.values() for file in files)
    prune(small)
    assert {path: path.read_bytes() for path in outside.rglob("*.parquet")} == before


def test_a_manifest_that_never_ends_is_not_read(home: Path) -> None:
    keep = retention("1MB")
    assert keep
    (writer,) = (home / "one").glob("0*")
    (writer / "manifest.json").unlink()
    (writer / "manifest.json").symlink_to("/dev/zero")
    assert prunable(home / "one", keep) == {}
    assert Place.of(writer).open("manifest.json") is None
