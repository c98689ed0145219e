"""What the kernel is given (addresses of tensors) and what it gives back (packed records).

The records of the parts of a tensor are joined by Pébay's formulas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import frexp, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FLOAT_BINS, DOUBLE_BINS = (-149, 277), (-1074, 2098)
"""Lowest exponent and number of bins, for batches without and with float64: from the smallest
subnormal to the largest finite number, so that no element is without a bin."""

Ints = Sequence[int]
Arrays = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]
"""A batch as it crosses into C: pointers, counts, dtypes, rows."""


class Dtype(IntEnum):
    """The element types the kernel reads."""

    F32 = 0
    F64 = 1
    BF16 = 2
    F16 = 3

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return (4, 8, 2, 2)[self]


_COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf", "zero_rows")
_NUMBERS = ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "abs_max", "min", "max")

MOMENTS = np.dtype([(name, "<u8") for name in _COUNTS] + [(name, "<f8") for name in _NUMBERS])
"""One tensor's record. The numbers describe the finite elements and are NaN where undefined: all of
them without a finite element, skewness and kurtosis (excess) where all elements are equal."""

UPDATE = np.dtype(
    [(name, "<f8") for name in ("update_norm", "before_norm")]
    + [(name, "<u8") for name in ("changed", "lost", "with_gradient")]
)
"""Norms of the finite elements; `changed` counts differing bits, `lost` those unchanged among the
`with_gradient` coordinates whose gradient is not zero."""

ADAM = np.dtype([("ratio_rms", "<f8"), ("eps_fraction", "<f8")])
"""RMS of the finite g/(√v̂+ε), and the share of coordinates with √v̂ < ε; NaN without elements."""


# -- histograms ------------------------------------------------------------------------------------


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

    def __iter__(self) -> Iterator[Bins]:
        sides = np.split(self.counts, np.cumsum(np.repeat(self.sizes, 2)))
        return map(Bins, self.first_exponents.tolist(), sides[:-1:2], sides[1::2])


class Measurement(NamedTuple):
    """What one pass over the tensors gave; without histograms `bins` is empty."""

    records: NDArray[np.void]
    bins: BinTable


# -- tensors ---------------------------------------------------------------------------------------


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
        for name, kind in zip(vars(self), (np.uint64, np.int64, np.uint8, np.int64), strict=True):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))

    def __len__(self) -> int:
        return len(self.pointers)

    @property
    def arrays(self) -> Arrays:
        """As the kernel takes it."""
        return self.pointers, self.counts, self.dtypes, self.rows

    @classmethod
    def empty(cls, count: int) -> "Batch":
        """A batch of tensors without elements, to be filled in place."""
        return cls.of([0] * count, [0] * count, [0] * count)

    @classmethod
    def of(cls, pointers: Ints, counts: Ints, dtypes: Ints, rows: Ints | None = None) -> "Batch":
        """A batch from Python lists; without `rows` no tensor has rows."""
        given = counts, dtypes, [0] * len(pointers) if rows is None else rows
        return cls(np.array(pointers, np.uint64), *map(np.array, given))


_KINDS = {np.dtype("f4"): Dtype.F32, np.dtype("f8"): Dtype.F64, np.dtype("f2"): Dtype.F16}


def batch_of(arrays: Sequence[NDArray[Any]]) -> tuple[Batch, list[NDArray[Any]]]:
    """A batch over the arrays, and the arrays that own its memory: keep them while it is used."""
    owners = [_readable(np.asarray(array)) for array in arrays]
    pointers, counts = [x.ctypes.data for x in owners], [x.size for x in owners]
    rows = [len(x) if x.ndim > 1 else 0 for x in owners]
    return Batch.of(pointers, counts, [_KINDS[x.dtype] for x in owners], rows), owners


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order and in a type the kernel reads; integers and truth values as float64."""
    if array.dtype.kind == "c":  # real and imaginary parts are two elements
        array = np.ascontiguousarray(array).view(array.real.dtype)
    if array.dtype not in _KINDS:
        array = array.astype(np.float64)
    # Also to addresses that are multiples of the size: a view into a file may begin anywhere.
    return np.require(array, requirements=("C", "ALIGNED"))


# -- records of parts ------------------------------------------------------------------------------


def merge(parts: NDArray[np.void]) -> np.void:
    """The record of all parts together.

    Counts are exact; `zero_rows` are those of the whole where the parts hold whole rows.
    """
    parts = np.atleast_1d(parts)
    counts = [parts[name].sum(dtype=np.uint64) for name in _COUNTS]
    n = parts["count"] - (parts["nan"] + parts["pos_inf"] + parts["neg_inf"])
    some = parts[n > 0]
    if len(some) > 1:
        numbers = joined(n[n > 0].astype(np.float64), some)
    else:  # nothing to join, nothing to round
        numbers = [some[name][0] if len(some) else np.nan for name in _NUMBERS]
    record: np.void = np.array([(*counts, *numbers)], MOMENTS)[0]
    return record


def joined(n: Any, parts: Any) -> list[float]:
    """The numbers of a record, of parts with n finite elements each.

    `parts` gives an array for each name. An element is a part too, with n = 1 and no shape.
    """
    low, high = float(parts["min"].min()), float(parts["max"].max())
    top = max(-low, high)
    # Fourth powers of float64 leave its range; a common power of two (exact) keeps them inside.
    exponent = frexp(top)[1]
    mean, size, std = (np.ldexp(parts[name], -exponent) for name in ("mean", "abs_mean", "std"))
    total = float(np.broadcast_to(n, mean.shape).sum())
    centre = mean[0] + float((n * (mean - mean[0])).sum()) / total
    d = mean - centre
    d2, m2 = d * d, std * std
    m3 = np.nan_to_num(parts["skewness"]) * m2 * std
    m4 = np.nan_to_num(parts["kurtosis"] + 3.0) * m2 * m2
    powers = m2 + d2, m3 + 3 * d * m2 + d2 * d, m4 + 4 * d * m3 + 6 * d2 * m2 + d2 * d2
    variance, third, fourth = (float((n * power).sum()) / total for power in powers)
    square, sizes = float((n * (m2 + mean * mean)).sum()), float((n * size).sum())
    shape = 0.0, np.nan, np.nan
    # All equal: what is left of the powers is rounding, and its shape means nothing.
    if low != high and variance > 0.0:
        shape = sqrt(variance), third / variance**1.5, fourth / variance**2 - 3.0
    with np.errstate(over="ignore"):  # the norm of huge doubles may be no double
        scaled = np.ldexp([centre, shape[0], sqrt(square), sizes / total], exponent).tolist()
    mean = low if low == high else scaled[0]
    return [mean, scaled[1], *shape[1:], *scaled[2:], top, low, high]
