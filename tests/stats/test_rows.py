"""The memory of rows, against lists of everything that was seen."""

from typing import Any

import numpy as np

from gradwatch.stats.rows import WINDOW, RowMemory


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
