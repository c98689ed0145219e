"""`gradwatch runs`: the list, and what --delete and --prune may and may not do."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.store.trial import Trial, finishing_at

from gradwatch.cli.main import gradwatch
from gradwatch.errors import Exit, GradwatchError
from gradwatch.store import open_run

STEPS = 320


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of more than 2 MB in many files."""
    folder = tmp_path_factory.mktemp("home") / "runs"
    with finishing_at(200_000):
        Trial(folder / "one", tensors=64).steps(range(STEPS), flush_every=10).close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


def called(*words: str | Path, asked: str = "") -> Result:
    return CliRunner().invoke(
        gradwatch, ["runs", *map(str, words)], input=asked, catch_exceptions=False
    )


def refused(*words: str | Path) -> str:
    with pytest.raises(GradwatchError) as caught:
        called(*words)
    assert caught.value.exit_code == Exit.USAGE
    return str(caught.value)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def states(folder: Path) -> dict[str, str]:
    listed = json.loads(called(folder, "--json").stdout)["runs"]
    return {run["name"]: run["state"] for run in listed}


def age(folder: Path, days: float) -> None:
    for file in folder.rglob("*.parquet"):
        then = time.time() - days * 86400
        os.utime(file, (then, then))


def test_prune_lists_what_would_go_and_asks(folder: Path) -> None:
    before = size(folder)
    done = called(folder, "--prune", "--keep", "1MB", asked="n\n")
    assert "one" in done.stdout
    assert "MB" in done.stdout
    assert "Nothing was removed." in done.stderr
    assert size(folder) == before


def test_prune_removes_the_oldest_rows_and_leaves_coarse_ones(folder: Path) -> None:
    whole = open_run(folder / "one")
    bytes_before, norms = size(folder), whole.series["grad_norm"]
    coarse = {p.name: p.read_bytes() for p in folder.rglob("coarse/*/*")}
    assert coarse
    done = called(folder, "--prune", "--keep", "1MB", "--yes")
    assert "Removed" in done.stderr
    assert size(folder) < 0.8 * bytes_before
    assert {p.name: p.read_bytes() for p in folder.rglob("coarse/*/*")} == coarse
    run = open_run(folder / "one")
    assert run.info["complete"] is True
    assert states(folder) == {"trial": "complete"}
    (event,) = [event for event in run.events if event.kind == "retention"]
    before = event.data["before"]
    assert 0 < before < STEPS
    late = run.steps >= before
    assert np.array_equal(run.series["grad_norm"][late], norms[late], equal_nan=True)
    early = run.series["grad_norm"][~late]
    assert np.isfinite(early).any()  # coarse rows speak for some of the steps
    assert np.isfinite(early).sum() < np.isfinite(norms[~late]).sum()
    assert "nothing to prune" in called(folder, "--prune", "--keep", "7d", "--yes").stderr


def test_the_list_keeps_its_headings_and_states_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a-run-of-a-long-name-with-learning-rate-3e-4"
    (folder / "one").rename(folder / name)
    with finishing_at(100_000):
        trial = Trial(folder / "growing", tensors=4).steps(range(6), flush_every=3)
    titles = ["run", "begun", "steps", "size", "ranks", "attempts", "state", "verdict"]
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = called(folder).stdout.splitlines()
        assert max(map(len, lines)) <= columns
        shown = lines[0].split()
        assert shown == [title for title in titles if title in shown]
        assert ("open or killed" in lines[1], "complete" in lines[2]) == (True, True)
        assert lines[2].startswith(name if columns == 200 else "…")
    assert shown == titles
    trial.close()


def test_prune_by_age(folder: Path) -> None:
    assert "nothing to prune" in called(folder, "--prune", "--keep", "7d", "--yes").stderr
    age(folder, 8)
    before = size(folder)
    assert "nothing to prune" in called(folder, "--prune", "--keep", "9d", "--yes").stderr
    assert size(folder) == before
    called(folder, "--prune", "--keep", "7d", "--yes", "one")
    assert size(folder) < 0.6 * before
    # the newest rows stay, however old
    assert np.isfinite(open_run(folder / "one").series["grad_norm"][-1]).any()


def test_only_whole_names_are_taken(folder: Path) -> None:
    shutil.copytree(folder / "one", folder / "one-more")
    before = size(folder / "one-more")
    for wrong in ("o", "on*", "one-", ".", ""):
        assert "Expected the whole name of a run's folder" in refused(
            folder, wrong, "--prune", "--keep", "1MB", "--yes"
        )
    called(folder, "one", "--prune", "--keep", "1MB", "--yes")
    assert size(folder / "one-more") == before > size(folder / "one")


def test_growing_and_damaged_runs_are_left_alone(folder: Path) -> None:
    with finishing_at(100_000):
        trial = Trial(folder / "growing", tensors=64).steps(range(60), flush_every=10)
    victim = sorted((folder / "one").rglob("rows/grad/*"))[1]
    victim.write_bytes(b"")
    before = size(folder / "one")
    done = called(folder, "--prune", "--keep", "1MB", "--yes")
    assert "growing is left alone: open or killed." in done.stderr
    assert "one is left alone: damaged." in done.stderr
    assert size(folder / "one") == before
    trial.check(open_run(trial.close()))


def test_options_that_do_not_go_together_are_refused(folder: Path) -> None:
    assert "--keep" in refused(folder, "--prune")
    assert "--prune" in refused(folder, "--keep", "1GB")
    assert "go with --prune" in refused(folder, "one")
    assert "got both" in refused(folder, "--prune", "--keep", "1GB", "--delete", "one")
    for wrong in ("lots", "1KB", "-1GB", "", "0d"):
        assert "`keep` must be" in refused(folder, "--prune", "--keep", wrong)
    assert "got --keep all" in refused(folder, "--prune", "--keep", "all")


@pytest.mark.parametrize("how", ["removed", "emptied", "cut"])
def test_a_damaged_run_is_never_called_complete(how: str, folder: Path) -> None:
    assert states(folder) == {"trial": "complete"}
    victim = sorted(folder.rglob("rows/grad/*"))[2]
    data = victim.read_bytes()
    victim.unlink()
    if how != "removed":
        victim.write_bytes(b"" if how == "emptied" else data[: len(data) // 2])
    assert open_run(folder / "one").info["complete"] is False
    assert states(folder) == {"trial": "damaged"}
    assert "damaged" in called(folder).stdout


def test_delete_takes_whole_names_and_asks(folder: Path) -> None:
    assert "Expected the whole name of a run's folder" in refused(folder, "--delete", "on")
    called(folder, "--delete", "one", asked="n\n")
    assert (folder / "one").is_dir()
    called(folder, "--delete", "one", "--yes")
    assert not (folder / "one").exists()
