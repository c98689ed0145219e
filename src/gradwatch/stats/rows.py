"""The rows of a family on one step, made of the kernel's records; and the memory of their rows.

Used wherever tensors are measured: by the recorder, and of arrays that somebody hands in.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradwatch.stats.catalogue import HAS_VALUE, Family, family_stats, row_dtype

_SCALED = ("norm", "mean", "std", "abs_mean", "abs_max", "min", "max")
_COPIED = ["count", "nan", "zero_rows", "skewness", "kurtosis", *_SCALED]


def empty_rows(family: Family, count: int) -> NDArray[np.void]:
    """Rows without a value: NaN in every float, 0 in every integer."""
    return np.repeat(_EMPTY[family], count)


def blank(family: Family, rows: NDArray[np.void], states: NDArray[np.uint8]) -> NDArray[np.void]:
    """Take the values out of rows whose state says there is none."""
    rows[~HAS_VALUE[states]] = _EMPTY[family]
    return rows


def moment_rows(
    family: Family, records: NDArray[np.void], states: NDArray[np.uint8], factor: float = 1.0
) -> NDArray[np.void]:
    """Rows of gradients or weights; `factor` multiplies what has the tensor's unit."""
    rows = empty_rows(family, len(records))
    rows[[f"{family}_{name}" for name in _COPIED]] = records[_COPIED]
    rows[f"{family}_inf"] = records["pos_inf"] + records["neg_inf"]
    with np.errstate(invalid="ignore", over="ignore"):
        for name in _SCALED:
            rows[f"{family}_{name}"] *= factor
        rows[f"{family}_zero_fraction"] = records["zeros"] / records["count"]
    return blank(family, rows, states)


def mirrored(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which gradients' largest and smallest elements differ in the sign alone."""
    top = rows["grad_abs_max"]
    both: NDArray[np.bool_] = (rows["grad_max"] == top) & (rows["grad_min"] == -top) & (top > 0)
    return both


def update_rows(records: NDArray[np.void], states: NDArray[np.uint8]) -> NDArray[np.void]:
    """Rows of what a step changed, from the kernel's records of it."""
    rows = empty_rows(Family.UPDATE, len(records))
    rows["update_norm"] = records["update_norm"]
    with np.errstate(invalid="ignore", divide="ignore"):
        rows["update_ratio"] = records["update_norm"] / records["before_norm"]
        rows["update_lost_fraction"] = records["lost"] / records["with_gradient"]
    rows["update_ratio"][~np.isfinite(rows["update_ratio"])] = np.nan
    return blank(Family.UPDATE, rows, states)


def _empty_row(family: Family) -> NDArray[np.void]:
    row = np.zeros((), row_dtype(family))
    for stat in family_stats(family):
        if np.dtype(stat.dtype).kind == "f":
            row[str(stat)] = np.nan
    return row


_EMPTY = {family: _empty_row(family) for family in Family}


# -- rows of tensors -------------------------------------------------------------------------------

WINDOW = 64
"""Recorded gradients in which a row without any is called dead."""


class RowMemory:
    """Remembers, for every row (dim 0) of every tensor, the last 64 recorded gradients.

    All rows lie one after another, so that a step costs a few passes over one small array and not a
    few calls per tensor. Bit i of a row's word says whether it was touched i recorded steps ago.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self._edges = np.concatenate([[0], np.cumsum(rows)]).astype(np.intp)
        self._marks = np.zeros(int(self._edges[-1]), np.uint8)
        self._recent = np.zeros(len(self._marks), np.uint64)
        self._ever = np.zeros(len(self._marks), np.uint8)

    def fresh(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | None]:
        """Cleared marks for the kernel; None for a tensor that has no rows this time."""
        self._marks.fill(0)
        spans = zip(pairwise(self._edges.tolist()), rows.tolist(), strict=True)
        return [self._marks[a:b] if 0 < n == b - a else None for (a, b), n in spans]

    def remember(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Take the marks in: rows of each tensor untouched in the window, and untouched ever."""
        self._recent <<= np.uint64(1)
        self._recent |= self._marks
        self._ever |= self._marks
        return self._count(self._recent == 0), self._count(self._ever == 0)

    def _count(self, silent: NDArray[np.bool_]) -> NDArray[np.uint64]:
        so_far = np.concatenate([[0], np.cumsum(silent)])
        return np.diff(so_far[self._edges]).astype(np.uint64)
