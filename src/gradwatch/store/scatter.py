"""Putting pieces of [step, subject] where they belong in the whole table."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats import HAS_VALUE


def put(
    target: NDArray[Any],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    mine: NDArray[np.bool_],
    piece: NDArray[Any],
) -> None:
    """target[rows, columns] = piece, by slices where both are contiguous (much faster)."""
    if not mine.all():
        rows, piece = rows[mine], piece[mine]
    if not len(rows) or not len(columns):
        return
    if _contiguous(rows) and _contiguous(columns):
        target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = piece
    elif _contiguous(columns):
        target[rows, columns[0] : columns[-1] + 1] = piece
    else:
        target[rows[:, None], columns[None, :]] = piece


def _contiguous(index: NDArray[np.int64]) -> bool:
    return bool(index[-1] - index[0] == len(index) - 1 and (np.diff(index) == 1).all())


def blank(values: NDArray[Any], states: NDArray[np.uint8], fill: float) -> None:
    """No number beside a state that has none."""
    without = ~HAS_VALUE[states]
    if without.any():
        values[without] = fill
