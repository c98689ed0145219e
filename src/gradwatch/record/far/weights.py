"""Everything there is to know of weights on accelerators, sent off together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.far.alike import Alike, alike
from gradwatch.record.far.arithmetic import moments_of, records_of
from gradwatch.record.far.bins import bins, bins_of, histogram_of
from gradwatch.record.far.marks import bits_sum, hashes_of
from gradwatch.record.far.rows import spread, spread_of, zero_rows
from gradwatch.record.far.transfer import Load, Parts
from gradwatch.record.far.trying import tried
from gradwatch.record.measuring import Measured
from gradwatch.record.rows import moment_rows
from gradwatch.run import Histogram
from gradwatch.stats import Family


@dataclass(frozen=True)
class Group:
    """Where the numbers of tensors of one size lie in the transfer."""

    indices: list[int]
    widths: list[int]
    rows: int
    sums: slice
    hashes: slice
    zero_rows: slice
    spread: slice
    bins: slice


def send(load: Load, tensors: Sequence[Tensor | None], *, histograms: bool) -> list[Group]:
    """Measure the weights as they are now."""
    return [_sent(load, group, histograms) for group in alike(tensors)]


def _sent(load: Load, group: Alike, histograms: bool) -> Group:
    device = group.matrix.device
    counts = tried("histograms", device, lambda: bins(group)) if histograms else None
    far = tried("spreads of rows", device, lambda: spread(group)) if group.rows > 1 else None
    return Group(
        list(group.indices),
        [piece.shape[1] for piece in group.pieces],
        group.rows,
        load.add(*moments_of(group)),
        load.add(bits_sum(group)),
        load.add(*([zero_rows(group)] if group.rows else [])),
        load.add(*([] if far is None else [far])),
        load.add(*(counts or ())),
    )


def measured(groups: Sequence[Group], states: NDArray[np.uint8], arrived: Parts) -> Measured:
    """The rows, now that the numbers are here."""
    records = np.zeros(len(states), kernel.MOMENTS)
    for group in groups:
        records[group.indices] = records_of(group.widths, arrived[group.sums])
        for counts in arrived[group.zero_rows]:
            records["zero_rows"][group.indices] = counts
    rows = moment_rows(Family.WEIGHT, records, states)
    found: list[Histogram | None] = [None] * len(states)
    for group in groups:
        rows["weight_hash"][group.indices] = hashes_of(arrived[group.hashes][0])
        for numbers in arrived[group.spread]:
            rows["weight_row_spread"][group.indices] = spread_of(numbers)
        if arrived[group.bins]:
            counts, above = arrived[group.bins]
            table = bins_of(counts.reshape(len(group.indices), -1))
            for index, cut, infinite in zip(group.indices, table, above, strict=True):
                found[index] = histogram_of(records[index], cut, infinite)
    return Measured(Family.WEIGHT, rows, states, found if any(found) else ())
