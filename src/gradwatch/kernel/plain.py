"""The kernel in numpy: slower, needs no compiler, and gives the same answers.

The functions without an underscore are those of `_native` (its .pyi says what they take), so that
either module can stand behind the functions of `gradwatch.kernel`.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ldexp, nan, sqrt

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import (
    DOUBLE_BINS,
    FLOAT_BINS,
    MOMENTS,
    SKETCH_WIDTH,
    Arrays,
    Batch,
    Dtype,
    blank,
    merge,
    row,
    scaled,
    sparse_bins,
)

PIECE = 1 << 20
"""Elements handled at a time, so that temporaries stay small beside the tensors."""
SPREAD_ROWS = 16

_BITS: dict[int, np.dtype[np.unsignedinteger]] = {
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_EVERY_GROUP_UP_TO, _BUNCH = 65_536, 8
_Words = NDArray[np.uint64]
_Bins = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]
"""First exponents and sizes of the stretches, and the counts: the first of them are filled."""
_Touched = Sequence[NDArray[np.uint8] | None] | None
_Sketches = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


# -- raw memory ----------------------------------------------------------------------------------


def _bits(batch: Batch, index: int) -> NDArray[np.unsignedinteger]:
    """The elements of one tensor as unsigned integers of their size, without a copy."""
    # As integers, equal means equal bits; as floats a NaN differs from itself and −0 equals 0.
    count, size = int(batch.counts[index]), Dtype(int(batch.dtypes[index])).itemsize
    kind = _BITS[size]
    if count == 0:
        return np.zeros(0, kind)
    memory = (ctypes.c_uint8 * (count * size)).from_address(int(batch.pointers[index]))
    return np.ctypeslib.as_array(memory).view(kind)


def _values(raw: NDArray[np.unsignedinteger], dtype: int) -> NDArray[np.float64]:
    """The bits as float64, exactly."""
    match Dtype(int(dtype)):
        case Dtype.F32:
            return raw.view(np.float32).astype(np.float64)
        case Dtype.F64:
            return raw.view(np.float64)
        case Dtype.BF16:
            # A bfloat16 is the upper half of a float32.
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        case Dtype.F16:
            return raw.view(np.float16).astype(np.float64)


def _pieces(batch: Batch, index: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """One tensor's elements in order: the flat index of each piece's start, and the piece."""
    raw = _bits(batch, index)
    for start in range(0, len(raw), PIECE):
        yield start, _values(raw[start : start + PIECE], int(batch.dtypes[index]))


def copy(source: Arrays, target: Arrays, /) -> None:
    """Copy the bytes of every tensor."""
    into, of = Batch(*target), Batch(*source)
    _check_twins(of, into)
    for index in range(len(of)):
        _bits(into, index)[:] = _bits(of, index)


def read(arrays: Arrays, /) -> float:
    """Touch every byte once: the least any statistic can cost."""
    batch = _checked(arrays)
    return sum(float(_bits(batch, i).sum(dtype=np.uint64)) for i in range(len(batch)))


def nonfinite(pointer: int, count: int, dtype: int, stride: int, /) -> int:
    """How many of the elements 0, stride, 2·stride … are NaN or infinite."""
    _check_stride(pointer, count, dtype, stride)
    raw = _bits(Batch.of([pointer], [count], [dtype]), 0)[::stride]
    return sum(
        int(np.count_nonzero(~np.isfinite(_values(np.ascontiguousarray(part), dtype))))
        for part in (raw[start : start + PIECE] for start in range(0, len(raw), PIECE))
    )


# -- moments, histograms, rows ------------------------------------------------------------------


def measure(
    arrays: Arrays,
    records: NDArray[np.void],
    touched: _Touched,
    bins: _Bins | None,
    sketches: _Sketches | None,
    /,
) -> None:
    """Fill the record of every tensor, and histograms, sketches and touched rows where asked to."""
    batch = _checked(arrays)
    _check_touched(touched, batch)
    for index in range(len(batch)):
        parts = [_piece_moments(piece) for _, piece in _pieces(batch, index)]
        records[index] = (
            merge(np.array(parts, MOMENTS)) if parts else row(blank(np.zeros(1, MOMENTS)))
        )
        _note_rows(batch, index, records[index], touched[index] if touched is not None else None)
    if bins is not None:
        _fill_bins(batch, bins)
    if sketches is not None:
        sketch(arrays, sketches)


def _piece_moments(x: NDArray[np.float64]) -> np.void:
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
    flat = low == high or variance == 0.0  # what is left of the powers is rounding
    record["mean"] = low if low == high else np.ldexp(mean, exponent)
    record["std"] = 0.0 if flat else np.ldexp(sqrt(variance), exponent)
    record["skewness"] = nan if flat else (squares * centred).mean() / (variance * sqrt(variance))
    record["kurtosis"] = nan if flat else (squares * squares).mean() / (variance * variance) - 3.0
    record["norm"] = scaled(sqrt(float((x * x).sum())), exponent)
    record["abs_mean"] = np.ldexp(float(np.abs(x).mean()), exponent)


def _note_rows(batch: Batch, index: int, record: np.void, marks: NDArray[np.uint8] | None) -> None:
    if batch.rows[index] == 0 or batch.counts[index] == 0:
        return
    touched = _touched_rows(batch, index)
    record["zero_rows"] = np.count_nonzero(~touched)
    if marks is not None:
        marks |= touched


def _fill_bins(batch: Batch, bins: _Bins) -> None:
    lowest, width = DOUBLE_BINS if (batch.dtypes == Dtype.F64).any() else FLOAT_BINS
    dense = np.zeros((len(batch), 2, width), np.uint64)
    for index, counts in enumerate(dense):
        for _, piece in _pieces(batch, index):
            x = piece[np.isfinite(piece) & (piece != 0.0)]
            # frexp gives a mantissa in [½, 1), one power of two below the bin's convention.
            exponents = np.frexp(x)[1] - 1 - lowest
            for sign, side in ((0, x < 0), (1, x > 0)):
                counts[sign] += np.bincount(exponents[side], minlength=width).astype(np.uint64)
    table = sparse_bins(dense, lowest)
    bins[0][:], bins[1][:] = table.first_exponents, table.sizes
    bins[2][: len(table.counts)] = table.counts


def _touched_rows(batch: Batch, index: int) -> NDArray[np.bool_]:
    """Which rows of a tensor hold an element that is not zero (NaN and Inf are not)."""
    rows = int(batch.rows[index])
    table = _bits(batch, index).reshape(rows, -1)
    touched = np.zeros(rows, bool)
    if table.shape[1] == 0:
        return touched
    at_once = max(1, PIECE // table.shape[1])
    for start in range(0, rows, at_once):
        # A double of the bits drops the sign, so that −0 is zero too.
        touched[start : start + at_once] = ((table[start : start + at_once] << 1) != 0).any(axis=1)
    return touched


def spread_rows(rows: int) -> list[int]:
    """The rows compared with row 0: at most 16, evenly spread, the same for the same shape."""
    others = min(SPREAD_ROWS, rows - 1)
    return [1 + k * (rows - 1) // others for k in range(others)]


def row_spread(arrays: Arrays, spreads: NDArray[np.float32], /) -> None:
    """Largest distance of those rows from row 0, relative to the largest norm among them all.

    0 where all are equal; NaN with fewer than two rows, without elements, or with a non-finite one.
    """
    batch = _checked(arrays)
    spreads[:] = np.nan
    for index, rows in enumerate(batch.rows):
        if rows >= 2 and batch.counts[index] > 0:
            table = _bits(batch, index).reshape(int(rows), -1)
            chosen = np.ascontiguousarray(table[[0, *spread_rows(int(rows))]])
            spreads[index] = _spread(_values(chosen, int(batch.dtypes[index])))


def _spread(table: NDArray[np.float64]) -> float:
    largest = float(np.abs(table).max())
    if not np.isfinite(largest):
        return float("nan")
    if largest == 0.0:
        return 0.0
    # Only the quotient counts: scaled by a power of two its squares stay in range, exactly.
    table = np.ldexp(table, -int(np.frexp(largest)[1]))
    distance = np.sqrt(((table[1:] - table[0]) ** 2).sum(axis=1)).max()
    return float(distance / np.sqrt((table**2).sum(axis=1)).max())


# -- sketches and hashes: what stands for a tensor's content in a few numbers --------------------


def scramble(word: _Words) -> _Words:
    """splitmix64's finisher: every output bit depends on every input bit."""
    # Products wrap modulo 2^64, as in C.
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


