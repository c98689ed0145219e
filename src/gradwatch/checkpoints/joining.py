"""From the parts of a tensor to what is known of it; joined in order, so it never varies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.index import Tensor
from gradwatch.checkpoints.measuring import LOWEST, Part
from gradwatch.kernel import MOMENTS, measure_arrays, merge
from gradwatch.run import Histogram


@dataclass(frozen=True)
class Lines:
    """The rows or the columns of a matrix."""

    rms: NDArray[np.float64]
    """Root mean square of each."""
    alive: NDArray[np.bool_]
    """Whether it holds anything but zeros."""
    exact: bool
    """Whether `rms` comes from all elements and not from a sample of them."""


@dataclass(frozen=True)
class Measured:
    """One tensor, measured."""

    tensor: Tensor
    moments: np.void
    histogram: Histogram | None
    mark: int
    first_bad: int | None
    spread: float
    rows: Lines | None
    columns: Lines | None
    row_prints: NDArray[np.uint64] | None

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def layer(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def role(self) -> str:
        """The last word of the name: weight, bias, running_mean …"""
        return self.name.rpartition(".")[2]

    @property
    def finite(self) -> int:
        return int(self.moments["count"]) - self.bad

    @property
    def bad(self) -> int:
        return sum(int(self.moments[name]) for name in ("nan", "pos_inf", "neg_inf"))

    @property
    def zero_fraction(self) -> float:
        count = int(self.moments["count"])
        return int(self.moments["zeros"]) / count if count else math.nan


def joined(tensor: Tensor, parts: Sequence[Part]) -> Measured:
    """All parts of one tensor, in the order of its pieces and lines."""
    records = [record for part in parts for record in part.moments]
    if records:
        moments = merge(np.concatenate(records))
    else:
        moments = measure_arrays([np.empty(tensor.shape, np.float32)])[0]
    touched = _touched(tensor, parts)
    if touched is not None:
        fixed = np.zeros(1, MOMENTS)
        fixed[0] = moments
        fixed["zero_rows"] = np.count_nonzero(~touched)
        moments = fixed[0]
    found = [part.first_bad for part in parts if part.first_bad is not None]
    rows, columns, prints = _structure(tensor, parts, touched)
    return Measured(
        tensor,
        moments,
        _histogram(parts, moments),
        sum(part.mark for part in parts) % (1 << 64),
        min(found) if found else None,
        next((part.spread for part in parts if not math.isnan(part.spread)), math.nan),
        rows,
        columns,
        prints,
    )


def _touched(tensor: Tensor, parts: Sequence[Part]) -> NDArray[np.bool_] | None:
    """Which rows hold anything but zeros; None where the rows were not followed."""
    if len(tensor.shape) < 2 or not parts or any(part.touched is None for part in parts):
        return None
    touched = np.zeros(tensor.shape[0], bool)
    for part in parts:
        assert part.touched is not None
        touched[part.first_row : part.first_row + len(part.touched)] |= part.touched != 0
    return touched


def _structure(
    tensor: Tensor, parts: Sequence[Part], touched: NDArray[np.bool_] | None
) -> tuple[Lines | None, Lines | None, NDArray[np.uint64] | None]:
    found = [part.structure for part in parts if part.structure is not None]
    if not found or len(found) != len(parts) or touched is None:
        return None, None, None
    numbers = np.concatenate([part.rows for part in found])
    if len(numbers) != tensor.shape[0]:
        return None, None, None  # rows longer than a block are not compared
    rms, prints = np.zeros(len(numbers)), np.zeros(len(numbers), np.uint64)
    rms[numbers] = np.concatenate([part.row_rms for part in found])
    prints[numbers] = np.concatenate([part.row_prints for part in found])
    squares = np.sum([part.column_squares for part in found], axis=0)
    used = sum(part.column_rows for part in found)
    alive = np.any([part.column_alive for part in found], axis=0)
    exact = found[0].exact
    rows = Lines(rms, touched, exact)
    return rows, Lines(np.sqrt(squares / max(used, 1)), alive, exact), prints


def _histogram(parts: Sequence[Part], moments: np.void) -> Histogram | None:
    found = [part.bins for part in parts if part.bins is not None]
    if not found:
        return None
    bins: NDArray[np.uint64] = np.stack(found).sum(axis=0, dtype=np.uint64)
    used = np.flatnonzero(bins.any(axis=0))
    first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (-LOWEST, -LOWEST)
    return Histogram(
        first + LOWEST,
        bins[0, first:last].copy(),
        bins[1, first:last].copy(),
        int(moments["zeros"]),
        int(moments["nan"]),
        int(moments["pos_inf"]),
        int(moments["neg_inf"]),
    )
