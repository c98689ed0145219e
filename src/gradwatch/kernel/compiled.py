"""The C kernel behind the same signatures as `plain`: makes the arrays it fills."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel import _native
from gradwatch.kernel.batch import (
    ADAM,
    MOMENTS,
    SKETCH_WIDTH,
    UPDATE,
    Batch,
    Beyond,
    Bins,
    Cells,
    Dtype,
)

_Touched = Sequence[NDArray[np.uint8] | None] | None
_Buffers = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]

FLOAT_BINS = (-149, 277)
DOUBLE_BINS = (-1074, 2098)
"""Lowest exponent and number of bins, for batches without and with float64."""


nonfinite = _native.nonfinite


def _buffers(batch: Batch) -> _Buffers:
    return batch.pointers, batch.counts, batch.dtypes, batch.rows


def measure(batch: Batch, touched: _Touched = None) -> NDArray[np.void]:
    """The record of every tensor."""
    records = np.empty(len(batch), MOMENTS)
    _native.measure(_buffers(batch), records, touched, None, None)
    return records


def measure_with_sketches(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
    touched: _Touched = None,
) -> tuple[NDArray[np.void], NDArray[np.float32]]:
    """The records and the sketches, in one pass."""
    records = np.empty(len(batch), MOMENTS)
    sketches = np.empty((len(batch), SKETCH_WIDTH), np.float32)
    _native.measure(_buffers(batch), records, touched, None, (seeds, offsets, wholes, sketches))
    return records, sketches


def measure_with_histograms(
    batch: Batch, touched: _Touched = None
) -> tuple[NDArray[np.void], list[Bins]]:
    """The records and the histograms, in one pass."""
    records = np.empty(len(batch), MOMENTS)
    counts, lowest = _dense(batch)
    _native.measure(_buffers(batch), records, touched, counts, None)
    return records, _sparse(counts, lowest)


def measure_all(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
    touched: _Touched = None,
) -> tuple[NDArray[np.void], list[Bins], NDArray[np.float32]]:
    """The records, the histograms and the sketches, in one pass."""
    records = np.empty(len(batch), MOMENTS)
    counts, lowest = _dense(batch)
    sketches = np.empty((len(batch), SKETCH_WIDTH), np.float32)
    _native.measure(_buffers(batch), records, touched, counts, (seeds, offsets, wholes, sketches))
    return records, _sparse(counts, lowest), sketches


def _dense(batch: Batch) -> tuple[NDArray[np.uint64], int]:
    """Room for every exponent of the batch's types, and the lowest exponent."""
    lowest, width = DOUBLE_BINS if (batch.dtypes == Dtype.F64).any() else FLOAT_BINS
    return np.zeros((len(batch), 2, width), np.uint64), lowest


def _sparse(counts: NDArray[np.uint64], lowest: int) -> list[Bins]:
    """Each tensor's dense counts cut down to the stretch that is occupied (views, no copies)."""
    used = (counts[:, 0] | counts[:, 1]) != 0
    first = used.argmax(axis=1)
    last = used.shape[1] - used[:, ::-1].argmax(axis=1)
    # Without an occupied bin argmax is 0 from both ends: an empty stretch at exponent 0.
    empty = ~used[np.arange(len(used)), first]
    first[empty] = last[empty] = -lowest
    stretches = zip(counts, first.tolist(), last.tolist(), strict=True)
    return [Bins(lowest + a, both[0, a:b], both[1, a:b]) for both, a, b in stretches]


def update(before: Batch, after: Batch, grads: Batch | None) -> NDArray[np.void]:
    """Norms and counts of the change of every tensor."""
    records = np.empty(len(before), UPDATE)
    given = None if grads is None else _buffers(grads)
    _native.step(_buffers(before), _buffers(after), given, None, None, None, records, None)
    return records


def adam(
    grads: Batch,
    second_moments: Batch,
    correction: NDArray[np.float64],
    eps: NDArray[np.float64],
) -> NDArray[np.void]:
    """How g/(√v̂+ε) is distributed."""
    records = np.empty(len(grads), ADAM)
    given, second = _buffers(grads), _buffers(second_moments)
    _native.step(None, None, given, second, correction, eps, None, records)
    return records


def step(
    before: Batch,
    after: Batch,
    grads: Batch,
    second_moments: Batch,
    correction: NDArray[np.float64],
    eps: NDArray[np.float64],
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """What a step changed and how g/(√v̂+ε) is distributed, in one pass."""
    updates, ratios = np.empty(len(before), UPDATE), np.empty(len(before), ADAM)
    weights, gradients = (_buffers(before), _buffers(after)), _buffers(grads)
    moments = _buffers(second_moments)
    _native.step(*weights, gradients, moments, correction, eps, updates, ratios)
    return updates, ratios


def sketch(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
) -> NDArray[np.float32]:
    """32 signed sums per tensor."""
    sketches = np.empty((len(batch), SKETCH_WIDTH), np.float32)
    _native.sketch(_buffers(batch), (seeds, offsets, wholes, sketches))
    return sketches


def hashes(batch: Batch, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A mark of the bits of every tensor."""
    marks = np.empty(len(batch), np.uint64)
    _native.hashes(_buffers(batch), offsets, marks)
    return marks


def row_spread(batch: Batch) -> NDArray[np.float32]:
    """The spread of up to 16 rows around row 0."""
    spreads = np.empty(len(batch), np.float32)
    _native.row_spread(_buffers(batch), spreads)
    return spreads


def count_cells(
    batch: Batch, exponents: NDArray[np.int64], firsts: NDArray[np.float64], cells: int
) -> Cells:
    """Counts on uniform grids."""
    counts = np.empty((len(batch), max(cells, 0)), np.uint64)
    outside = np.empty((len(batch), 3), np.uint64)
    _native.count_cells(_buffers(batch), (exponents, firsts, counts, outside), cells)
    return Cells(counts, *outside.T)


def list_beyond(
    batch: Batch, lows: NDArray[np.float64], highs: NDArray[np.float64], most: int
) -> Beyond:
    """The elements at or beyond limits."""
    totals = np.empty(len(batch), np.uint64)
    indices = np.empty((len(batch), max(most, 0)), np.int64)
    _native.list_beyond(_buffers(batch), (lows, highs, totals, indices), most)
    return Beyond(totals, [row[:n] for row, n in zip(indices, totals.tolist(), strict=True)])


def copy(source: Batch, target: Batch) -> None:
    """Copy the bytes of every tensor."""
    _native.copy(_buffers(source), _buffers(target))


def read(batch: Batch) -> float:
    """Touch every byte once."""
    return _native.read(_buffers(batch))
