"""Rows filled in C against numpy's; the memory of rows against lists of everything seen."""

from typing import Any

import numpy as np
import pytest

import gradwatch.kernel as kernel
from gradwatch.stats import HAS_VALUE, SKETCH_WIDTH, Family, State, row_dtype
from gradwatch.stats.rows import WINDOW, RowMemory, SketchMemory, gradient_rows, moment_rows


def test_the_window_of_dead_rows_is_exact() -> None:
    generator = np.random.default_rng(0)
    sizes = [5, 0, 17, 1]
    memory = RowMemory(sizes)
    rows = np.array(sizes)
    history: list[list[np.ndarray[Any, Any]]] = []
    for _ in range(3 * WINDOW):
        marks = [generator.random(size) < 0.02 for size in sizes]
        history.append(marks)
        for view, mark in zip(memory.fresh(rows), marks, strict=True):
            if view is not None:
                view[:] = mark
        dead, untouched = memory.remember()
        for index in range(len(sizes)):
            recent = np.any([step[index] for step in history[-WINDOW:]], axis=0)
            ever = np.any([step[index] for step in history], axis=0)
            assert dead[index] == (~recent).sum()
            assert untouched[index] == (~ever).sum()


def _records(count: int, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    arrays = [generator.normal(0, 10.0**i, (4, 5)) for i in range(-3, count - 3)]
    arrays[1][2] = 0.0
    arrays[2][0, :3] = [np.nan, np.inf, -np.inf]
    arrays[3][:] = 0.25
    arrays[4] = arrays[4].clip(-0.5, 0.5)
    return kernel.measure_arrays(arrays)


@pytest.mark.parametrize("factor", [1.0, 0.125, 3.7])
@pytest.mark.parametrize("sketched", [None, "first", "with cosines"])
def test_rows_filled_in_c_are_those_of_numpy(factor: float, sketched: str | None) -> None:
    """Several steps, with rows that die, gradients that are missing and a state of every kind."""
    if kernel.fill_rows is None:
        pytest.skip("there is no C here")
    generator, native = np.random.default_rng(5), kernel.instruction_set
    sizes = [4, 4, 0, 4, 4, 0, 4, 4]
    memories = [RowMemory(sizes), RowMemory(sizes)]
    lasts = [np.full((8, SKETCH_WIDTH), np.nan, np.float32) for _ in memories]
    for step in range(WINDOW + 3):
        records = _records(8, generator)
        states = generator.choice(len(State), 8).astype(np.uint8) if step % 2 else np.zeros(8, "u1")
        counts = np.where(states == State.NO_GRADIENT, 0, 20).astype(np.int64)
        now = generator.normal(size=(8, SKETCH_WIDTH)).astype(np.float32)
        marks = generator.random(sum(sizes)) < 0.01
        made = []
        for name, memory, last in zip((native, "none"), memories, lasts, strict=True):
            for view, mark in zip(
                memory.fresh(np.array(sizes)), np.split(marks, np.cumsum(sizes)[:-1]), strict=True
            ):
                if view is not None:
                    view[:] = mark
            kernel.select(name)
            sketches = SketchMemory(now.copy(), last, counts, sketched == "with cosines")
            made.append(
                gradient_rows(records, states, factor, memory, sketches if sketched else None)
            )
        kernel.select(native)
        (filled, mirrored), (expected, also) = made
        assert mirrored == also
        for name in filled.dtype.names:
            tolerance = 1e-6 if name == "grad_cosine" else 0.0
            np.testing.assert_allclose(filled[name], expected[name], rtol=tolerance, err_msg=name)
        np.testing.assert_array_equal(*lasts)


def test_rows_of_weights_filled_in_c_are_those_of_numpy() -> None:
    records, native = _records(8, np.random.default_rng(1)), kernel.instruction_set
    states = np.array([0, 5, 6, 7, 1, 2, 3, 4], np.uint8)
    filled = moment_rows(Family.WEIGHT, records, states, 0.5)
    kernel.select("none")
    expected = moment_rows(Family.WEIGHT, records, states, 0.5)
    kernel.select(native)
    for name in filled.dtype.names:
        np.testing.assert_array_equal(filled[name], expected[name], err_msg=name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": np.zeros(2, row_dtype(Family.GRAD))},
        {"states": np.zeros(4, np.uint8)},
        {"records": np.zeros(2, kernel.MOMENTS)},
        {"empty": np.zeros(8, np.uint8)},
        {"has_value": np.zeros(8, np.uint8)},
        {"memory": (np.array([1, -1, 0]), *(np.zeros(0, t) for t in ("u1", "u8", "u1")))},
        {"memory": (np.array([1, 1, 1]), *(np.zeros(2, t) for t in ("u1", "u8", "u1")))},
        {"sketches": (np.zeros((3, 31), "f4"), np.zeros((3, 32), "f4"), np.zeros(3, "i8"), True)},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    if kernel.fill_rows is None:
        pytest.skip("there is no C here")
    given: dict[str, Any] = {
        "rows": np.zeros(3, row_dtype(Family.GRAD)),
        "empty": np.zeros(1, row_dtype(Family.GRAD)),
        "has_value": HAS_VALUE,
        "records": np.zeros(3, kernel.MOMENTS),
        "states": np.zeros(3, np.uint8),
        "factor": 1.0,
        "memory": None,
        "sketches": None,
    }
    kernel.fill_rows(*given.values())
    with pytest.raises(ValueError):
        kernel.fill_rows(*(given | wrong).values())
