"""Joining the records of the parts of one tensor (Pébay's formulas)."""

from math import inf, isnan, ldexp, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.kernel.batch import MOMENTS

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
