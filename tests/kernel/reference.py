"""The statistics once more, written as their definitions read, in extended precision."""

import math
from collections import Counter

import numpy as np

from gradwatch.kernel import Bins


def moments(values: np.ndarray) -> dict[str, float]:
    """Everything MOMENTS has but the rows; `values` are the elements as float64."""
    x = [float(v) for v in values.ravel()]
    finite = [v for v in x if math.isfinite(v)]
    counts = {
        "count": len(x),
        "zeros": sum(v == 0.0 for v in x),
        "nan": sum(math.isnan(v) for v in x),
        "pos_inf": sum(v == math.inf for v in x),
        "neg_inf": sum(v == -math.inf for v in x),
    }
    if not finite:
        names = ("mean", "std", "skewness", "kurtosis", "norm", "abs_mean", "abs_max", "min", "max")
        return counts | dict.fromkeys(names, math.nan)
    return counts | shape(finite)


def shape(finite: list[float]) -> dict[str, float]:
    long = np.array(finite, np.longdouble)
    n = len(finite)
    mean = long.sum() / n
    d = long - mean
    mean += d.sum() / n
    d = long - mean
    variance = (d**2).sum() / n
    flat = min(finite) == max(finite)
    return {
        "mean": float(mean),
        "std": 0.0 if flat else float(np.sqrt(variance)),
        "skewness": math.nan if flat else float((d**3).sum() / n / variance**1.5),
        "kurtosis": math.nan if flat else float((d**4).sum() / n / variance**2 - 3),
        "norm": float(np.sqrt((long**2).sum())),
        "abs_mean": float(np.abs(long).sum() / n),
        "abs_max": max(abs(v) for v in finite),
        "min": min(finite),
        "max": max(finite),
    }


def bins(values: np.ndarray) -> tuple[Counter[int], Counter[int]]:
    """Counts per floor(log2 |x|) of the negative and of the positive finite elements."""
    negative: Counter[int] = Counter()
    positive: Counter[int] = Counter()
    for v in (float(v) for v in values.ravel()):
        if math.isfinite(v) and v != 0.0:
            (negative if v < 0 else positive)[exponent(abs(v))] += 1
    return negative, positive


def counters(bins: Bins) -> tuple[Counter[int], Counter[int]]:
    """The occupied bins by exponent."""
    return tuple(  # type: ignore[return-value]
        Counter({bins.first_exponent + i: int(n) for i, n in enumerate(side) if n})
        for side in (bins.negative, bins.positive)
    )


def exponent(v: float) -> int:
    """floor(log2 v), exactly: from the number's own hexadecimal."""
    mantissa, power = v.hex().split("p")
    lead = mantissa.removeprefix("0x")
    if lead.startswith("1"):
        return int(power)
    digits = lead.removeprefix("0.")  # subnormal: find its first bit
    position = next(i for i, digit in enumerate(digits) if digit != "0")
    return int(power) - 4 * (position + 1) + int(digits[position], 16).bit_length() - 1


def zero_rows(table: np.ndarray) -> list[bool]:
    """Which rows hold nothing but zeros."""
    return [all(v == 0 for v in row.ravel()) for row in table]


def norm(values: np.ndarray) -> float:
    long = np.array([v for v in values.ravel() if math.isfinite(v)], np.longdouble)
    return float(np.sqrt((long**2).sum()))
