"""The rows of a family on one step, made of the kernel's records; and the memory of their rows.

Used wherever tensors are measured: by the recorder, and of arrays that somebody hands in.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import gradwatch.kernel as kernel
from gradwatch.stats.catalogue import HAS_VALUE, Family, family_stats, row_dtype

_SCALED = ("norm", "mean", "std", "abs_mean", "abs_max", "min", "max")
_COPIED = ["count", "nan", "zero_rows", "skewness", "kurtosis", *_SCALED]
_COLUMNS = {
    family: [f"{family}_{name}" for name in _COPIED] for family in (Family.GRAD, Family.WEIGHT)
}


def empty_rows(family: Family, count: int) -> NDArray[np.void]:
    """Rows without a value: NaN in every float, 0 in every integer."""
    return np.repeat(_EMPTY[family], count)


def moment_rows(
    family: Family, records: NDArray[np.void], states: NDArray[np.uint8], factor: float = 1.0
) -> NDArray[np.void]:
    """Rows of gradients or weights; `factor` multiplies what has the tensor's unit."""
    if kernel.fill_rows is not None:
        rows = np.empty(len(records), row_dtype(family))
        empty = _EMPTY[family]
        kernel.fill_rows(rows, empty, HAS_VALUE, records, states, factor, None, None)
        return rows
    rows = empty_rows(family, len(records))
    rows[_COLUMNS[family]] = records[_COPIED]
    if factor != 1.0:
        for name in _SCALED:
            rows[f"{family}_{name}"] *= factor
    rows[f"{family}_inf"] = records["pos_inf"] + records["neg_inf"]
    with np.errstate(invalid="ignore"):
        rows[f"{family}_zero_fraction"] = records["zeros"] / records["count"]
    return blank(family, rows, states)


def gradient_rows(
    records: NDArray[np.void],
    states: NDArray[np.uint8],
    factor: float,
    memory: "RowMemory",
    sketches: "SketchMemory | None" = None,
) -> tuple[NDArray[np.void], int]:
    """Whole rows of gradients: moments, what the memory says of their rows, sketches if any.

    Also how many of the gradients are mirrored: their largest and their smallest element differ in
    the sign alone.
    """
    if kernel.fill_rows is not None:
        rows = np.empty(len(records), _GRADIENT_ROW)
        empty, arrays = _EMPTY[Family.GRAD], memory.arrays
        return rows, kernel.fill_rows(
            rows, empty, HAS_VALUE, records, states, factor, arrays, sketches
        )
    rows = moment_rows(Family.GRAD, records, states, factor)
    rows["grad_dead_rows"], rows["grad_untouched_rows"] = memory.remember()
    if sketches is not None:
        now, last, counts, cosines = sketches
        fill_sketches(rows, now, factor, counts > 0, last, cosines=cosines)
    return blank(Family.GRAD, rows, states), int(np.count_nonzero(mirrored(rows)))


def mirrored(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which gradients' largest and smallest elements differ in the sign alone."""
    top = rows["grad_abs_max"]
    both: NDArray[np.bool_] = (rows["grad_max"] == top) & (rows["grad_min"] == -top) & (top > 0)
    return both


class SketchMemory(NamedTuple):
    """Sketches of this step and of the last one before, which they then become."""

    now: NDArray[np.float32]
    last: NDArray[np.float32]
    counts: NDArray[np.int64]
    """Elements of each gradient; where there is none, there is no sketch."""
    cosines: bool


def blank(family: Family, rows: NDArray[np.void], states: NDArray[np.uint8]) -> NDArray[np.void]:
    """Take the values out of rows whose state says there is none."""
    without = ~HAS_VALUE[states]
    if without.any():
        rows[without] = _EMPTY[family]
    return rows


def fill_sketches(
    rows: NDArray[np.void],
    sketches: NDArray[np.float32],
    multiplier: float,
    seen: NDArray[np.bool_],
    last: NDArray[np.float32],
    *,
    cosines: bool,
) -> None:
    """Sketches of gradients, and their cosines to the last ones, which these then become.

    `multiplier` is applied to the sketches in place; `seen` says which gradients there were.
    """
    sketches *= np.float32(multiplier)
    if cosines:
        rows["grad_cosine"] = _cosine(sketches, last)
    last[seen] = sketches[seen]


def _cosine(now: NDArray[np.float32], last: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = now.astype(np.float64), last.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        dot = np.einsum("ij,ij->i", a, b)
        size = np.sqrt(np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b))
        return np.where(size > 0, dot / size, np.nan)


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
_GRADIENT_ROW = row_dtype(Family.GRAD)


def name_seed(name: str) -> int:
    """What scrambles a tensor's sketch: the same in every process, so that shards add up."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest())


# -- rows of tensors -------------------------------------------------------------------------------

WINDOW = 64
"""Recorded gradients in which a row without any is called dead."""


class RowMemory:
    """Remembers, for every row (dim 0) of every tensor, the last 64 recorded gradients.

    All rows lie one after another, so that a step costs a few passes over one small array and not a
    few calls per tensor. Bit i of a row's word says whether it was touched i recorded steps ago.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = np.array(rows, np.int64)
        starts = np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)
        self._usual = self.rows.tobytes()
        self._marks = np.zeros(int(starts[-1]), np.uint8)
        self._recent = np.zeros(len(self._marks), np.uint64)
        self._ever = np.zeros(len(self._marks), np.uint8)
        self._views = [self._marks[a:b] for a, b in pairwise(starts)]
        self._given = [view if len(view) else None for view in self._views]
        self._filled = np.flatnonzero(self.rows)
        self._starts = starts[:-1][self._filled]
        self.arrays = self.rows, self._marks, self._recent, self._ever
        """As the kernel takes them."""

    def fresh(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8] | None]:
        """Cleared marks for the kernel; None for a tensor that has no rows this time."""
        self._marks.fill(0)
        if rows.tobytes() == self._usual:  # bytes: the quickest way to compare small arrays
            return self._given
        fits = (rows == self.rows).tolist()
        return [view if fit else None for view, fit in zip(self._given, fits, strict=True)]

    def mark(self, index: int, rows: NDArray[np.int64]) -> None:
        """Mark rows of a tensor the kernel could not read."""
        if self.rows[index]:
            self._views[index][rows] = 1

    def remember(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Take the marks in: rows of each tensor untouched in the window, and untouched ever."""
        self._recent <<= np.uint64(1)
        self._recent |= self._marks
        self._ever |= self._marks
        return self._count(self._recent == 0), self._count(self._ever == 0)

    def _count(self, silent: NDArray[np.bool_]) -> NDArray[np.uint64]:
        counts = np.zeros(len(self.rows), np.uint64)
        if len(self._filled):
            counts[self._filled] = np.add.reduceat(silent, self._starts, dtype=np.uint64)
        return counts
