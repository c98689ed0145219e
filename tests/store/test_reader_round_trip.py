"""What is put in comes out: journals, sealed files, levels, families, events, histograms."""

from dataclasses import replace

import numpy as np
import pytest
from tests.store.trial import WAIT, Trial, both_readers_agree, sealing_at, subjects

from gradwatch.graph import Graph
from gradwatch.run import Event, EventKind, Histogram, Subject
from gradwatch.stats import Family, Kind, Stat, State, row_dtype
from gradwatch.store import Retention, Writer, follow, open_run

ALL = (Family.GRAD, Family.WEIGHT, Family.UPDATE, Family.OPTIM)


def test_a_journal_comes_back(tmp_path):
    trial = Trial(tmp_path / "run", families=ALL).steps(range(120))
    assert trial.writer.flush(WAIT)
    growing = open_run(tmp_path / "run")
    assert growing.info["complete"] is False
    assert trial.check(growing) > 5000
    trial.close()
    run = open_run(tmp_path / "run")
    assert run.info["complete"] is True
    assert run.info["name"] == "trial"
    trial.check(run)
    assert both_readers_agree(tmp_path / "run") > 5000


def test_what_is_sampled_rarely_takes_little_memory(tmp_path):
    trial = Trial(tmp_path / "run", families=ALL).steps(range(120))
    run = open_run(trial.close())
    held = run.source.load(Stat.WEIGHT_NORM)
    assert held.rows.tolist() == run.sampled(Stat.WEIGHT_NORM).tolist() == list(range(0, 120, 4))
    assert held.values.shape == (30, 4)
    np.testing.assert_array_equal(run.at(Stat.WEIGHT_NORM, held.rows), held.values)
    np.testing.assert_array_equal(run.series[Stat.WEIGHT_NORM][held.rows], held.values)
    assert run.source.load(Stat.GRAD_NORM).rows is None


def test_a_sketch_that_was_not_taken_says_so(tmp_path):
    trial = Trial(tmp_path / "run", tensors=2)
    for step in range(8):
        rows = np.ones(2, row_dtype(Family.GRAD))
        rows["grad_sketch"][0 if step % 4 else slice(None)] = np.nan
        trial.writer.put(Family.GRAD, step, trial.ids, rows, np.zeros(2, np.uint8))
    trial.close()
    run = open_run(tmp_path / "run")
    assert run.measured(Stat.GRAD_NORM).all()
    taken = np.isfinite(run.series[Stat.GRAD_SKETCH]).all(axis=2)
    assert taken.sum() == 6
    assert (run.measured(Stat.GRAD_SKETCH) == taken).all()
    assert (run.state(Stat.GRAD_SKETCH)[~taken] == State.NOT_SAMPLED).all()


def test_sealed_files_come_back_and_no_journal_is_left(tmp_path):
    with sealing_at(60_000):
        trial = Trial(tmp_path / "run", families=ALL).steps(range(240))
        trial.close()
    assert not list(trial.writer.folder.glob("journal-*"))
    assert len(list(trial.writer.folder.glob("rows/grad/*.parquet"))) > 3
    run = open_run(tmp_path / "run")
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    assert trial.check(run) > 10_000
    assert both_readers_agree(tmp_path / "run") > 10_000


def test_retention_loses_no_extreme_and_no_step(tmp_path):
    with sealing_at(60_000):
        trial = Trial(
            tmp_path / "run", tensors=3, families=(Family.GRAD,), keep=Retention(100, 400)
        )
        bins = np.ones(3, np.uint64)
        for step in range(1100):
            trial.step(step)
            if step % 16 == 0:
                trial.writer.histograms(Family.GRAD, step, trial.ids[0], Histogram(-2, bins, bins))
            if step % 50 == 49:
                assert trial.writer.flush(WAIT)
        trial.close()
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(1100))
    assert [event for event in run.events if event.kind is EventKind.RETENTION]
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    trial.check(run, thinned=True)
    assert (run.state(Stat.GRAD_NORM) == State.NOT_SAMPLED).mean() > 0.3
    for stat in (Stat.GRAD_NORM, Stat.GRAD_NAN, Stat.GRAD_MIN):
        table = np.array([trial.truth[Family.GRAD, step][0][stat] for step in range(1100)], float)
        states = np.array([trial.truth[Family.GRAD, step][1] for step in range(1100)])
        table[~np.isin(states, [0, 5]) | ~np.isfinite(table)] = np.nan
        got = np.where(np.isfinite(run.series[stat]), run.series[stat], np.nan)
        low, high = np.nanargmin(table, axis=0), np.nanargmax(table, axis=0)
        assert (np.nanargmin(got, axis=0) == low).all(), stat
        assert (np.nanargmax(got, axis=0) == high).all(), stat
    assert both_readers_agree(tmp_path / "run") > 5000


