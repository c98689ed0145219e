"""One call of the kernel for all tensors of a ward, and the rows that come of it."""

from collections.abc import Sequence
from math import frexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Bins
from gradwatch.record.rows import blank, empty_rows, moment_rows
from gradwatch.record.sparse import sparse_record
from gradwatch.record.tracks import Gathered, gather
from gradwatch.record.ward import Ward
from gradwatch.run import Histogram
from gradwatch.stats import Family, State


class Measured(NamedTuple):
    """The rows of one family, and its histograms where they were asked for."""

    family: Family
    rows: NDArray[np.void]
    states: NDArray[np.uint8]
    histograms: Sequence[Histogram | None] = ()


def gradients(
    ward: Ward,
    *,
    multiplier: float = 1.0,
    clipped: bool = False,
    histograms: bool = False,
    sketches: bool = True,
    cosines: bool = True,
) -> Measured:
    """The gradients as they are in memory, times `multiplier`: what makes them raw."""
    grads = ward.gradients()
    found = gather(grads)
    touched = ward.memory.fresh(found.batch.rows)
    records, bins, sketch = kernel.measure(
        found.batch,
        bins=histograms,
        seeds=ward.seeds if sketches else None,
        offsets=ward.offsets,
        wholes=ward.wholes,
        touched=touched,
    )
    states = found.states.copy()
    for index in np.flatnonzero(states == State.UNSUPPORTED):
        _measure_sparse(ward, int(index), grads[index], records, states)
    if clipped:
        states[states == State.MEASURED] = State.CLIPPED
    rows = moment_rows(Family.GRAD, records, states, multiplier)
    rows["grad_dead_rows"], rows["grad_untouched_rows"] = ward.memory.remember()
    if sketch is not None:
        sketch *= np.float32(multiplier)
        rows["grad_sketch"] = sketch
        if cosines:
            rows["grad_cosine"] = cosine(sketch, ward.last_sketch)
        seen = found.batch.counts > 0
        rows["grad_sketch"][~seen] = np.nan  # nothing there, or too large and sparse
        ward.last_sketch[seen] = sketch[seen]
    if histograms and frexp(multiplier)[0] != 0.5:
        raw = _scaled(found, multiplier)  # named, so that its memory lives through the call
        bins = kernel.measure(raw.batch, bins=True).bins
        shift = 0
    else:
        shift = frexp(multiplier)[1] - 1
    return Measured(
        Family.GRAD,
        blank(Family.GRAD, rows, states),
        states,
        [
            _histogram(record, cut, shift) if count else None
            for record, cut, count in zip(records, bins, found.batch.counts, strict=True)
        ]
        if histograms
        else (),
    )


def _measure_sparse(
    ward: Ward,
    index: int,
    gradient: Tensor | None,
    records: NDArray[np.void],
    states: NDArray[np.uint8],
) -> None:
    """Fill in a sparse gradient that is too large to be made dense."""
    if gradient is not None and (sparse := sparse_record(gradient)) is not None:
        records[index], rows = sparse
        ward.memory.mark(index, rows)
        states[index] = State.MEASURED


def mark_cut(measured: Measured) -> bool:
    """Mark gradients cut off at a value, which a sample may have missed; whether there are any.

    Where several tensors have the same largest and, negated, smallest element, to the bit, they
    were cut there; no two gradients agree in both by chance.
    """
    rows, states = measured.rows, measured.states
    top = rows["grad_abs_max"]
    both = (rows["grad_max"] == top) & (rows["grad_min"] == -top) & (top > 0)
    if np.count_nonzero(both) < 2:
        return False
    limits, counts = np.unique(top[both], return_counts=True)
    if not (counts > 1).any():
        return False
    cut = np.isin(top, limits[counts > 1]) & (states == State.MEASURED)
    states[cut] = State.CLIPPED
    return True


def weights(ward: Ward, *, histograms: bool = False) -> Measured:
    """The weights as they are now, their hashes and the spread of their rows."""
    found = gather(ward.parameters())
    records, bins, _ = kernel.measure(found.batch, bins=histograms)
    rows = moment_rows(Family.WEIGHT, records, found.states)
    rows["weight_row_spread"] = kernel.row_spread(found.batch)
    rows["weight_hash"] = kernel.hashes(found.batch, ward.offsets)
    return Measured(
        Family.WEIGHT,
        blank(Family.WEIGHT, rows, found.states),
        found.states,
        [_histogram(r, b, 0) for r, b in zip(records, bins, strict=True)] if histograms else (),
    )


def nothing(family: Family, count: int, state: State) -> Measured:
    """Rows that only say why there is no value."""
    return Measured(family, empty_rows(family, count), np.full(count, state, np.uint8))


def cosine(now: NDArray[np.float32], last: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = now.astype(np.float64), last.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        dot = np.einsum("ij,ij->i", a, b)
        size = np.sqrt(np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b))
        return np.where(size > 0, dot / size, np.nan)


def _scaled(found: Gathered, multiplier: float) -> Gathered:
    """Copies in raw units: a histogram's bins cannot be multiplied by just any number."""
    scaled: list[Tensor | None] = [
        None
        if tensor is None
        else tensor.detach().float().mul(multiplier)
        if tensor.itemsize < 8
        else tensor.detach().mul(multiplier)
        for tensor in found.tensors
    ]
    return gather(scaled)


def _histogram(record: np.void, bins: Bins, shift: int) -> Histogram | None:
    if not record["count"]:
        return None
    return Histogram(
        bins.first_exponent + shift,
        bins.negative,
        bins.positive,
        int(record["zeros"]),
        int(record["nan"]),
        int(record["pos_inf"]),
        int(record["neg_inf"]),
    )
