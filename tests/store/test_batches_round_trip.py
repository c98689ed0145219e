"""What is put in comes out: every family, state and size of number, and all that is no row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.store.trial import VALUED, WAIT, Trial, finishing_at, kept, random_rows, subjects

from gradwatch.graph import Graph
from gradwatch.run import Event, EventKind, Histogram, Run, Subject
from gradwatch.run.subject import HistogramTable
from gradwatch.stats import Family, Kind, State, family_stats, row_dtype
from gradwatch.store import Writer, open_run

PARAMETERS = (Family.GRAD, Family.WEIGHT, Family.UPDATE, Family.OPTIM)


def problems(run: Run) -> list[str]:
    wrong = (EventKind.DAMAGE, EventKind.GAP, EventKind.NOT_RECORDED)
    return [event.text for event in run.events if event.kind in wrong]


@pytest.mark.parametrize("size", [20_000, 10**9])
def test_the_same_numbers_before_and_after_parts_are_finished(tmp_path: Path, size: int) -> None:
    with finishing_at(size):
        trial = Trial(tmp_path / "run", families=PARAMETERS).steps(range(240), 40)
        growing = open_run(tmp_path / "run")
        assert growing.info["complete"] is False
        assert trial.check(growing) > 10_000
        trial.close()
    run = open_run(tmp_path / "run")
    assert run.info["complete"] is True
    assert problems(run) == []
    assert trial.check(run) == trial.check(growing)  # also what was opened before
    assert not [*tmp_path.rglob("*.arrows"), *tmp_path.rglob("*.part")]
    parts = [*tmp_path.rglob("rows/grad/*.parquet")]
    assert len(parts) > 3 if size < 10**6 else len(parts) == 1
    assert run.info["rows"] == sum(len(states) for _, states in trial.truth.values())
    assert 0 < run.info["background_seconds"] < 60


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("close", [True, False])
def test_every_family_with_every_state(tmp_path: Path, family: Family, close: bool) -> None:
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(len(State), family.kind))
    rng = np.random.default_rng(7)
    truth = [random_rows(rng, family, len(State)) for _ in range(20)]
    states = np.array(State, np.uint8)
    for step, rows in enumerate(truth):
        writer.put(family, 3 * step, ids, rows.copy(), states)
    assert writer.close(WAIT) if close else writer.flush(WAIT)
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(0, 60, 3))
    assert run.recorded == set(family_stats(family))
    for stat in run.recorded:
        true = np.array([kept(rows[stat]) for rows in truth])
        true[:, ~np.isin(states, VALUED)] = np.nan
        assert (run.state(stat) == states).all()
        assert np.array_equal(run.series[stat], true, equal_nan=True), stat
        if np.dtype(stat.dtype).kind == "u":
            exact = np.array([rows[stat] for rows in truth])
            exact[:, ~np.isin(states, VALUED)] = 0
            assert (run.integers(stat) == exact).all()
    writer.close(WAIT)


NUMBERS = [
    *(0.0, -0.0, 1.0, 1 / 3, -2e-30, 3.4028234e38, 1.17549435e-38),
    *(1e39, -1.7976931348623157e308, 1 / 3 * 1e300, np.inf, -np.inf, np.nan),
    *(1e-39, 1e-45, -5e-324, 1 / 3 * 1e-40, 2.2250738585072014e-308),
]


def test_huge_tiny_and_not_finite_numbers(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(len(NUMBERS)))
    rows = np.zeros(len(NUMBERS), row_dtype(Family.GRAD))
    rows["grad_norm"] = NUMBERS
    with np.errstate(over="ignore"):
        rows["grad_skewness"] = NUMBERS
    writer.put(Family.GRAD, 0, ids, rows.copy(), np.zeros(len(ids), np.uint8))
    for ended in (writer.flush, writer.close):
        assert ended(WAIT)
        run = open_run(tmp_path / "run")
        (got,) = run.series["grad_norm"]
        for true, found in zip(NUMBERS, got.tolist(), strict=True):
            if not np.isfinite(true) or true == 0 or 1.2e-38 < abs(true) < 3.41e38:
                assert np.array_equal(found, float(np.float32(true)), equal_nan=True)
                assert np.signbit(found) == np.signbit(true) or np.isnan(true)
            else:  # all digits
                assert found == true
        assert np.array_equal(run.series["grad_skewness"][0], rows["grad_skewness"], equal_nan=True)


def test_counts_and_hashes_are_exact(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(1))
    rows = np.zeros(1, row_dtype(Family.WEIGHT))
    rows["weight_count"], rows["weight_hash"] = 2**53 + 1, 2**64 - 3
    writer.put(Family.WEIGHT, 0, ids, rows, np.zeros(1, np.uint8))
    for ended in (writer.flush, writer.close):
        assert ended(WAIT)
        run = open_run(tmp_path / "run")
        assert int(run.integers("weight_count")[0, 0]) == 2**53 + 1
        assert int(run.integers("weight_hash")[0, 0]) == 2**64 - 3


def test_steps_may_be_far_apart_negative_and_late(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", name="r")
    ids = writer.declare(subjects(1))
    steps = [-5, 0, 10**12, 2**62, 7]
    for step in steps:
        rows = np.zeros(1, row_dtype(Family.UPDATE))
        rows["update_norm"] = step % 1000
        writer.put(Family.UPDATE, step, ids, rows, np.zeros(1, np.uint8))
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.steps.tolist() == sorted(steps)
    assert run.series["update_norm"][:, 0].tolist() == [step % 1000 for step in sorted(steps)]


def test_everything_that_is_no_row(tmp_path: Path) -> None:
    name = "</script>\x1b[31m=cmd()\ud800\nü" + "x" * 300
    writer = Writer.create(tmp_path / "run", name=name, info={"loss_kind": "mse", "odd": np.nan})
    odd = Subject(Kind.PARAMETER, name, name, (2, 3), module="Linear", order=3, tied_to=("a", "b"))
    ids = writer.declare([odd])
    rows = np.ones(1, row_dtype(Family.GRAD))
    writer.put(Family.GRAD, 3, ids, rows, np.zeros(1, np.uint8))
    writer.scalars(3, {name: float("nan"), "loss": 2.0})
    writer.scalars(3, {"loss": 4.0})  # of several the last counts
    writer.event(Event(3, EventKind.AUDIT, name, name, {"deep": [float("inf"), {"a": None}]}))
    writer.graph(Graph.chain(["old"]))
    writer.graph(Graph.chain([name, "b"]))
    writer.note({"classes": 10})
    assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.info["complete"]
    assert problems(run) == []
    assert np.isnan(run.info["odd"])
    assert (run.info["loss_kind"], run.info["classes"]) == ("mse", 10)
    assert run.info["name"] == name
    assert run.subjects == (odd,)
    (event,) = run.events
    assert (event.text, event.subject, event.step) == (name, name, 3)
    assert event.data == {"deep": [float("inf"), {"a": None}]}
    assert event.wall > 1e9
    assert run.graph == Graph.chain([name, "b"])
    assert run.scalars["loss"].tolist() == [4.0]
    assert len(run.scalars) == 2
    assert run.series["grad_norm"].tolist() == [[1.0]]
    assert [*tmp_path.rglob("rows/grad/*.parquet")]


def test_histograms(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    truth: dict[tuple[Family, int, int], Histogram] = {}
    with finishing_at(3_000):
        writer = Writer.create(tmp_path / "run", name="r")
        names = [subject.name for subject in subjects(3)]
        ids = writer.declare(subjects(3))
        for step in range(20):
            for family in (Family.GRAD, Family.WEIGHT):
                some = []
                for subject in (2, 0):
                    counts = rng.integers(0, 2**60, (2, rng.integers(0, 30)), dtype=np.uint64)
                    some.append(Histogram(-int(rng.integers(0, 40)), *counts, 1, 2**63, 3, 4))
                    truth[family, subject, step] = some[-1]
                writer.histogram_table(family, step, ids[[2, 0]], HistogramTable.of(some))
            writer.scalars(step, {"loss": step / 3})
            assert writer.flush(WAIT)
        growing = open_run(tmp_path / "run")
        assert writer.close(WAIT)
        assert writer.finished.wait(WAIT)
    for run in (growing, open_run(tmp_path / "run")):
        assert dict(run.histograms("grad", names[1])) == {}
        for (family, subject, step), true in truth.items():
            found = run.histograms(family, names[subject])
            assert list(found) == list(range(20))
            assert found[step].first_exponent == true.first_exponent
            assert found[step].negative.tolist() == true.negative.tolist()
            assert found[step].positive.tolist() == true.positive.tolist()
            assert found[step].count == true.count
            assert (found[step].nan, found[step].negative_inf) == (2**63, 4)
    assert len([*tmp_path.rglob("histograms/grad/*.parquet")]) > 1


def test_subjects_come_and_go_and_change(tmp_path: Path) -> None:
    with finishing_at(20_000):
        writer = Writer.create(tmp_path / "run", name="r")
        a, b, c = subjects(3)
        ids = writer.declare([a, b])
        early = None
        for step in range(100):
            if step == 40:
                assert writer.flush(WAIT)
                early = open_run(tmp_path / "run")  # and read when there is one more
                ids = writer.declare([c, a, *subjects(3, stem="more")])[:2]
            rows = np.ones(2, row_dtype(Family.GRAD))
            rows["grad_norm"] = [step, 1000 + step]
            writer.put(Family.GRAD, step, ids, rows, np.zeros(2, np.uint8))
        again = writer.declare([replace(b, frozen=True)])
        assert again.tolist() == [1]
        assert writer.flush(WAIT)
        assert early is not None
        assert early.series["grad_norm"][:, 0].tolist()[:40] == list(range(40))
        assert writer.close(WAIT)
    run = open_run(tmp_path / "run")
    assert run.names[:3] == (a.name, b.name, c.name)
    assert run.subjects[1].frozen
    norm = run.series["grad_norm"][:, :3]
    assert np.array_equal(norm[10], [10, 1010, np.nan], equal_nan=True)
    assert np.array_equal(norm[50], [1050, np.nan, 50], equal_nan=True)
    assert run.state("grad_norm")[50].tolist() == [0, 1, 0, 1, 1, 1]


def test_a_new_attempt_takes_the_place_of_the_old_one_from_its_first_step_on(
    tmp_path: Path,
) -> None:
    first = Trial(tmp_path / "run", seed=1).steps(range(100))
    first.close()
    second = Trial(tmp_path / "run", seed=2).steps(range(60, 80))
    second.close()
    run = open_run(tmp_path / "run")
    assert run.info["attempts"] == [0, 1]
    assert run.info["complete"]
    assert run.steps.tolist() == list(range(80))
    second.check(run)
    first.check(open_run(tmp_path / "run", attempt=0))
    first.truth = {key: rows for key, rows in first.truth.items() if key[1] < 60}
    first.loss = {step: loss for step, loss in first.loss.items() if step < 60}
    first.check(run)
    third = Trial(tmp_path / "run", seed=3).steps(range(10), 10)  # another training
    assert open_run(tmp_path / "run").steps.tolist() == list(range(10))
    third.close()
    third.check(open_run(tmp_path / "run"))
