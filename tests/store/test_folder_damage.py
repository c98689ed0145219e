"""Files that are lost, emptied, cut or changed: an event names them, the rest is read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.store.trial import WAIT, Trial, finishing_at

from gradwatch.run import EventKind, Run
from gradwatch.run.subject import Histogram, HistogramTable
from gradwatch.stats import Family, Stat, State
from gradwatch.store import open_run
from gradwatch.store.folder import held_columns

STEPS = 240
FAMILIES = (Family.GRAD, Family.UPDATE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, Path]:
    """A finished run: several parts of rows, one part of everything else."""
    with finishing_at(40_000):
        trial = Trial(tmp_path_factory.mktemp("damage") / "run", families=FAMILIES)
        bins = np.ones(3, np.uint64)
        for begin in range(0, STEPS, 20):
            trial.steps(range(begin, begin + 20), 20)
            table = HistogramTable.of([Histogram(-2, bins, bins)])
            trial.writer.histogram_table(Family.GRAD, begin, trial.ids[:1], table)
        return trial, trial.close()


@pytest.fixture
def trial(finished: tuple[Trial, Path], tmp_path: Path) -> Trial:
    """A copy of it to harm."""
    trial, path = finished
    trial.path = Path(shutil.copytree(path, tmp_path / "run"))
    return trial


def damage(run: Run) -> list[str]:
    return [event.text for event in run.events if event.kind is EventKind.DAMAGE]


def file_of(trial: Trial, pattern: str, number: int = 1) -> Path:
    return sorted(trial.path.glob(f"*/{pattern}"))[number]


def flip(path: Path) -> None:
    """A byte of a page: between pages, older pyarrow writes bytes that nobody reads."""
    data = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = group.column(group.num_columns // 2)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 4
    path.write_bytes(data)


Harm = Callable[[Path], object]
HARM: dict[str, tuple[Harm, str]] = {
    "lost": (Path.unlink, "is missing"),
    "emptied": (lambda path: path.write_bytes(b""), "bytes instead of"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "bytes instead of"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes instead of"),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("number", [1, -1])
def test_lost_rows_are_not_sampled_and_said_without_reading(
    trial: Trial, harm: str, number: int
) -> None:
    path = file_of(trial, "rows/grad/*.parquet", number)
    HARM[harm][0](path)
    run = open_run(trial.path)
    assert run.info["complete"] is False
    (text,) = damage(run)
    assert f"rows/grad/{path.name.partition('-')[0]}" in text
    assert HARM[harm][1] in text
    assert run.steps.tolist() == list(range(STEPS))
    states = run.state(Stat.GRAD_NORM)
    lost = np.flatnonzero((states == State.NOT_SAMPLED).all(axis=1))
    assert 0 < len(lost) < STEPS
    assert lost.tolist() == list(range(lost[0], lost[-1] + 1))
    assert lost[0] == int(path.stem.partition("-")[2])
    rest = {k: v for k, v in trial.truth.items() if k[0] is Family.UPDATE or k[1] not in lost}
    whole, trial.truth = trial.truth, rest
    assert trial.check(run) > 5000
    trial.truth = whole


def test_bytes_that_were_changed_are_noticed_when_they_are_read(trial: Trial) -> None:
    path = file_of(trial, "rows/grad/*.parquet")
    flip(path)
    run = open_run(trial.path)
    broken = {s for s in run.series if (run.state(s) == State.NOT_SAMPLED).all(axis=1).any()}
    assert any(f"rows/grad/{path.name} cannot be read" in text for text in damage(run))
    assert len(broken & {s for s in Stat if s.family is Family.GRAD}) == 1  # the column it is in
    assert run.info["complete"] is False


@pytest.mark.parametrize("seed", range(12))
def test_no_changed_byte_gives_another_number(trial: Trial, seed: int) -> None:
    """Wherever it is in a finished part: the true number, or none and an event."""
    rng = np.random.default_rng(seed)
    path = file_of(trial, "rows/*/*.parquet", int(rng.integers(4)))
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    path.write_bytes(data)
    run = open_run(trial.path)
    for stat in run.series:
        run.state(stat)
    complete = run.info["complete"]
    assert complete or any(path.name in text for text in damage(run))
    trial.check(run, thinned=not complete)


def test_no_changed_byte_of_a_footer_gives_another_number(trial: Trial) -> None:
    """Parquet has no checksum of its own for the footer, which says what the pages mean."""
    path = file_of(trial, "rows/grad/*.parquet")
    whole = path.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(begin - 4, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        held_columns.cache_clear()
        run = open_run(trial.path)
        assert (run.state(Stat.GRAD_NORM) == State.NOT_SAMPLED).all(axis=1).any()
        assert any(f"rows/grad/{path.name} cannot be read" in text for text in damage(run))


def test_lost_numbers_and_histograms(trial: Trial) -> None:
    file_of(trial, "scalars/*.parquet", 0).unlink()
    bins = file_of(trial, "histograms/grad/*.parquet", 0)
    bins.write_bytes(bins.read_bytes()[:4] + bytes(bins.stat().st_size - 4))
    run = open_run(trial.path)
    assert run.info["complete"] is False
    assert any("scalars/00001" in text for text in damage(run))
    assert "loss" not in run.scalars
    list(run.histograms("grad", run.names[0]).items())
    assert any("histograms/grad" in text for text in damage(run))
    assert (run.state(Stat.GRAD_NORM) != State.NOT_SAMPLED).all()


@pytest.mark.parametrize("harm", [*(harm for harm, _ in HARM.values()), flip])
def test_where_the_list_of_steps_is_lost_rows_tell_theirs(trial: Trial, harm: Harm) -> None:
    harm(file_of(trial, "steps/*.parquet", 0))
    run = open_run(trial.path)
    assert trial.check(run) > 5000
    assert any("steps/00001" in text for text in damage(run))
    assert run.info["complete"] is False


def test_a_log_that_was_cut_or_changed(trial: Trial) -> None:
    """Without its last line it is that of a killed run; a changed line is left out and told."""
    (path,) = trial.path.glob("*/log.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes().partition(b'{"kind":"closed"')[0] + b'{"kind":"clo')
    run = open_run(trial.path)
    assert run.info["complete"] is False
    trial.check(run)
    path.write_bytes(b"".join(line.replace(b"world", b"wurld") for line in lines))
    run = open_run(trial.path)
    assert run.info["complete"] is False
    (text,) = damage(run)
    assert "log.jsonl has 1 damaged line" in text
    trial.check(run)


@pytest.mark.parametrize("harm", ["lost", "emptied", "changed"])
def test_without_names_the_run_opens(trial: Trial, harm: str) -> None:
    (path,) = trial.path.glob("*/log.jsonl")
    if harm == "changed":
        path.write_bytes(path.read_bytes().replace(b'"layer0', b'"lay3r0'))
    else:
        HARM[harm][0](path)
    run = open_run(trial.path)
    assert run.series[Stat.GRAD_NORM].shape == (STEPS, 0)
    assert run.info["complete"] is False
    assert any("log.jsonl" in text for text in damage(run))
    assert len(run.scalars["loss"]) == STEPS


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe"])
def test_without_run_json_the_run_opens_by_its_folders_name(
    trial: Trial, content: bytes | None
) -> None:
    path = trial.path / "run.json"
    path.unlink() if content is None else path.write_bytes(content)
    run = open_run(trial.path)
    assert run.info["name"] == "run"
    trial.check(run)


def test_what_is_no_part_is_left_alone(trial: Trial) -> None:
    (folder,) = trial.path.glob("0*")
    (folder / "rows/grad/00009-9.parquet.part").write_bytes(b"anything")
    (folder / "rows/grad/notes.txt").write_text("mine")
    (folder / "rows/other").mkdir()
    (folder / "rows/other/00001-0.parquet").write_bytes(b"anything")
    (trial.path / "0000-0000-nonsense").mkdir()
    (trial.path / "plot.png").write_bytes(b"anything")
    run = open_run(trial.path)
    assert damage(run) == []
    assert run.info["complete"]
    trial.check(run)


def test_a_stream_that_lost_bytes_is_not_finished(tmp_path: Path) -> None:
    """What the writer cannot read back it leaves as it is, and says so; later parts are sound."""
    trial = Trial(tmp_path / "run", families=(Family.GRAD,)).steps(range(30), 10)
    (path,) = tmp_path.rglob("rows/grad/*.arrows")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with finishing_at(1):
        trial.steps(range(30, 50), 10)
    assert path.exists()
    trial.steps(range(50, 60), 10)
    assert trial.writer.close(WAIT)
    assert trial.writer.finished.wait(WAIT)
    run = open_run(tmp_path / "run")
    states = run.state(Stat.GRAD_NORM)
    assert any("rows/grad" in text for text in damage(run))
    assert run.info["complete"] is False
    lost = (states == State.NOT_SAMPLED).all(axis=1)
    assert 0 < lost.sum() < 40
    trial.truth = {key: value for key, value in trial.truth.items() if not lost[key[1]]}
    assert {step for _, step in trial.truth} >= {*range(50, 60)}
    assert trial.check(run) > 500


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("table", ["rows/grad", "coarse/grad", "steps", "scalars"])
def test_short_runs_too(tmp_path: Path, harm: str, table: str) -> None:
    """All that was finished only when the run was closed."""
    path = Trial(tmp_path / "run").steps(range(20)).close()
    assert open_run(path).info["complete"]
    (file,) = path.glob(f"*/{table}/*")
    HARM[harm][0](file)
    run = open_run(path)
    assert not run.info["complete"]
    assert any(f"{table}/00001" in text and HARM[harm][1] in text for text in damage(run))
