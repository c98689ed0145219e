"""Reading while a writer writes, finishes and removes as fast as it can; and after a kill."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.store.trial import WAIT, Trial, finishing_at, subjects

from gradwatch.run import EventKind, Run
from gradwatch.stats import Family, Stat, State, row_dtype
from gradwatch.store import Retention, Writer, open_run, reader
from gradwatch.store import writer as writer_thread

STEPS = 3000


def damage(run: Run) -> list[str]:
    return [event.text for event in run.events if event.kind is EventKind.DAMAGE]


@pytest.mark.parametrize("keep", [None, Retention(bytes=60_000)])
def test_a_reader_never_sees_damage_or_a_wrong_value(
    tmp_path: Path, keep: Retention | None
) -> None:
    with finishing_at(8_000):
        writer = Writer.create(tmp_path / "run", name="live", keep=keep)
        ids = writer.declare(subjects(2))
        assert writer.flush(WAIT)

        def write() -> None:
            for step in range(STEPS):
                rows = np.zeros(2, row_dtype(Family.UPDATE))
                rows["update_norm"] = [step + 1, step + 2]
                writer.put(Family.UPDATE, step, ids, rows, np.zeros(2, np.uint8))
                writer.scalars(step, {"loss": float(step)})
                if step % 7 == 0:
                    writer.flush(WAIT)
            writer.close(WAIT)

        thread = threading.Thread(target=write)
        thread.start()
        looks = longest = 0
        while thread.is_alive() or not looks:
            run = open_run(tmp_path / "run")
            norm, state = run.series["update_norm"], run.state("update_norm")
            assert damage(run) == []
            first = whole_from(run)
            assert (state[first:] == State.MEASURED).all()
            true = np.add.outer(run.steps + 1, np.arange(2))
            assert (norm[first:] == true[first:]).all()
            logged = run.scalars.get("loss", np.zeros(0))  # the last may have its rows alone
            assert (logged[:-1] == run.steps[: len(logged)][:-1]).all()
            assert keep is not None or first == 0
            assert len(run.steps) >= longest
            longest = len(run.steps)
            looks += 1
        thread.join()
        assert writer.finished.wait(WAIT)
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(STEPS))
    assert run.info["complete"]
    assert damage(run) == []
    first = whole_from(run)
    assert 0 < first < STEPS if keep else first == 0
    assert (run.state("update_norm")[first:] == State.MEASURED).all()
    assert looks >= 4


def whole_from(run: Run) -> int:
    """The first row beyond those that were removed to keep the run small."""
    removed = [event.step for event in run.events if event.kind is EventKind.RETENTION]
    return int(np.searchsorted(run.steps, max(removed, default=-1)))


@pytest.mark.parametrize("size", [30_000, 10**9])
def test_a_growing_run_is_read_as_it_is(tmp_path: Path, size: int) -> None:
    with finishing_at(size):
        trial = Trial(tmp_path / "run", families=(Family.GRAD, Family.WEIGHT, Family.UPDATE))
        assert trial.writer.flush(WAIT)
        for part in range(8):
            trial.steps(range(part * 40, part * 40 + 40), 40)
            run = open_run(trial.path)
            assert run.steps[-1] == part * 40 + 39
            trial.check(run)
        trial.close()
    run = open_run(trial.path)
    assert run.info["complete"]
    assert damage(run) == []
    trial.check(run)


def test_finished_parts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page asks every second: of a long run only what is new may be read again."""
    read: list[str] = []
    with finishing_at(15_000):
        trial = Trial(tmp_path / "run", families=(Family.GRAD,)).steps(range(120), 10)
        open_run(trial.path).series["grad_norm"]
        real = reader.Place.open
        monkeypatch.setattr(reader.Place, "open", lambda s, f: read.append(f) or real(s, f))
        trial.steps(range(120, 130), 10)
        run = open_run(trial.path)
        assert len(run.series["grad_norm"]) == 130
        rows = {file for file in read if file.startswith("rows/")}
        assert len(rows) <= 2
        assert len([*tmp_path.rglob("rows/grad/*.parquet")]) > 3
        trial.close()


def test_opening_reads_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    path = Trial(tmp_path / "run").steps(range(50)).close()
    real = reader.Place.open
    monkeypatch.setattr(reader.Place, "open", lambda s, f: read.append(f) or real(s, f))
    run = open_run(path)
    assert run.info["name"] == "trial"
    assert len(run.subjects) == 4
    tables = ("rows/", "scalars/", "coarse/", "steps/")
    assert not [file for file in read if file.startswith(tables)]
    read.clear()
    assert len(run.series["grad_norm"]) == 50
    assert {file.split("/")[0] for file in read} <= {"steps", "rows"}