def sketch(arrays: Arrays, sketches: _Sketches, /) -> None:
    """32 signed sums of every tensor's finite elements.

    32 consecutive elements are a group, 8 groups of a large tensor or one of a small one a bunch. A
    bunch has one scrambled word: 3 bits say which of its groups is taken, 32 are the signs, and 5
    say by how much the lanes are turned before they are added to the buckets. So every element has
    a sign of its own, and a column of a matrix does not always fall into the same bucket. Times
    the root of the bunch's size, inner products are on average what they are without a choice.
    """
    batch = _checked(arrays)
    seeds, offsets, wholes, sums = sketches
    for index in range(len(batch)):
        with np.errstate(over="ignore", invalid="ignore"):  # sums of huge doubles may be Inf
            bunch = np.uint64(_BUNCH if wholes[index] > _EVERY_GROUP_UP_TO else 1)
            total = np.zeros(SKETCH_WIDTH)
            for start, x in _pieces(batch, index):
                position = _positions(int(offsets[index]) + start, len(x))
                total += _signed_sums(
                    position, np.where(np.isfinite(x), x, 0.0), seeds[index], bunch
                )
            sums[index] = total * np.sqrt(float(bunch))


def _signed_sums(
    position: _Words, x: NDArray[np.float64], seed: np.uint64, bunch: np.uint64
) -> NDArray[np.float64]:
    group = position >> np.uint64(5)
    word = scramble(seed + group // bunch * _GOLDEN)
    taken = group % bunch == (word >> np.uint64(37)) % bunch
    position, word, x = position[taken], word[taken], x[taken]
    lane = position & np.uint64(31)
    sign = 1.0 - 2.0 * ((word >> lane) & np.uint64(1)).astype(np.float64)
    bucket = (lane + (word >> np.uint64(32))) & np.uint64(31)
    total = np.zeros(SKETCH_WIDTH)
    # Several elements share a bucket: `total[bucket] += …` would keep only the last of them.
    np.add.at(total, bucket.astype(np.int64), sign * x)
    return total


def hashes(arrays: Arrays, offsets: NDArray[np.int64], sums: NDArray[np.uint64], /) -> None:
    """Sum of the scrambled (bits, flat index) of every tensor's elements, modulo 2^64."""
    batch = _checked(arrays)
    for index in range(len(batch)):
        raw, total = _bits(batch, index), np.uint64(0)
        for start in range(0, len(raw), PIECE):
            part = raw[start : start + PIECE].astype(np.uint64)
            # The index is mixed in, so that the hashes of shards add up to that of the whole.
            word = part + _positions(int(offsets[index]) + start, len(part)) * _GOLDEN
            word = (word ^ (word >> np.uint64(32))) * _FIRST
            total = np.add(total, (word ^ (word >> np.uint64(29))).sum(dtype=np.uint64))
        sums[index] = total


def _positions(first: int, count: int) -> _Words:
    return np.arange(count, dtype=np.uint64) + np.uint64(first & 0xFFFFFFFFFFFFFFFF)


# -- uniform grids and limits --------------------------------------------------------------------


def count_cells(
    arrays: Arrays,
    grids: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint64], NDArray[np.uint64]],
    cells: int,
    /,
) -> None:
    """Counts on uniform grids; exact, see `native/grid.h`."""
    batch = _checked(arrays)
    exponents, firsts, counts, outside = grids
    _check_grids(exponents, firsts, cells)
    counts[:], outside[:] = 0, 0
    for index in range(len(batch)):
        for _, x in _pieces(batch, index):
            finite = x[np.isfinite(x)]
            place = _cells_of(finite, int(exponents[index]), firsts[index])
            inside = place[(place >= 0) & (place < cells)].astype(np.intp)
            counts[index] += np.bincount(inside, minlength=cells).astype(np.uint64)
            below, above = np.count_nonzero(place < 0), np.count_nonzero(place >= cells)
            outside[index] += np.array([below, above, len(x) - len(finite)], np.uint64)


