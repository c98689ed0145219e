"""Moments, counts and histograms with numpy."""

from collections.abc import Sequence
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import MOMENTS, Batch, Bins
from gradwatch.kernel.merging import blank, merge, row, scaled
from gradwatch.kernel.plain.checks import check, check_touched
from gradwatch.kernel.plain.marks import sketch
from gradwatch.kernel.plain.memory import pieces
from gradwatch.kernel.plain.rows import touched_rows

_LOWEST, _HIGHEST = -1074, 1023
"""The exponents of float64, which hold those of every other type."""


def measure(
    batch: Batch, touched: Sequence[NDArray[np.uint8] | None] | None = None
) -> NDArray[np.void]:
    """The record of every tensor; marks the rows that are not all zero where asked to."""
    check(batch)
    check_touched(touched, batch)
    result = np.zeros(len(batch), MOMENTS)
    for index in range(len(batch)):
        parts = [piece_moments(piece) for _, piece in pieces(batch, index)]
        result[index] = (
            merge(np.array(parts, MOMENTS)) if parts else row(blank(np.zeros(1, MOMENTS)))
        )
        _note_rows(batch, index, result[index], touched[index] if touched is not None else None)
    return result


def measure_with_sketches(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
    touched: Sequence[NDArray[np.uint8] | None] | None = None,
) -> tuple[NDArray[np.void], NDArray[np.float32]]:
    """The records and the sketches of all tensors."""
    return measure(batch, touched), sketch(batch, seeds, offsets, wholes)


def measure_all(
    batch: Batch,
    seeds: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    wholes: NDArray[np.int64],
    touched: Sequence[NDArray[np.uint8] | None] | None = None,
) -> tuple[NDArray[np.void], list[Bins], NDArray[np.float32]]:
    """The records, the histograms and the sketches of all tensors."""
    return (
        *measure_with_histograms(batch, touched),
        sketch(batch, seeds, offsets, wholes),
    )


def measure_with_histograms(
    batch: Batch, touched: Sequence[NDArray[np.uint8] | None] | None = None
) -> tuple[NDArray[np.void], list[Bins]]:
    """The records and the histograms of all tensors."""
    return measure(batch, touched), [_bins(batch, index) for index in range(len(batch))]


def piece_moments(x: NDArray[np.float64]) -> np.void:
    """The record of float64 values at hand; rows are not looked at."""
    record = np.zeros(1, MOMENTS)
    record["count"] = x.size
    record["zeros"] = np.count_nonzero(x == 0.0)
    record["nan"] = np.count_nonzero(np.isnan(x))
    record["pos_inf"] = np.count_nonzero(x == np.inf)
    record["neg_inf"] = np.count_nonzero(x == -np.inf)
    finite = x[np.isfinite(x)]
    if finite.size == 0:
        return row(blank(record))
    _fill(row(record), finite)
    return row(record)


def _fill(record: np.void, x: NDArray[np.float64]) -> None:
    low, high = float(x.min()), float(x.max())
    largest = max(abs(low), abs(high))
    record["min"], record["max"], record["abs_max"] = low, high, largest
    # In units of a power of two near the largest element no power leaves the range of float64.
    exponent = int(np.frexp(largest)[1])
    x = np.ldexp(x, -exponent)
    mean = float(x.mean())
    centred = x - mean
    mean += float(centred.mean())  # what the first rounding left
    squares = centred * centred
    variance = float(squares.mean())
    flat = low == high or variance == 0.0
    record["mean"] = low if low == high else np.ldexp(mean, exponent)
    record["std"] = 0.0 if flat else np.ldexp(sqrt(variance), exponent)
    record["skewness"] = nan if flat else (squares * centred).mean() / (variance * sqrt(variance))
    record["kurtosis"] = nan if flat else (squares * squares).mean() / (variance * variance) - 3.0
    record["norm"] = scaled(sqrt(float((x * x).sum())), exponent)
    record["abs_mean"] = np.ldexp(float(np.abs(x).mean()), exponent)


def _note_rows(batch: Batch, index: int, record: np.void, marks: NDArray[np.uint8] | None) -> None:
    if batch.rows[index] == 0 or batch.counts[index] == 0:
        return
    touched = touched_rows(batch, index)
    record["zero_rows"] = np.count_nonzero(~touched)
    if marks is not None:
        marks |= touched


def _bins(batch: Batch, index: int) -> Bins:
    counts = np.zeros((2, _HIGHEST - _LOWEST + 1), np.uint64)
    for _, piece in pieces(batch, index):
        x = piece[np.isfinite(piece) & (piece != 0.0)]
        # frexp gives a mantissa in [½, 1), one power of two below the bin's convention.
        exponents = np.frexp(x)[1] - 1 - _LOWEST
        for sign, side in ((0, x < 0), (1, x > 0)):
            counts[sign] += np.bincount(exponents[side], minlength=counts.shape[1]).astype(
                np.uint64
            )
    return sparse(counts, _LOWEST)


def sparse(counts: NDArray[np.uint64], lowest: int) -> Bins:
    """Cut dense counts [negative | positive, exponent] down to the occupied stretch."""
    used = np.flatnonzero(counts.any(axis=0))
    if used.size == 0:
        return Bins(0, np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    first, last = int(used[0]), int(used[-1]) + 1
    return Bins(lowest + first, counts[0, first:last].copy(), counts[1, first:last].copy())
