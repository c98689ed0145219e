"""Rows made of records, field by field; and the memory of rows against lists of everything seen."""

import math

import numpy as np
import pytest

from gradwatch import kernel
from gradwatch.stats import Family, State
from gradwatch.stats.rows import WINDOW, RowMemory, mirrored, moment_rows, update_rows


def test_the_window_of_dead_rows_is_exact() -> None:
    generator = np.random.default_rng(0)
    sizes = [5, 0, 17, 1]
    memory = RowMemory(sizes)
    history: list[list[np.ndarray]] = []
    for step in range(3 * WINDOW):
        now = np.array(sizes) - (step % 7 == 3)  # at times tensors of another shape: not remembered
        marks = [generator.random(size) < (0.02 if step % 7 != 3 else 0.0) for size in sizes]
        history.append(marks)
        for view, mark in zip(memory.fresh(now), marks, strict=True):
            if view is not None:
                view[:] = mark
        dead, untouched = memory.remember()
        for index in range(len(sizes)):
            recent = np.any([step[index] for step in history[-WINDOW:]], axis=0)
            ever = np.any([step[index] for step in history], axis=0)
            assert dead[index] == (~recent).sum()
            assert untouched[index] == (~ever).sum()


ARRAYS = [
    np.array([[1.0, -2.0, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0]]),
    np.array([[np.nan, np.inf, -np.inf, 3.0]]),
    np.array([[0.5, -0.5]]),
    np.zeros((2, 0)),
]


@pytest.mark.parametrize("family", [Family.GRAD, Family.WEIGHT])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_rows_are_the_records_times_the_factor(family: Family, factor: float) -> None:
    states = np.array([State.MEASURED, State.CLIPPED, State.SAMPLED, State.PARTIAL], np.uint8)
    rows = moment_rows(family, kernel.measure_arrays(ARRAYS), states, factor)
    first, odd, _, empty = ({n.partition("_")[2]: row[n] for n in row.dtype.names} for row in rows)
    scaled = np.array(ARRAYS[0]) * factor
    assert first["count"] == 8
    assert first["zero_rows"] == 1
    assert first["zero_fraction"] == np.float32(5 / 8)
    assert (first["nan"], first["inf"]) == (0, 0)
    assert first["norm"] == pytest.approx(np.linalg.norm(scaled))
    assert first["mean"] == pytest.approx(scaled.mean())
    assert first["std"] == pytest.approx(scaled.std())
    assert first["abs_mean"] == pytest.approx(np.abs(scaled).mean())
    assert (first["min"], first["max"], first["abs_max"]) == (-2 * factor, 5 * factor, 5 * factor)
    deviations = (scaled - scaled.mean()) / scaled.std()
    assert first["skewness"] == pytest.approx((deviations**3).mean(), rel=1e-6)
    assert first["kurtosis"] == pytest.approx((deviations**4).mean() - 3, rel=1e-6)
    assert (odd["nan"], odd["inf"], odd["norm"]) == (1, 2, 3 * factor)
    assert empty["count"] == 0
    assert math.isnan(empty["norm"])
    assert math.isnan(empty["zero_fraction"])


def test_where_the_state_says_there_is_none_there_is_no_value() -> None:
    states = np.array([State.NO_GRADIENT, State.UNSUPPORTED, 0, State.SKIPPED_STEP], np.uint8)
    rows = moment_rows(Family.GRAD, kernel.measure_arrays(ARRAYS), states)
    for name in rows.dtype.names:
        silent = rows[name][states != 0]
        assert not silent.any() if silent.dtype.kind == "u" else np.isnan(silent).all()
    assert rows["grad_count"][2] == 2


def test_mirrored() -> None:
    arrays = [[0.5, 0.1, -0.5], [0.5, -0.4], [-0.5, 0.4], [0.0, 0.0], [np.nan], [-1.0, -1.0]]
    records = kernel.measure_arrays([np.array(x) for x in arrays])
    rows = moment_rows(Family.GRAD, records, np.zeros(6, np.uint8))
    assert mirrored(rows).tolist() == [True, False, False, False, False, False]


def test_rows_of_updates() -> None:
    records = np.zeros(3, kernel.UPDATE)
    records["update_norm"], records["before_norm"] = [1.0, 1.0, 1.0], [4.0, 0.0, 4.0]
    records["lost"], records["with_gradient"] = [1, 0, 1], [4, 0, 4]
    rows = update_rows(records, np.array([0, 0, State.NO_GRADIENT], np.uint8))
    assert rows["update_norm"].tolist()[:2] == [1.0, 1.0]
    assert rows["update_ratio"][0] == 0.25
    assert rows["update_lost_fraction"][0] == 0.25
    assert np.isnan(rows["update_ratio"][1:]).all()
    assert np.isnan(rows["update_lost_fraction"][1:]).all()
    assert np.isnan(rows["update_norm"][2])