def _cells_of(x: NDArray[np.float64], exponent: int, first: np.float64) -> NDArray[np.float64]:
    """Cells counted from the first."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = x * np.ldexp(1.0, -exponent)
        # A negative element whose product is too small to be told from zero lies under it.
        scaled[(scaled == 0) & (x < 0)] = -0.5
        places: NDArray[np.float64] = np.floor(scaled) - first
    return places


def list_beyond(
    arrays: Arrays,
    limits: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64], NDArray[np.int64]],
    most: int,
    /,
) -> None:
    """The elements at or beyond limits, in their order."""
    batch = _checked(arrays)
    lows, highs, totals, indices = limits
    _check_limits(lows, highs, most)
    totals[:] = 0
    for index in range(len(batch)):
        for start, x in _pieces(batch, index):
            at = np.flatnonzero(((x <= lows[index]) | (x >= highs[index])) & np.isfinite(x))
            so_far = int(totals[index])
            room = indices[index, so_far : so_far + len(at)]
            room[:] = at[: len(room)] + start
            totals[index] += np.uint64(len(at))


# -- what an optimizer's step did ----------------------------------------------------------------


def step(
    before: Arrays | None,
    after: Arrays | None,
    grads: Arrays | None,
    second_moments: Arrays | None,
    correction: NDArray[np.float64] | None,
    eps: NDArray[np.float64] | None,
    updates: NDArray[np.void] | None,
    ratios: NDArray[np.void] | None,
    /,
) -> None:
    """Updates, Adam's ratios, or both."""
    gradients = None if grads is None else Batch(*grads)
    if before is not None and after is not None and updates is not None:
        _update(Batch(*before), Batch(*after), gradients, updates)
    if second_moments is None or gradients is None or ratios is None:
        return
    if correction is None or eps is None:
        raise ValueError("Adam's ratio needs the correction and the ε of every tensor")
    seconds = Batch(*second_moments)
    if before is None:
        _check_pair(gradients, seconds)
    else:
        _check_pair(Batch(*before), seconds, may_lack=True)
        both = np.where(seconds.counts == 0, 0, gradients.counts)
        gradients, seconds = replace(gradients, counts=both), replace(seconds, counts=both)
    _adam(gradients, seconds, correction, eps, ratios)


