"""Files that are lost, emptied, cut or changed: their values are damaged, an event says so."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, sealing_at

from gradwatch.run import EventKind, Run
from gradwatch.stats import Family, Stat, State
from gradwatch.store import open_run

STEPS = 240
FAMILIES = (Family.GRAD, Family.UPDATE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Path]:
    """A finished run of several sealed files."""
    with sealing_at(60_000):
        trial = Trial(tmp_path_factory.mktemp("damage") / "run", families=FAMILIES)
        return trial, trial.steps(range(STEPS), flush_every=20).close()


@pytest.fixture
def trial(finished: tuple[Trial, Path], tmp_path: Path) -> Trial:
    """A copy of it to harm."""
    trial, path = finished
    trial.path = Path(shutil.copytree(path, tmp_path / "run"))
    return trial


def damage(run: Run) -> list[str]:
    return [event.text for event in run.events if event.kind is EventKind.DAMAGE]


def changed(data: bytes) -> bytes:
    middle = len(data) // 3
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def file_of(trial: Trial, pattern: str, number: int = 1) -> Path:
    return sorted(trial.path.glob(f"*/{pattern}"))[number]


HARM: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (Path.unlink, "is missing"),
    "emptied": (lambda path: path.write_bytes(b""), "is empty"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "bytes instead of"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes instead of"),
}


@pytest.mark.parametrize("harm", HARM)
def test_lost_rows_are_damaged_and_said_without_reading(trial: Trial, harm: str) -> None:
    path = file_of(trial, "rows/grad/*.parquet")
    HARM[harm][0](path)
    run = open_run(trial.path)
    assert run.info["complete"] is False
    (text,) = damage(run)
    assert f"rows/grad/{path.name} " in text
    assert HARM[harm][1] in text
    assert run.steps.tolist() == list(range(STEPS))
    for stat in (Stat.GRAD_NORM, Stat.GRAD_SKETCH):
        states = run.state(stat)
        lost = run.steps[(states == State.DAMAGED).all(axis=1)]
        assert 0 < len(lost) < STEPS
        assert lost.tolist() == list(range(lost[0], lost[-1] + 1))
        assert np.isnan(run.series[stat][states == State.DAMAGED]).all()
        kept = {k: v for k, v in trial.truth.items() if k[0] is Family.GRAD and k[1] not in lost}
        assert (states == State.DAMAGED).sum() == len(lost) * len(trial.ids)
        assert len(kept) + len(lost) == STEPS
    assert not (run.state(Stat.UPDATE_NORM) == State.DAMAGED).any()
    assert len(damage(run)) == 1


def test_every_byte_that_is_read_is_checked(trial: Trial) -> None:
    path = file_of(trial, "rows/grad/*.parquet")
    path.write_bytes(changed(path.read_bytes()))
    run = open_run(trial.path)
    broken = {stat for stat in run.series if (run.state(stat) == State.DAMAGED).any()}
    (text,) = damage(run)
    assert f"rows/grad/{path.name}" in text
    assert "damaged" in text
    assert len(broken) == 1  # the column it is in, and no other
    assert run.info["complete"] is False


@pytest.mark.parametrize("pattern", ["sketches/grad/*.parquet", "scalars/*.parquet"])
def test_other_files_too(trial: Trial, pattern: str) -> None:
    path = file_of(trial, pattern)
    path.unlink()
    run = open_run(trial.path)
    assert run.info["complete"] is False
    assert "is missing" in damage(run)[0]
    assert not (run.state(Stat.GRAD_NORM) == State.DAMAGED).any()
    sketches = run.state(Stat.GRAD_SKETCH) == State.DAMAGED
    assert sketches.any() == pattern.startswith("sketches")
    assert np.isnan(run.scalars["loss"]).any() == pattern.startswith("scalars")


def test_a_rollup_that_is_cut_is_told(trial: Trial) -> None:
    path = file_of(trial, "rollups/grad-10/*.parquet")
    path.write_bytes(path.read_bytes()[:-8])
    run = open_run(trial.path)
    (text,) = damage(run)
    assert "rollups/grad-10" in text
    assert "bytes instead of" in text
    trial.check(run)  # the rows are all there


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_without_a_manifest_all_sealed_files_are_read(
    trial: Trial, harm: Callable[[Path], object]
) -> None:
    harm(next(trial.path.glob("*/manifest.json")))
    run = open_run(trial.path)
    (text,) = damage(run)
    assert "manifest.json" in text
    assert run.info["complete"] is False
    trial.check(run)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_lost_names_say_so(trial: Trial, harm: Callable[[Path], object]) -> None:
    harm(next(trial.path.glob("*/subjects.parquet")))
    run = open_run(trial.path)
    assert run.names == tuple(f"(name lost: parameter {n})" for n in range(4))
    assert any("subjects.parquet" in text for text in damage(run))
    norm = run.series["grad_norm"]
    assert np.isfinite(norm).mean() > 0.5


def test_names_written_beside_count_where_they_fit(trial: Trial) -> None:
    path = next(trial.path.glob("*/subjects.parquet"))
    path.rename(path.with_name("subjects.parquet.part"))
    run = open_run(trial.path)
    assert damage(run) == []
    trial.check(run)


def test_what_is_not_whole_yet_is_left_alone(trial: Trial) -> None:
    folder = next(trial.path.glob("*/manifest.json")).parent
    (folder / "rows" / "grad" / "00099.parquet").write_bytes(b"anything")
    (folder / "rows" / "grad" / "00001.parquet.part").write_bytes(b"anything")
    (folder / "journal-00001.gwj").write_bytes(b"sealed long ago")
    run = open_run(trial.path)
    assert damage(run) == []
    trial.check(run)


def test_a_lost_journal_is_damage_where_it_was(tmp_path: Path) -> None:
    # Nothing is sealed yet: a journal that is sealed while it is copied would not be read at all.
    trial = Trial(tmp_path / "run", families=(Family.UPDATE,))
    for part in range(4):
        trial.steps(range(part * 50, part * 50 + 50))
        assert trial.writer.flush(WAIT)
    copied = Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))
    trial.close()
    journals = sorted(copied.glob("*/journal-*.gwj"))
    assert not list(copied.glob("*/rows/**/*.parquet"))
    data = journals[-1].read_bytes()
    middle = data.index(b"GWR1", len(data) // 2)
    after = data.index(b"GWR1", data.index(b"GWR1", middle + 4) + 4)
    journals[-1].write_bytes(data[:middle] + data[after:])
    run = open_run(copied)
    (text,) = damage(run)
    assert "records " in text
    assert "missing" in text
    damaged = run.state(Stat.UPDATE_NORM) == State.DAMAGED
    lost = np.setdiff1d(np.arange(200), run.steps)
    assert damaged.any() or len(lost)