def test_a_new_attempt_takes_the_place_of_the_old_one_from_its_first_step_on(tmp_path):
    first = Trial(tmp_path / "run", seed=1).steps(range(100))
    first.close()
    second = Trial(tmp_path / "run", seed=2).steps(range(60, 80))
    second.close()
    run = open_run(tmp_path / "run")
    assert run.info["attempts"] == [0, 1]
    assert run.steps.tolist() == list(range(80))
    second.check(run)
    first.check(open_run(tmp_path / "run", attempt=0))
    first.truth = {key: rows for key, rows in first.truth.items() if key[1] < 60}
    first.loss = {step: loss for step, loss in first.loss.items() if step < 60}
    first.check(run)
    both_readers_agree(tmp_path / "run")


def test_everything_that_is_no_row(tmp_path):
    name = "</script>\x1b[31m=cmd()\ud800\nü" + "x" * 300
    writer = Writer.create(tmp_path / "run", name=name, info={"loss_kind": "mse"})
    odd = Subject(Kind.LAYER, name, name, module="Linear", order=3)
    (layer,) = writer.declare([odd])
    histogram = Histogram(
        -4, np.array([1, 2**40], np.uint64), np.array([0, 3], np.uint64), 5, 1, 2, 3
    )
    for step in (0, 16):
        writer.histograms(Family.ACT, step, layer, histogram)
    writer.scalars(3, {name: float("nan"), "loss": 2.0})
    writer.event(Event(3, EventKind.AUDIT, name, name, {"deep": [float("inf"), {"a": None}]}))
    writer.graph(Graph.chain([name, "b"]))
    writer.note({"classes": 10})
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    name = name.encode("utf-8", "backslashreplace").decode()  # Parquet holds UTF-8
    assert run.info["name"] == name
    odd = replace(odd, name=name, layer=name)
    assert (run.info["loss_kind"], run.info["classes"]) == ("mse", 10)
    assert run.subjects == (odd,)
    (event,) = run.events
    assert (event.text, event.subject, event.step) == (name, name, 3)
    assert event.data == {"deep": [float("inf"), {"a": None}]}
    assert run.graph == Graph.chain([name, "b"])
    found = run.histograms(Family.ACT, name)
    assert list(found) == [0, 16]
    assert found[16].count == histogram.count
    assert (found[16].negative == histogram.negative).all()
    assert run.scalars["loss"].tolist() == [2.0]
    both_readers_agree(tmp_path / "run")


def test_subjects_come_and_go_and_change(tmp_path):
    with sealing_at(20_000):
        writer = Writer.create(tmp_path / "run", name="r")
        a, b, c = subjects(3)
        ids = writer.declare([a, b])
        rows = np.ones(2, row_dtype(Family.GRAD))
        states = np.zeros(2, np.uint8)
        for step in range(100):
            if step == 40:
                ids = writer.declare([c, a])
            rows["grad_norm"] = [step, 1000 + step]
            writer.put(Family.GRAD, step, ids, rows, states)
        again = writer.declare([Subject(Kind.PARAMETER, b.name, b.layer, frozen=True)])
        assert again.tolist() == [1]
        assert writer.close(WAIT)
        assert writer.thread.finished.wait(WAIT)
    run = open_run(tmp_path / "run")
    assert run.names == (a.name, b.name, c.name)
    assert run.subjects[1].frozen
    norm = run.series["grad_norm"]
    assert norm[10].tolist()[:2] == [10, 1010]
    assert np.isnan(norm[10, 2])
    assert (norm[50, 2], norm[50, 0]) == (50, 1050)
    assert run.state("grad_norm")[50].tolist() == [0, 1, 0]
    both_readers_agree(tmp_path / "run")


def test_counts_and_hashes_are_exact(tmp_path):
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(1))
    rows = np.zeros(1, row_dtype(Family.WEIGHT))
    rows["weight_count"], rows["weight_hash"] = 2**53 + 1, 2**64 - 3
    writer.put(Family.WEIGHT, 0, ids, rows, np.zeros(1, np.uint8))
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert int(run.integers("weight_count")[0, 0]) == 2**53 + 1
    assert int(run.integers("weight_hash")[0, 0]) == 2**64 - 3


@pytest.mark.parametrize("seal", [30_000, 10**9])
def test_following_reads_what_opening_reads(tmp_path, seal):
    with sealing_at(seal):
        trial = Trial(tmp_path / "run", families=ALL)
        assert trial.writer.flush(WAIT)
        follower = follow(tmp_path / "run")
        for part in range(8):
            trial.steps(range(part * 40, part * 40 + 40))
            assert trial.writer.flush(WAIT)
            run = follower.refresh()
            assert run.steps[-1] == part * 40 + 39
            trial.check(run)
        trial.close()
    run = follower.refresh()
    assert run.info["complete"]
    assert not [event for event in run.events if event.kind is EventKind.DAMAGE]
    trial.check(run)


def test_many_tensors_of_one_step_are_cut_into_records(tmp_path):
    count = 20_000
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare([Subject(Kind.PARAMETER, f"p{n}") for n in range(count)])
    rows = np.zeros(count, row_dtype(Family.GRAD))
    rows["grad_norm"] = np.arange(count)
    writer.put(Family.GRAD, 5, ids, rows, np.zeros(count, np.uint8))
    assert writer.close(WAIT)
    assert (open_run(tmp_path / "run").series["grad_norm"][0] == np.arange(count)).all()