def _update(before: Batch, after: Batch, grads: Batch | None, updates: NDArray[np.void]) -> None:
    """Norms and counts of the change of every tensor; a gradient of count 0 is no gradient."""
    _check_twins(before, after)
    if grads is not None:
        _check_pair(before, grads, may_lack=True)
    updates[:] = np.zeros((), updates.dtype)
    for index in range(len(before)):
        record = updates[index]
        old, new = _bits(before, index), _bits(after, index)
        same = old == new
        record["changed"] = np.count_nonzero(~same)
        if grads is not None and grads.counts[index] > 0:
            with_gradient = (_bits(grads, index) << 1) != 0  # without the sign: −0 is zero
            record["with_gradient"] = np.count_nonzero(with_gradient)
            record["lost"] = np.count_nonzero(with_gradient & same)
        change, weight = _Norm(), _Norm()
        for start in range(0, len(old), PIECE):
            part = slice(start, start + PIECE)
            x = _values(old[part], int(before.dtypes[index]))
            weight.add(x)
            # Inf − Inf and the difference of two giants: `_Norm` leaves both out.
            with np.errstate(invalid="ignore", over="ignore"):
                change.add(_values(new[part], int(after.dtypes[index])) - x)
        record["update_norm"], record["before_norm"] = change.value, weight.value


def _adam(
    grads: Batch,
    second_moments: Batch,
    correction: NDArray[np.float64],
    eps: NDArray[np.float64],
    ratios: NDArray[np.void],
) -> None:
    """How the step's ratio g/(√v̂+ε) is distributed, with v̂ = v / correction."""
    for index, count in enumerate(grads.counts):
        norm, under, finite = _Norm(), 0, 0
        g_bits, v_bits = _bits(grads, index), _bits(second_moments, index)
        for start in range(0, int(count), PIECE):
            part = slice(start, start + PIECE)
            g = _values(g_bits[part], int(grads.dtypes[index]))
            v = _values(v_bits[part], int(second_moments.dtypes[index]))
            # A fresh second moment is 0, a damaged one may be negative: Inf and NaN are left out.
            with np.errstate(all="ignore"):
                root = np.sqrt(v / correction[index])
                ratio = g / (root + eps[index])
            norm.add(ratio)
            finite += int(np.count_nonzero(np.isfinite(ratio)))
            under += int(np.count_nonzero(root < eps[index]))
        ratios[index]["ratio_rms"] = norm.value / sqrt(finite) if finite else nan
        ratios[index]["eps_fraction"] = under / count if count else nan


class _Norm:
    """Euclidean norm of the finite values added so far, over the whole range of float64."""

    def __init__(self) -> None:
        # Squares are kept in units of 2^(2·exponent), the largest seen: none leaves the range.
        self._exponent = -(1 << 20)
        self._squares = 0.0

    def add(self, x: NDArray[np.float64]) -> None:
        x = x[np.isfinite(x)]
        if x.size == 0 or not x.any():
            return
        exponent = int(np.frexp(np.abs(x).max())[1])
        if exponent > self._exponent:
            # Not below −5000, where everything is 0 anyway: ldexp takes a C int.
            self._squares = ldexp(self._squares, max(2 * (self._exponent - exponent), -5000))
            self._exponent = exponent
        scaled = np.ldexp(x, -self._exponent)
        self._squares += float((scaled * scaled).sum())

    @property
    def value(self) -> float:
        return scaled(sqrt(self._squares), self._exponent) if self._squares else 0.0


