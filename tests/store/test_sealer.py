"""Sealing: journals become Parquet that a manifest names, whatever fails on the way."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.store.trial import WAIT, Trial, random_rows, sealing_at, subjects

from gradwatch.graph import Graph
from gradwatch.run import Event, EventKind, Histogram
from gradwatch.stats import Family, Stat, State
from gradwatch.store import (
    Retention,
    Writer,
    open_run,
    parquet,
    prunable,
    prune,
    sealer,
    writer_thread,
)
from gradwatch.store import journal as journals
from gradwatch.store.chunks import halved, narrowed
from gradwatch.store.manifest import Manifest, decode, numbers_of


def manifest_of(folder: Path) -> Manifest:
    return decode((folder / "manifest.json").read_bytes())


def listed(folder: Path) -> set[str]:
    return {file.file for file in manifest_of(folder).files}


def present(folder: Path) -> set[str]:
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in inside} - {"manifest.json"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Trial:
    with sealing_at(20_000):
        trial = Trial(tmp_path_factory.mktemp("made") / "run", tensors=3).steps(range(120))
        trial.close()
    return trial


def test_a_finished_run_is_what_its_manifest_says(made):
    folder = made.writer.folder
    manifest = manifest_of(folder)
    assert manifest.closed
    assert listed(folder) == present(folder)
    ((first, last, begin, _),) = manifest.journals
    assert (first, begin) == (1, 0)
    assert last > 2
    for file in manifest.files:
        assert (folder / file.file).stat().st_size == file.bytes
        if file.footer:
            assert pq.read_metadata(folder / file.file).num_row_groups == 1


def test_rows_are_those_that_were_put(made):
    """Column by column with pyarrow, without a line of ours in between."""
    folder = made.writer.folder
    seen = 0
    for path in sorted(folder.glob("rows/grad/*.parquet")):
        table = pq.read_table(path).to_pydict()
        for at, (step, subject) in enumerate(zip(table["step"], table["subject"], strict=True)):
            rows, states = made.truth[Family.GRAD, step]
            assert table["state"][at] == states[subject]
            valued = State(table["state"][at]).has_value
            for name in (name for name in rows.dtype.names if rows[name].ndim == 1):
                true = rows[name][subject]
                true = narrowed(np.array([true]))[0] if rows[name].dtype == float else true
                got = table[name][at]
                assert (got is None) if not valued else np.array_equal(got, true, equal_nan=True)
            seen += 1
    assert seen == 3 * 120


def test_sketches_are_rounded_and_only_where_there_are_any(tmp_path):
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(2))
    rng = np.random.default_rng(1)
    truth = {}
    for step in range(6):
        rows = random_rows(rng, Family.GRAD, 2)
        rows["grad_sketch"][step % 2 :] = np.nan
        truth[step] = rows.copy()
        if step > 3:
            rows["grad_sketch"] = np.nan
        writer.put(Family.GRAD, step, ids, rows, np.zeros(2, np.uint8))
    assert writer.close(WAIT)
    table = pq.read_table(writer.folder / "sketches/grad/00001.parquet").to_pydict()
    assert table["step"] == [1, 1, 3, 3]
    for step, subject, got in zip(
        table["step"], table["subject"], table["grad_sketch"], strict=True
    ):
        true = truth[step]["grad_sketch"][subject]
        assert (got is None) if subject else np.array_equal(got, halved(true), equal_nan=True)


def test_everything_beside_the_rows(tmp_path):
    rng = np.random.default_rng(5)
    histograms = {}
    with sealing_at(3_000):
        writer = Writer.create(tmp_path / "run", name="r", info={"odd": float("nan")})
        writer.declare(subjects(3))
        for step in range(20):
            for subject in (2, 0):
                bins = int(rng.integers(0, 30))
                counts = rng.integers(0, 2**60, (2, bins), dtype=np.uint64)
                histogram = Histogram(-int(rng.integers(0, 40)), counts[0], counts[1], 1, 2, 3, 4)
                histograms[subject, step] = histogram
                writer.histograms(Family.WEIGHT, step, subject, histogram)
            writer.scalars(step, {"loss": step / 3, "half \ud800 of a pair": 1.0})
            assert writer.flush(WAIT)
        writer.event(Event(7, EventKind.AUDIT, "text", "layer0", {"value": float("inf")}, 12.5))
        writer.graph(Graph.from_dict({"nodes": [["a", "Linear", False]], "edges": []}))
        assert writer.close(WAIT)
    folder, found = writer.folder, {}
    for path in sorted(folder.glob("histograms/weight/*.parquet")):
        table = pq.read_table(path).to_pydict()
        assert sorted(zip(table["subject"], table["step"], strict=True)) == list(
            zip(table["subject"], table["step"], strict=True)
        )
        for at, key in enumerate(zip(table["subject"], table["step"], strict=True)):
            found[key] = {name: column[at] for name, column in table.items()}
    assert found.keys() == histograms.keys()
    for key, histogram in histograms.items():
        assert found[key]["first_exponent"] == histogram.first_exponent
        assert found[key]["negative"] == histogram.negative.tolist()
        assert found[key]["positive"] == histogram.positive.tolist()
        assert [found[key][n] for n in ("zeros", "nan", "positive_inf", "negative_inf")] == [
            1,
            2,
            3,
            4,
        ]
    run = open_run(tmp_path / "run")
    assert [event.text for event in run.events if event.kind is EventKind.AUDIT] == ["text"]
    assert np.isnan(run.info["odd"])
    assert json.loads((folder / "graph.json").read_text())["nodes"] == [["a", "Linear", False]]
    table = pq.read_table(folder / "subjects.parquet").to_pydict()
    assert table["name"] == [subject.name for subject in subjects(3)]
    assert json.loads(table["details"][0])["shape"] == [3, 4]


def test_a_family_is_sealed_before_a_hundred_thousand_rows(tmp_path):
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(30_000))
    rows = random_rows(np.random.default_rng(0), Family.UPDATE, len(ids))
    for step in range(8):
        writer.put(Family.UPDATE, step, ids, rows, np.zeros(len(ids), np.uint8))
    assert writer.close(WAIT)
    assert writer.thread.finished.wait(WAIT)
    files = [file for file in manifest_of(writer.folder).files if file.kind == "rows"]
    assert sum(file.rows for file in files) == 8 * 30_000
    assert max(file.rows for file in files) <= 100_000


def test_rollups_of_rollups(tmp_path):
    with sealing_at(1):
        trial = Trial(tmp_path / "run", tensors=1, families=(Family.UPDATE,))
        trial.steps(range(23), flush_every=1)
        trial.close()
    numbers: dict[str, list[int]] = {}
    for file in manifest_of(trial.writer.folder).files:
        if file.kind == "rollups":
            numbers.setdefault(file.group, []).append(file.number)
    fine = numbers["update-10"]
    assert len(fine) >= 23
    whole = [fine[at] for at in range(9, len(fine), 10)]
    assert numbers["update-100"][: len(whole)] == whole
    assert numbers["update-100"][-1] == numbers["update-1000"][-1] == fine[-1]


class Failing:
    """Stands in for `os` in the module that writes: the k-th call of a kind fails, once."""

    def __init__(self, call: str, number: int) -> None:
        self.left, self.call, self.fired = number, call, False

    def __getattr__(self, name):
        real = getattr(os, name)
        if name != self.call:
            return real

        def counted(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                self.fired = True
                raise OSError(5, "made to fail")
            return real(*arguments, **options)

        return counted


@pytest.mark.parametrize("call", ["open", "fsync", "write"])
def test_sealing_is_repeated_until_it_works(tmp_path, monkeypatch, call):
    for number in (2, 9, 20):
        failing = Failing(call, number)
        with monkeypatch.context() as patch, sealing_at(5_000):
            patch.setattr(journals, "os", failing)
            trial = Trial(tmp_path / f"{call}{number}", tensors=2, seed=number)
            trial.steps(range(30), flush_every=10)
            trial.close()
        assert failing.fired
        run = open_run(trial.path)
        trial.check(run)
        assert run.info["complete"]
        assert manifest_of(trial.writer.folder).closed
        assert listed(trial.writer.folder) == present(trial.writer.folder)
        assert not [e for e in run.events if e.kind in (EventKind.DAMAGE, EventKind.GAP)]


def test_a_journal_that_lost_bytes_stays_a_journal(tmp_path, caplog):
    trial = Trial(tmp_path / "run").steps(range(10))
    assert trial.writer.flush(WAIT)
    (path,) = trial.writer.folder.glob("journal-*.gwj")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert trial.writer.close(WAIT)
    assert trial.writer.thread.finished.wait(WAIT)
    assert path.exists()
    assert "is not sealed" in caplog.text
    run = open_run(tmp_path / "run")
    assert [event for event in run.events if event.kind is EventKind.DAMAGE]


def test_without_pyarrow_journals_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "available", lambda: False)
    with sealing_at(5_000):
        trial = Trial(tmp_path / "run").steps(range(40), flush_every=10)
        trial.close()
    folder = trial.writer.folder
    assert all(path.suffix == ".gwj" for path in folder.iterdir())
    assert len(list(folder.iterdir())) > 2
    run = open_run(tmp_path / "run")
    trial.check(run)
    assert run.info["complete"]


def test_the_threads_work_is_told(made, tmp_path):
    run = open_run(made.path)
    assert run.info["rows"] == sum(len(states) for _, states in made.truth.values())
    assert 0 < run.info["background_seconds"] <= made.writer.background < 60


def kept_rows(folder: Path) -> list[int]:
    return sorted({int(path.stem) for path in folder.glob("rows/*/*.parquet")})


def test_retention_by_bytes(tmp_path):
    with sealing_at(20_000):
        free = Trial(tmp_path / "free", tensors=3).steps(range(300))
        free.close()
        files = manifest_of(free.writer.folder).files
        rows = sum(file.bytes for file in files if file.kind in ("rows", "sketches"))
        limit = sum(file.bytes for file in files) - rows // 2
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(bytes=limit)).steps(range(300))
        trial.close()
    folder = trial.writer.folder
    assert sum(file.bytes for file in manifest_of(folder).files) <= limit
    numbers, rollups = kept_rows(folder), list(folder.glob("rollups/grad-10/*"))
    assert numbers[-1] == max(kept_rows(free.writer.folder))
    assert 0 < len(numbers) < len(rollups) == len(kept_rows(free.writer.folder))
    assert listed(folder) == present(folder)
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(300))
    told = [event for event in run.events if event.kind is EventKind.RETENTION]
    assert told
    assert max(event.data["last_step"] for event in told) < 299
    trial.check(run, thinned=True)


def test_retention_by_age(tmp_path, monkeypatch):
    later = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later)
    monkeypatch.setattr(sealer, "time", clock)
    with sealing_at(10_000):
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(seconds=3600.0))
        trial.steps(range(50))
        deadline = time.monotonic() + WAIT
        while not (trial.writer.folder / "manifest.json").exists():
            assert time.monotonic() < deadline
        later = 7200.0
        trial.steps(range(50, 150))
        trial.close()
    numbers = kept_rows(trial.writer.folder)
    assert 1 not in numbers
    assert 2 in numbers


def test_the_newest_rows_stay_however_little_is_kept(tmp_path):
    with sealing_at(10_000):
        trial = Trial(tmp_path / "run", tensors=3, keep=Retention(bytes=1)).steps(range(60))
        trial.close()
    assert len(kept_rows(trial.writer.folder)) == 1


def test_pruning_a_finished_run(tmp_path):
    with sealing_at(20_000):
        trial = Trial(tmp_path / "run", tensors=3).steps(range(200))
        trial.close()
    folder = trial.writer.folder
    before = present(folder)
    size = sum(file.bytes for file in manifest_of(folder).files)
    assert prunable(trial.path, Retention(bytes=2 * size)) == {}
    gone = prunable(trial.path, Retention(bytes=size // 2))
    assert present(folder) == before
    prune(gone)
    assert before - present(folder) == {file.file for file in gone[folder]}
    assert listed(folder) == present(folder)
    run = open_run(trial.path)
    assert run.info["complete"]
    assert [event for event in run.events if event.kind is EventKind.RETENTION]
    trial.check(run, thinned=True)
    assert run.steps.tolist() == list(range(200))


def test_a_growing_run_is_not_pruned(tmp_path):
    with sealing_at(20_000):
        trial = Trial(tmp_path / "run", tensors=3).steps(range(100))
        assert prunable(trial.path, Retention(bytes=1)) == {}
        trial.close()


def test_steps_of_a_file_are_told(made):
    for file in manifest_of(made.writer.folder).files:
        if file.kind == "rows" and file.group == "weight":
            steps = pq.read_table(made.writer.folder / file.file)["step"].to_pylist()
            assert numbers_of(file.steps).tolist() == sorted(set(steps))


def test_a_seal_takes_rows_of_several_subjects_apart(tmp_path):
    """Other subjects on other steps: a grid each, and every value in its place."""
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(3))
    rng = np.random.default_rng(3)
    for step in range(9):
        some = ids[: 1 + step % 3]
        rows = random_rows(rng, Family.UPDATE, len(some))
        rows["update_norm"] = 10.0 * step + some
        writer.put(Family.UPDATE, step, some, rows, np.zeros(len(some), np.uint8))
    assert writer.close(WAIT)
    norm = open_run(tmp_path / "run").series[Stat.UPDATE_NORM]
    for step in range(9):
        count = 1 + step % 3
        assert norm[step, :count].tolist() == [10.0 * step + id for id in range(count)]
        assert np.isnan(norm[step, count:]).all()
    assert writer_thread.SEAL_ROWS < 100_000
