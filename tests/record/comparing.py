"""Holds what a watcher recorded of a loop against the loop's own truth in float64."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.record.loops import Loop
from tests.record.sinks import MemorySink, watch_into
from tests.record.truth import Step, Truth
from torch import nn

from gradwatch.record import Watcher
from gradwatch.record.hooks import bare_optimizer
from gradwatch.stats import Family, State


def compare_run(loop: Loop, tolerance: float) -> None:
    """Run the loop under a watcher and hold every step of it against the truth."""
    started: list[tuple[Watcher, Truth, MemorySink]] = []

    def start(
        model: nn.Module, *optimizers: Any, bare: nn.Module | None = None, **options: Any
    ) -> tuple[Watcher, Truth]:
        sink, truth = MemorySink(), Truth(bare or model)
        watcher = watch_into(sink, model, *map(bare_optimizer, optimizers), **options)
        started.append((watcher, truth, sink))
        return watcher, truth

    loop.run(start)
    for watcher, truth, sink in started:
        assert watcher.guard.error is None
        watcher.close()
        assert watcher.guard.error is None
        assert sink.closed
        assert sink.steps(Family.GRAD) == list(truth.steps)
        for number, step in truth.steps.items():
            _compare(sink, number, step, tolerance)


def _compare(sink: MemorySink, number: int, step: Step, tolerance: float) -> None:
    scalars = sink.logged[number]
    assert scalars.get("skipped", 0.0) == step.skipped
    if step.backwards is not None and not step.skipped:
        assert scalars["backwards"] == step.backwards
    if step.stale is not None:
        assert scalars["stale"] == step.stale
    if not step.skipped:
        if step.factor is None:
            assert "clip_factor" not in scalars
        elif "clip_factor" in scalars or step.factor != 1.0:
            assert scalars["clip_factor"] == pytest.approx(step.factor, rel=tolerance)
    for name in step.raw:
        where = f"step {number}, {name}"
        _compare_gradient(sink, number, name, step, tolerance, where)
        if name in step.before:
            _compare_weights(sink, number, name, step, where)


def _compare_gradient(
    sink: MemorySink, number: int, name: str, step: Step, tolerance: float, where: str
) -> None:
    row, state = sink.rows[Family.GRAD, number, name]
    raw = step.raw[name]
    if step.skipped:
        assert state is State.SKIPPED_STEP, where
        assert np.isnan(row["grad_norm"])
    elif raw is None:
        assert state in (State.NO_GRADIENT, State.UNSUPPORTED), where
        assert np.isnan(row["grad_norm"])
    else:
        expected = (State.MEASURED, State.CLIPPED) if step.factor is None else (State.MEASURED,)
        assert state in expected, where
        _compare_moments("grad", row, raw, tolerance, where)


def _compare_weights(sink: MemorySink, number: int, name: str, step: Step, where: str) -> None:
    before, after = step.before[name], step.after[name]
    assert before is not None
    assert after is not None
    row, state = sink.rows[Family.WEIGHT, number, name]
    assert state is State.MEASURED, where
    _compare_moments("weight", row, before, 2e-6, where)
    if (Family.UPDATE, number, name) not in sink.rows:
        return  # a parameter of no optimizer
    row, state = sink.rows[Family.UPDATE, number, name]
    if step.skipped:
        assert state is State.SKIPPED_STEP, where
        return
    change = np.linalg.norm(after - before)
    assert row["update_norm"] == pytest.approx(change, rel=1e-6, abs=1e-12), where
    if np.linalg.norm(before) > 0:
        expected = change / np.linalg.norm(before)
        assert row["update_ratio"] == pytest.approx(expected, rel=1e-6, abs=1e-12), where


def _compare_moments(
    kind: str, row: np.void, values: NDArray[np.float64], tolerance: float, where: str
) -> None:
    assert row[f"{kind}_count"] == values.size, where
    if not values.size:
        return
    truth = {
        "norm": np.linalg.norm(values),
        "mean": values.mean(),
        "std": values.std(),
        "abs_mean": np.abs(values).mean(),
        "abs_max": np.abs(values).max(),
        "min": values.min(),
        "max": values.max(),
        "zero_fraction": (values == 0).mean(),
    }
    size = float(np.abs(values).max())
    for name, expected in truth.items():
        found = row[f"{kind}_{name}"]
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance * size), (
            f"{name} at {where}"
        )
    if values.ndim > 1:
        rows = values.reshape(len(values), -1)
        assert row[f"{kind}_zero_rows"] == (rows == 0).all(1).sum(), where
