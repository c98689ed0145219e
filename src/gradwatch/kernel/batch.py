"""What the kernel is given (addresses of tensors) and what it gives back (packed records).

The records of the parts of a tensor are joined by Pébay's formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf, isnan, ldexp, nan, sqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

SKETCH_WIDTH = 32
FLOAT_BINS = (-149, 277)
DOUBLE_BINS = (-1074, 2098)
"""Lowest exponent and number of bins, for batches without and with float64: from the smallest
subnormal to the largest finite number, so that no element is without a bin."""

_Kind = TypeVar("_Kind", bound=np.generic)
Arrays = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]
"""A batch as it crosses into C: pointers, counts, dtypes, rows."""
Places = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
"""What sketches need of every tensor: seed, flat index of its first element in the whole, and the
size of the whole."""


class Dtype(IntEnum):
    """The element types the kernel reads."""

    F32 = 0
    F64 = 1
    BF16 = 2
    F16 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {Dtype.F32: 4, Dtype.F64: 8, Dtype.BF16: 2, Dtype.F16: 2}

MOMENTS = np.dtype(
    [(name, "<u8") for name in ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows")]
    + [
        (name, "<f8")
        for name in (
            "mean",
            "std",
            "skewness",
            "kurtosis",
            "norm",
            "abs_mean",
            "abs_max",
            "min",
            "max",
        )
    ]
)
"""One tensor's record. The numbers describe the finite elements and are NaN where undefined: all of
them without a finite element, skewness and kurtosis (excess) where all elements are equal."""

UPDATE = np.dtype(
    [
        ("update_norm", "<f8"),
        ("before_norm", "<f8"),
        ("changed", "<u8"),
        ("lost", "<u8"),
        ("with_gradient", "<u8"),
    ]
)
"""Norms of the finite elements; `changed` counts differing bits, `lost` those unchanged among the
`with_gradient` coordinates whose gradient is not zero."""

ADAM = np.dtype([("ratio_rms", "<f8"), ("eps_fraction", "<f8")])
"""RMS of the finite g/(√v̂+ε), and the share of coordinates with √v̂ < ε; NaN without elements."""


class Bins(NamedTuple):
    """One tensor's signed power-of-two histogram, from its first to its last occupied bin.

    `negative[i]` and `positive[i]` count 2^e ≤ |x| < 2^(e+1) with e = `first_exponent` + i. Zeros
    and non-finite elements are counted in the tensor's record.
    """

    first_exponent: int
    negative: NDArray[np.uint64]
    positive: NDArray[np.uint64]


@dataclass(frozen=True)
class BinTable:
    """The bins of several tensors, joined in three arrays; one by one they are `Bins`."""

    first_exponents: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """How many bins each tensor has."""
    counts: NDArray[np.uint64]
    """Of each tensor the negative bins, then as many positive ones."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Bins]:
        sizes = self.sizes.tolist()
        begin = 0
        for exponent, size in zip(self.first_exponents.tolist(), sizes, strict=True):
            middle, end = begin + size, begin + 2 * size
            yield Bins(exponent, self.counts[begin:middle], self.counts[middle:end])
            begin = end

    def __getitem__(self, index: int) -> Bins:
        return list(self)[index]


NO_BINS = BinTable(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64))


def sparse_bins(counts: NDArray[np.uint64], lowest: int) -> BinTable:
    """Each tensor's dense counts [n, 2, width] cut down to the stretch that is occupied, as copies.

    Views would hold on to the dense counts, a hundred times as large, for as long as they wait to
    be written.
    """
    used = (counts[:, 0] | counts[:, 1]) != 0
    first = used.argmax(axis=1)
    last = used.shape[1] - used[:, ::-1].argmax(axis=1)
    # Without an occupied bin argmax is 0 from both ends: an empty stretch at exponent 0.
    empty = ~used[np.arange(len(used)), first]
    first[empty] = last[empty] = -lowest
    sizes = last - first
    twice = np.repeat(sizes, 2)
    ends = np.cumsum(twice)
    begins = np.arange(2 * len(counts)) * used.shape[1] + np.repeat(first, 2)
    places = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(begins - ends + twice, twice)
    return BinTable(lowest + first, sizes, counts.reshape(-1)[places])


class Measurement(NamedTuple):
    """What one pass over the tensors gave; what was not asked for is empty or None."""

    records: NDArray[np.void]
    bins: BinTable
    sketches: NDArray[np.float32] | None