def test_one_look_is_one_moment(tmp_path: Path) -> None:
    """What a run said once it says again, whatever is written and finished meanwhile."""
    trial = Trial(tmp_path / "run", families=(Family.GRAD,)).steps(range(50))
    run = open_run(tmp_path / "run")
    norms, steps = run.series["grad_norm"].copy(), run.steps.copy()
    trial.steps(range(50, 100)).close()
    assert len(run.steps) == len(steps) == 50
    assert np.array_equal(run.series["grad_norm"], norms, equal_nan=True)
    assert run.series["grad_std"].shape == norms.shape
    assert (run.state("grad_std") == run.state("grad_norm")).all()
    assert run.scalars["loss"].shape == (50,)


def test_parts_grow_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs see the rows of a slow training after a minute too."""
    monkeypatch.setattr(writer_thread, "PART_SECONDS", 0.2)
    monkeypatch.setattr(writer_thread, "FLUSH_SECONDS", 0.05)
    trial = Trial(tmp_path / "run").steps(range(10), 10)
    for _ in range(100):
        if [*tmp_path.rglob("rows/grad/*.parquet")]:
            break
        threading.Event().wait(0.1)
    else:
        pytest.fail("no part was finished")
    trial.steps(range(10, 20), 10)
    trial.check(open_run(tmp_path / "run"))
    trial.close()


def test_parts_have_a_bounded_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer_thread.PART_ROWS <= 100_000
    monkeypatch.setattr(writer_thread, "PART_ROWS", 5000)
    trial = Trial(tmp_path / "run", tensors=1000, families=(Family.OPTIM,)).steps(range(23), 1)
    in_streams = 1000 * 23
    for file in tmp_path.rglob("rows/optim/*.parquet"):
        rows = pa.parquet.read_metadata(file).num_rows
        assert 5000 <= rows < 7000
        in_streams -= rows
    assert in_streams < 7000
    trial.close()


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Path]:
    """What a kill leaves: two finished parts, a growing one, no `closed`."""
    folder = tmp_path_factory.mktemp("killed")
    with finishing_at(40_000):
        trial = Trial(folder / "run", families=(Family.GRAD,)).steps(range(150), 10)
        shutil.copytree(folder / "run", folder / "killed")
        trial.close()
    return trial, folder / "killed"


def test_a_run_that_was_killed_is_all_there(unfinished: tuple[Trial, Path]) -> None:
    trial, path = unfinished
    run = open_run(path)
    assert run.info["complete"] is False
    assert damage(run) == []
    assert trial.check(run) > 5000


@pytest.mark.parametrize("cut", [1, 7, 300])
@pytest.mark.parametrize("table", ["rows/grad", "steps"])
def test_a_batch_that_is_not_whole_costs_its_own_rows(
    unfinished: tuple[Trial, Path], tmp_path: Path, cut: int, table: str
) -> None:
    """A kill cuts what was being written last. Steps that are listed and have no rows are told."""
    trial, path = unfinished
    path = Path(shutil.copytree(path, tmp_path / "run"))
    (stream,) = path.glob(f"*/{table}/*.arrows")
    data = stream.read_bytes()
    stream.write_bytes(data[:-cut] if len(data) > cut else b"")
    run = open_run(path)
    states, norms = run.state("grad_norm"), run.series["grad_norm"]
    lost = (states == State.NOT_SAMPLED).all(axis=1)
    assert 100 <= (~lost).sum() < 150
    for step in run.steps[~lost]:
        _, true = trial.truth[Family.GRAD, int(step)]
        assert (states[step] == true).all()
        assert np.isnan(norms[step][~np.isin(true, [0, 5])]).all()
    assert bool(damage(run)) == (table == "rows/grad")


def test_a_changed_batch_costs_the_rest_of_its_part_and_is_told(
    unfinished: tuple[Trial, Path], tmp_path: Path
) -> None:
    trial, path = unfinished
    path = Path(shutil.copytree(path, tmp_path / "run"))
    (stream,) = path.glob("*/rows/grad/*.arrows")
    data = bytearray(stream.read_bytes())
    data[len(data) // 2] ^= 16
    stream.write_bytes(data)
    run = open_run(path)
    states = run.state(Stat.GRAD_NORM)
    lost = (states == State.NOT_SAMPLED).all(axis=1)
    assert 0 < lost.sum() < 50
    assert any(f"rows/grad/{stream.name}" in text for text in damage(run))
    kept = {key: truth for key, truth in trial.truth.items() if not lost[key[1]]}
    whole, trial.truth = trial.truth, kept
    assert trial.check(run) > 5000
    trial.truth = whole


def test_both_forms_of_a_part_are_one(unfinished: tuple[Trial, Path], tmp_path: Path) -> None:
    """Killed between the renaming and the removal of the stream; and in the middle of finishing."""
    trial, path = unfinished
    path = Path(shutil.copytree(path, tmp_path / "run"))
    part = min(path.glob("*/rows/grad/*.parquet"))
    part.with_suffix(".arrows").write_bytes(b"")
    (stream,) = [file for file in path.glob("*/rows/grad/*.arrows") if file.stat().st_size]
    stream.with_suffix(".parquet.part").write_bytes(b"half")
    run = open_run(path)
    assert damage(run) == []
    trial.check(run)
