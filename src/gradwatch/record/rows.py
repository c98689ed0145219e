"""The rows of a step: how they are made of the kernel's records, and whom they are handed to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.run import Histogram, Subject
from gradwatch.stats import HAS_VALUE, Family, State, entry, family_stats, row_dtype

Reading = tuple[Family, Sequence[Subject], NDArray[np.void], NDArray[np.uint8]]
"""Rows of one family on one step that a signal made: their subjects, the rows, their states."""
Parts = list[NDArray[np.float64]]
"""The numbers of small tensors that have come over from a device, in the order they were sent."""


class FamilyRows(NamedTuple):
    """One family of all parameters of an optimizer; histograms where they are due."""

    family: Family
    rows: NDArray[np.void]
    states: NDArray[np.uint8]
    histograms: Sequence[Histogram | None] = ()


@dataclass
class ReadyRows:
    """What `PendingRows` turned out to be."""

    readings: Sequence[Reading] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    families: Sequence[FamilyRows] = ()
    skipped: bool = False
    """The optimizer was told to leave the weights alone: the scaled gradients overflowed."""


class PendingRows(NamedTuple):
    """Small tensors whose numbers are still on a device, and what to make of them.

    Without tensors they are ready at once, as everything measured on the CPU is.
    """

    parts: Sequence[Tensor]
    finish: Callable[[Parts], ReadyRows]


def ready(
    families: Sequence[FamilyRows], scalars: Mapping[str, float] | None = None
) -> PendingRows:
    """Rows that wait for nothing."""
    rows = ReadyRows(families=families, scalars=scalars or {})
    return PendingRows((), lambda _: rows)


class StepRows(NamedTuple):
    """The rows of one family on one step, as they went to the writer."""

    family: Family
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]


class StepMonitor(Protocol):
    """Judges a step right after it, within the budget: the live checks."""

    @property
    def should_stop(self) -> bool:
        """Whether the training cannot recover."""

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """The subjects that ids stand for, whenever some are declared."""

    def noted(self, info: Mapping[str, Any]) -> None:
        """What was found out about the run: the kind of its loss, its number of classes."""

    def after_step(self, step: int, rows: Sequence[StepRows], scalars: Mapping[str, float]) -> None:
        """Judge the rows of a step that has just been recorded."""

    def close(self) -> None:
        """The training is over."""


# -- making rows -------------------------------------------------------------------------------

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
    rows = empty_rows(family, len(records))
    rows[_COLUMNS[family]] = records[_COPIED]
    if factor != 1.0:
        for name in _SCALED:
            rows[f"{family}_{name}"] *= factor
    rows[f"{family}_inf"] = records["pos_inf"] + records["neg_inf"]
    with np.errstate(invalid="ignore"):
        rows[f"{family}_zero_fraction"] = records["zeros"] / records["count"]
    return blank(family, rows, states)


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
    rows["grad_sketch"] = sketches
    if cosines:
        rows["grad_cosine"] = _cosine(sketches, last)
    rows["grad_sketch"][~seen] = np.nan
    last[seen] = sketches[seen]


def _cosine(now: NDArray[np.float32], last: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = now.astype(np.float64), last.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        dot = np.einsum("ij,ij->i", a, b)
        size = np.sqrt(np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b))
        return np.where(size > 0, dot / size, np.nan)


def nothing(family: Family, count: int, state: State) -> FamilyRows:
    """Rows that only say why there is no value."""
    return FamilyRows(family, empty_rows(family, count), np.full(count, state, np.uint8))


def _empty_row(family: Family) -> NDArray[np.void]:
    row = np.zeros((), row_dtype(family))
    for item in family_stats(family):
        if np.dtype(entry(item.stat).dtype).kind == "f":
            row[str(item.stat)] = np.nan
    return row


_EMPTY = {family: _empty_row(family) for family in Family}