class Cells(NamedTuple):
    """Counts of every tensor on a uniform grid of its own.

    `counts[t, i]` elements lie in [(first + i) · 2^exponent, (first + i + 1) · 2^exponent). The
    finite ones outside and the non-finite ones are counted apart.
    """

    counts: NDArray[np.uint64]
    below: NDArray[np.uint64]
    above: NDArray[np.uint64]
    nonfinite: NDArray[np.uint64]


class Beyond(NamedTuple):
    """The finite elements at or beyond two limits: how many, and the flat indices of the first."""

    totals: NDArray[np.uint64]
    indices: list[NDArray[np.int64]]


@dataclass(frozen=True)
class Batch:
    """Dense tensors by address; the caller keeps the memory alive while the kernel runs.

    `rows` is the size of dimension 0 where the rows lie one after another in memory, else 0.
    """

    pointers: NDArray[np.uint64]
    counts: NDArray[np.int64]
    dtypes: NDArray[np.uint8]
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        # C reads these arrays by address: they must be contiguous and of exactly these types.
        object.__setattr__(self, "pointers", np.ascontiguousarray(self.pointers, dtype=np.uint64))
        object.__setattr__(self, "counts", np.ascontiguousarray(self.counts, dtype=np.int64))
        object.__setattr__(self, "dtypes", np.ascontiguousarray(self.dtypes, dtype=np.uint8))
        object.__setattr__(self, "rows", np.ascontiguousarray(self.rows, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.pointers)

    @property
    def arrays(self) -> Arrays:
        """As the kernel takes it."""
        return self.pointers, self.counts, self.dtypes, self.rows

    @classmethod
    def empty(cls, count: int) -> "Batch":
        """A batch of tensors without elements, to be filled in place."""
        return cls(
            np.zeros(count, np.uint64),
            np.zeros(count, np.int64),
            np.zeros(count, np.uint8),
            np.zeros(count, np.int64),
        )

    @classmethod
    def of(
        cls,
        pointers: Sequence[int],
        counts: Sequence[int],
        dtypes: Sequence[int],
        rows: Sequence[int] | None = None,
    ) -> "Batch":
        """A batch from Python lists; without `rows` no tensor has rows."""
        return cls(
            np.array(pointers, np.uint64),
            np.array(counts, np.int64),
            np.array(dtypes, np.uint8),
            np.array([0] * len(pointers) if rows is None else rows, np.int64),
        )


def per_tensor(values: ArrayLike, batch: Batch, kind: type[_Kind]) -> NDArray[_Kind]:
    """One value per tensor as a contiguous array, or ValueError."""
    array = np.ascontiguousarray(values, dtype=kind)
    if array.shape != (len(batch),):
        raise ValueError(f"expected one value per tensor ({len(batch)}), got {array.shape}")
    return array


_KINDS = {
    np.dtype(np.float32): Dtype.F32,
    np.dtype(np.float64): Dtype.F64,
    np.dtype(np.float16): Dtype.F16,
}


def batch_of(arrays: Sequence[NDArray[Any]]) -> tuple[Batch, list[NDArray[Any]]]:
    """A batch over the arrays, and the arrays that own its memory: keep them while it is used."""
    owners = [_readable(np.asarray(array)) for array in arrays]
    batch = Batch.of(
        [owner.ctypes.data if owner.size else 0 for owner in owners],
        [owner.size for owner in owners],
        [_KINDS[owner.dtype] for owner in owners],
        [owner.shape[0] if owner.ndim >= 2 else 0 for owner in owners],
    )
    return batch, owners


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order and in a type the kernel reads; integers and truth values as float64."""
    if array.dtype.kind == "c":
        # Real and imaginary parts are two elements, as torch's view_as_real has them.
        narrow = array.dtype == np.complex64
        pairs = np.ascontiguousarray(array, np.complex64 if narrow else np.complex128)
        array = pairs.view(np.float32 if narrow else np.float64)
    if array.dtype not in _KINDS:
        array = array.astype(np.float64)
    # Also to addresses that are multiples of the size: a view into a file may begin anywhere.
    return np.require(array, requirements=("C", "ALIGNED"))


_COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows")

_NUMBERS = tuple(name for name in MOMENTS.names or () if name not in _COUNTS)


def merge(parts: NDArray[np.void]) -> np.void:
    """The record of all parts together, joined in the given order.

    Counts are exact; `zero_rows` are those of the whole where the parts hold whole rows.
    """
    parts = np.atleast_1d(parts)
    result = np.zeros(1, MOMENTS)
    for name in _COUNTS:
        result[name] = parts[name].sum(dtype=np.uint64)
    finite = [part for part in parts if finite_count(part) > 0]
    if not finite:
        return row(blank(result))
    if len(finite) == 1:  # nothing to join, nothing to round
        for name in _NUMBERS:
            result[name] = finite[0][name]
        return row(result)
    result["min"] = min(float(part["min"]) for part in finite)
    result["max"] = max(float(part["max"]) for part in finite)
    result["abs_max"] = max(float(part["abs_max"]) for part in finite)
    # Fourth powers of float64 leave its range; a common power of two (exact) keeps them inside.
    exponent = int(np.frexp(result["abs_max"][0])[1])
    sums = _RecordSums()
    for part in finite:
        sums.add(part, exponent)
    sums.write(row(result), exponent)
    return row(result)


def row(records: NDArray[np.void]) -> np.void:
    """The only record of an array of one."""
    record: np.void = records[0]
    return record


def finite_count(record: np.void) -> int:
    """How many finite elements a record describes."""
    return int(record["count"]) - sum(int(record[name]) for name in ("nan", "pos_inf", "neg_inf"))


def blank(records: NDArray[np.void]) -> NDArray[np.void]:
    """Mark every number of the records undefined; the counts stay."""
    for name in _NUMBERS:
        records[name] = nan
    return records


def scaled(value: float, exponent: int) -> float:
    """value · 2^exponent of a positive value; the norm of huge doubles may be no double."""
    try:
        return ldexp(value, exponent)
    except OverflowError:
        return inf


class MomentSums:
    """Count, mean and central power sums so far: of one tensor as numbers, of many as arrays."""

    def __init__(self, zero: Any = 0.0) -> None:
        self.n = zero
        self.mean = self.m2 = self.m3 = self.m4 = zero

    def join(self, n: Any, mean: Any, m2: Any, m3: Any, m4: Any) -> None:
        """Add a part. In arrays, a part that is absent in a cell has n = 0, the mean so far, and no
        powers; it then changes nothing."""
        a, total = self.n, self.n + n
        delta = mean - self.mean
        step = delta / (total + (total == 0))  # where nothing was added yet, by 1 and not by 0
        joint = delta * step * a * n
        self.m4 = self.m4 + (
            m4
            + joint * step * step * (a * a - a * n + n * n)
            + 6.0 * step * step * (a * a * m2 + n * n * self.m2)
            + 4.0 * step * (a * m3 - n * self.m3)
        )
        self.m3 = self.m3 + (m3 + joint * step * (a - n) + 3.0 * step * (a * m2 - n * self.m2))
        self.m2 = self.m2 + (m2 + joint)
        self.mean = self.mean + step * n
        self.n = total


class _RecordSums(MomentSums):
    """The sums of records of one tensor, in units of 2^exponent."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0  # whole numbers stay exact where a float would round them
        self.absolute = 0.0

    def add(self, part: np.void, exponent: int) -> None:
        n = finite_count(part)
        mean, std = (ldexp(float(part[name]), -exponent) for name in ("mean", "std"))
        m2 = n * std * std
        m3 = 0.0 if isnan(part["skewness"]) else float(part["skewness"]) * m2 * std
        m4 = 0.0 if isnan(part["kurtosis"]) else (float(part["kurtosis"]) + 3.0) * m2 * std * std
        self.absolute += n * ldexp(float(part["abs_mean"]), -exponent)
        if self.n == 0:  # taken as it is: joining it to zeros would round
            self.n, self.mean, self.m2, self.m3, self.m4 = n, mean, m2, m3, m4
            return
        self.join(n, mean, m2, m3, m4)

    def write(self, record: np.void, exponent: int) -> None:
        variance = self.m2 / self.n
        # All equal: what is left of the powers is rounding, and its shape means nothing.
        flat = record["min"] == record["max"] or variance == 0.0
        std = sqrt(variance)
        record["mean"] = (
            record["min"] if record["min"] == record["max"] else ldexp(self.mean, exponent)
        )
        record["std"] = 0.0 if flat else ldexp(std, exponent)
        record["skewness"] = nan if flat else self.m3 / self.n / (variance * std)
        record["kurtosis"] = nan if flat else self.m4 / self.n / (variance * variance) - 3.0
        record["norm"] = scaled(sqrt(self.m2 + self.n * self.mean * self.mean), exponent)
        record["abs_mean"] = ldexp(self.absolute / self.n, exponent)
