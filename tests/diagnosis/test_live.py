"""The live checks: what they remember, what they say, and how often."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwatch.diagnosis.live import FIRST, LAST, LiveDiagnosis, RecentPast
from gradwatch.finding import Finding
from gradwatch.run import Subject
from gradwatch.stats import Family, Kind, Stat, State, row_dtype

NAMES = ("a", "b")


@dataclass
class Rows:
    family: Family
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _time_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come at the same steps however loaded the machine is."""
    monkeypatch.setattr("gradwatch.diagnosis.live.ALLOWANCE", 1e9)


def subjects() -> list[Subject]:
    return [
        Subject(Kind.PARAMETER, f"{n}.weight", n, (4, 4), "float32", 16, 0, order=i)
        for i, n in enumerate(NAMES)
    ]


def gradient(norms: Sequence[float]) -> Rows:
    rows = np.zeros(len(norms), row_dtype(Family.GRAD))
    rows["grad_norm"] = norms
    rows["grad_zero_rows"] = 0
    return Rows(
        Family.GRAD, np.arange(len(norms), dtype=np.uint32), rows, np.zeros(len(norms), np.uint8)
    )


def monitor(on_finding: object = None) -> LiveDiagnosis:
    made = LiveDiagnosis(on_finding)  # type: ignore[arg-type]
    made.declared(subjects(), np.arange(2, dtype=np.uint32))
    return made


def test_the_past_keeps_the_first_steps_and_the_last() -> None:
    past = RecentPast()
    past.declare(subjects(), np.arange(2, dtype=np.uint32))
    total = FIRST + LAST + 100
    for step in range(total):
        past.add(step, [gradient([step, 1.0])] if step % 2 == 0 else [], {"loss": float(step)})
    run = past.run()
    assert list(run.steps[:FIRST]) == list(range(FIRST))
    assert list(run.steps[FIRST:]) == list(range(total - LAST, total))
    values = run.series[Stat.GRAD_NORM][:, 0]
    even = run.steps % 2 == 0
    assert np.array_equal(values[even], run.steps[even])
    assert np.isnan(values[~even]).all()
    assert (run.state(Stat.GRAD_NORM)[~even] == State.NOT_SAMPLED).all()
    assert np.array_equal(run.scalars["loss"], run.steps)


def test_subjects_may_come_later() -> None:
    past = RecentPast()
    both = subjects()
    past.declare(both[:1], np.array([0], np.uint32))
    past.add(0, [gradient([1.0])], {})
    past.declare(both[1:], np.array([1], np.uint32))
    past.add(1, [gradient([2.0, 3.0])], {})
    values = past.run().series[Stat.GRAD_NORM]
    assert values[1].tolist() == [2.0, 3.0]
    assert values[0, 0] == 1.0
    assert np.isnan(values[0, 1])


def test_a_fault_is_said_once_and_never_again(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Finding] = []
    watching = monitor(told.append)
    with caplog.at_level(logging.WARNING, "gradwatch"):
        for step in range(400):
            norm = 1e4 if 40 <= step < 200 else 1.0
            watching.after_step(step, [gradient([1.0, norm])], {"loss": 1.0})
    assert [finding.check for finding in told].count("exploding-gradient") == 1
    assert told[0].layers[0] == "b"
    said = [record for record in caplog.records if "exploding-gradient" in record.message]
    assert len(said) == 1
    assert not watching.should_stop


def test_a_healthy_training_is_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(0)
    watching = monitor()
    with caplog.at_level(logging.WARNING, "gradwatch"):
        for step in range(300):
            norms = np.exp(random.normal(0, 0.3, 2))
            watching.after_step(step, [gradient(norms)], {"loss": 2 * 0.99**step})
        watching.close()
    assert watching.findings == []
    assert not caplog.records


def test_nan_is_said_at_once_and_asks_to_stop() -> None:
    told: list[Finding] = []
    watching = monitor(told.append)
    for step in range(20):
        bad = step >= 9
        scalars = {"loss": float("nan") if bad else 1.0, "loss_nonfinite": float(bad)}
        watching.after_step(step, [gradient([1.0, 1.0])], scalars)
        if step == 9:
            assert [finding.check for finding in told] == ["nonfinite"]
            assert not watching.should_stop
    assert watching.should_stop


def test_a_callback_that_raises_is_dropped_and_the_training_goes_on() -> None:
    calls = []

    def broken(finding: Finding) -> None:
        calls.append(finding)
        raise RuntimeError("mine")

    watching = monitor(broken)
    for step in range(200):
        stale = {"loss": 1.0, "stale": float(step > 0)}
        watching.after_step(step, [gradient([1.0, 1e4])], stale)
    assert len(calls) == 1
    assert len(watching.findings) >= 2


def test_a_missing_loss_is_mentioned_after_three_steps(caplog: pytest.LogCaptureFixture) -> None:
    watching = monitor()
    with caplog.at_level(logging.WARNING, "gradwatch"):
        for step in range(10):
            watching.after_step(step, [gradient([1.0, 1.0])], {})
    assert sum("no loss was logged" in record.message for record in caplog.records) == 1


def test_the_end_says_where_to_read_more(caplog: pytest.LogCaptureFixture) -> None:
    watching = monitor()
    watching.run_dir = "runs/mine"
    with caplog.at_level(logging.WARNING, "gradwatch"):
        for step in range(30):
            watching.after_step(step, [gradient([1.0, 1e4])], {"loss": 1.0})
        watching.close()
    assert caplog.records[-1].getMessage().endswith("gradwatch diagnose runs/mine")


def test_the_first_look_is_after_three_steps() -> None:
    """What can be known at once is said at once: a weight no optimizer has, stale gradients."""
    told: list[str] = []
    watching = LiveDiagnosis(lambda finding: told.append(finding.check))
    lost, known = subjects()
    watching.declared([replace(lost, group=None), known], np.arange(2, dtype=np.uint32))
    for step in range(3):
        watching.after_step(step, [gradient([1.0, 1.0])], {"loss": 1.0, "stale": float(step > 0)})
    assert set(told) == {"not-updated", "stale-gradients"}


def test_what_was_found_out_about_the_loss_is_judged_live() -> None:
    said = []
    monitor = LiveDiagnosis(said.append)
    monitor.noted({"loss_fed_with": "probabilities"})
    for step in range(4):
        monitor.after_step(step, [], {"loss": 1.0})
    assert [finding.check for finding in said] == ["output-misuse"]
