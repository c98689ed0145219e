"""The outbox: numbers thinned, findings never lost, a failing service left alone, nobody waits."""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gradwatch.errors import GradwatchError
from gradwatch.forward import SERVICES, Outbox, open_outbox
from gradwatch.live import Forwarding, summary
from gradwatch.record import StepRows
from gradwatch.stats import Family, Stat, row_dtype


class Kept:
    """A service that keeps what it got, and can be made to stall or to fail."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, object]] = []
        self.go = threading.Event()
        self.go.set()
        self.fails = False
        self.closed = False

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        assert self.go.wait(60)
        if self.fails:
            raise OSError("no route")
        self.sent.append((step, dict(values)))

    def finding(self, step: int, title: str, text: str) -> None:
        self.sent.append((step, (title, text)))

    def close(self) -> None:
        self.closed = True


def test_numbers_are_thinned_and_the_last_ones_arrive() -> None:
    kept = Kept()
    outbox = Outbox(kept, interval=3600.0)
    for step in range(100):
        outbox.numbers(step, {"loss": float(step)})
    outbox.finding(50, "nonfinite", "at step 50")
    outbox.numbers(99, {"loss": 99.0}, last=True)
    outbox.close(60)
    assert kept.sent == [
        (0, {"loss": 0.0}),
        (50, ("nonfinite", "at step 50")),
        (99, {"loss": 99.0}),
    ]
    assert kept.closed


def test_a_stalled_service_holds_nobody_up_and_loses_no_finding() -> None:
    kept = Kept()
    kept.go.clear()
    outbox = Outbox(kept, interval=0.0)
    for step in range(5000):
        outbox.numbers(step, {"loss": 1.0})
    for step in range(300):
        outbox.finding(step, "spike", str(step))
    kept.go.set()
    outbox.close(60)
    assert sum(isinstance(what, tuple) for _, what in kept.sent) == 300
    assert sum(isinstance(what, dict) for _, what in kept.sent) < 600


def test_a_failing_service_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    kept.fails = True
    with caplog.at_level(logging.WARNING, logger="gradwatch"):
        outbox = Outbox(kept, interval=0.0)
        for step in range(10):
            outbox.numbers(step, {"loss": 1.0})
        outbox.close(60)
    assert len(caplog.records) == 1
    assert "no route" in caplog.text


def test_wrong_words_and_missing_packages_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GradwatchError, match="known: wandb, mlflow, tensorboard, trackio"):
        open_outbox("excel", "run", tmp_path)

    def missing(name: str, folder: Path) -> Kept:
        raise ImportError("No module named 'wandb'")

    monkeypatch.setitem(SERVICES, "wandb", missing)
    with pytest.raises(GradwatchError, match="needs its package"):
        open_outbox("wandb", "run", tmp_path)


def grad_rows(norms: list[float], nan: int = 0) -> StepRows:
    rows = np.zeros(len(norms), row_dtype(Family.GRAD))
    rows[Stat.GRAD_NORM] = norms
    rows[Stat.GRAD_NAN][0] = nan
    ids = np.arange(len(norms), dtype=np.uint32)
    return StepRows(Family.GRAD, 0, ids, rows, np.zeros(len(norms), np.uint8))


def test_a_step_becomes_a_few_numbers() -> None:
    assert summary(grad_rows([3.0, 4.0], nan=2)) == {
        "gradwatch/grad_norm": 5.0,
        "gradwatch/grad_nonfinite": 2.0,
    }
    rows = np.zeros(3, row_dtype(Family.UPDATE))
    rows[Stat.UPDATE_RATIO] = [1e-3, np.nan, 3e-3]
    batch = StepRows(Family.UPDATE, 0, np.arange(3, dtype=np.uint32), rows, np.zeros(3, np.uint8))
    assert summary(batch) == {"gradwatch/update_ratio": pytest.approx(2e-3)}


def test_the_monitor_inside_still_judges() -> None:
    class Inner:
        should_stop = True
        steps: list[int] = []  # noqa: RUF012
        closed = False

        def declared(self, subjects: object, ids: object) -> None: ...
        def noted(self, info: object) -> None: ...

        def after_step(self, step: int, rows: object, scalars: object) -> None:
            self.steps.append(step)

        def close(self) -> None:
            self.closed = True

    kept, inner = Kept(), Inner()
    monitor = Forwarding(inner)
    monitor.open(Outbox(kept, interval=0.0))
    monitor.after_step(7, [grad_rows([3.0, 4.0])], {"loss": 0.5, "other": 1.0})
    assert monitor.should_stop
    monitor.close()
    assert inner.steps == [7]
    assert inner.closed
    assert kept.sent[0] == (
        7,
        {"gradwatch/loss": 0.5, "gradwatch/grad_norm": 5.0, "gradwatch/grad_nonfinite": 0.0},
    )