# -- what must hold before raw memory is read; C makes the same checks by itself -----------------


def _checked(arrays: Arrays) -> Batch:
    """The batch, or ValueError where it must not be read."""
    batch = Batch(*arrays)
    fields = (batch.pointers, batch.counts, batch.dtypes, batch.rows)
    if any(field.ndim != 1 or len(field) != len(batch) for field in fields):
        raise ValueError("pointers, counts, dtypes and rows must be flat and equally long")
    if (batch.counts < 0).any():
        raise ValueError("a count is negative")
    if ((batch.pointers == 0) & (batch.counts > 0)).any():
        raise ValueError("a pointer is null although its count is not zero")
    if (batch.dtypes > max(Dtype)).any():
        raise ValueError("a dtype is none of the kernel's")
    uneven = batch.counts % np.maximum(batch.rows, 1) != 0
    if (batch.rows < 0).any() or uneven.any():
        raise ValueError("the rows of a tensor must divide its count")
    return batch


def _check_pair(first: Batch, second: Batch, *, may_lack: bool = False) -> None:
    """Raise ValueError unless the two hold tensors of the same sizes (`may_lack`: or none)."""
    _checked(first.arrays)
    _checked(second.arrays)
    if len(first) != len(second):
        raise ValueError(f"two batches of {len(first)} and {len(second)} tensors do not match")
    differ = first.counts != second.counts
    if (differ & (second.counts != 0) if may_lack else differ).any():
        raise ValueError("the tensors of two batches differ in their counts")


def _check_twins(first: Batch, second: Batch) -> None:
    """Raise ValueError unless the tensors of the two can be compared or copied bit by bit."""
    _check_pair(first, second)
    if (first.dtypes != second.dtypes).any():
        raise ValueError("the tensors of two batches differ in their dtypes")


def _check_touched(touched: Sequence[NDArray[np.uint8] | None] | None, batch: Batch) -> None:
    """Raise ValueError unless every given mark array has one writable byte per row."""
    if touched is None:
        return
    if len(touched) != len(batch):
        raise ValueError(f"expected {len(batch)} arrays of touched rows, got {len(touched)}")
    for marks, rows in zip(touched, batch.rows, strict=True):
        if marks is not None and not (
            marks.itemsize == 1
            and marks.shape == (rows,)
            and marks.flags.c_contiguous
            and marks.flags.writeable
        ):
            raise ValueError("touched rows need one writable byte per row, without gaps")


def _check_grids(exponents: NDArray[np.int64], firsts: NDArray[np.float64], cells: int) -> None:
    """Raise ValueError unless cells can be told apart in float64 and their numbers are bytes."""
    if not 1 <= cells <= 256:
        raise ValueError("a grid has 1 to 256 cells")
    if (abs(exponents) > 1023).any():
        raise ValueError("the cells are too narrow or too wide for float64")
    if not np.isfinite(firsts).all() or (np.floor(firsts) != firsts).any():
        raise ValueError("the first cell is not a whole number")


def _check_limits(lows: NDArray[np.float64], highs: NDArray[np.float64], most: int) -> None:
    """Raise ValueError where a comparison would mean nothing."""
    if most < 0:
        raise ValueError("the length of the lists is negative")
    if np.isnan(lows).any() or np.isnan(highs).any():
        raise ValueError("a limit is NaN")


def _check_stride(pointer: int, count: int, dtype: int, stride: int) -> None:
    """Raise ValueError for elements that must not be read."""
    if any(not isinstance(number, int) for number in (pointer, count, dtype, stride)):
        raise TypeError("expected whole numbers")
    if not 0 <= dtype <= max(Dtype):
        raise ValueError("the dtype is none of the kernel's")
    if not 0 <= count < 1 << 56:
        raise ValueError("the count is negative or larger than any memory")
    if not 0 <= pointer < 1 << 64 or (pointer == 0 and count > 0):
        raise ValueError("the pointer is null or none")
    if pointer % Dtype(dtype).itemsize:
        raise ValueError("the pointer is not aligned")
    if not 1 <= stride < 1 << 64:
        raise ValueError("the stride is not positive")
