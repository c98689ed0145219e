"""Arithmetic as the original does it, and the three measures two of its modules share.

The golden outputs agree to the last digits only if sums run left to right and an empty sum is −0.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError


class GradientHistory(NamedTuple):
    """The gradient norms of one layer in time order, and the step of each."""

    gradient_norms: Sequence[float]
    step_numbers: Sequence[int]


Histories = Mapping[str, GradientHistory]


def total(values: Iterable[float]) -> float:
    """Left to right; −0 when empty, as the original's standard library has it."""
    result = -0.0
    for value in values:
        result += value
    return result


def array_total(values: NDArray[Any]) -> Any:
    """The same of an array, in its own precision: `accumulate` adds in order, `sum` does not."""
    return np.add.accumulate(values)[-1] if values.size else values.dtype.type(-0.0)


def divide(numerator: float, denominator: float) -> float:
    """Division that never traps: 0/0 is NaN, x/0 is infinite."""
    if denominator != 0:
        return numerator / denominator
    if numerator == 0 or numerator != numerator:
        return math.nan
    return math.copysign(math.inf, numerator) * math.copysign(1.0, denominator)


def root(value: float) -> float:
    """Square root; NaN below zero."""
    return math.nan if value < 0 else math.sqrt(value)


def least(a: float, b: float) -> float:
    """The smaller; where one is NaN, the other."""
    return b if a != a else a if b != b else min(a, b)


def greatest(a: float, b: float) -> float:
    """The larger; where one is NaN, the other."""
    return b if a != a else a if b != b else max(a, b)


def truncated(value: float) -> int:
    """A float cast to an unsigned integer: towards zero, NaN and negative to 0."""
    if not value > 0:
        return 0
    return int(value) if value < 2.0**64 else 2**64 - 1


def mean(values: Sequence[float]) -> float:
    """NaN when empty."""
    return divide(total(values), len(values))


def variance(values: Sequence[float], centre: float) -> float:
    """Population variance about `centre`; NaN when empty."""
    return divide(total((x - centre) * (x - centre) for x in values), len(values))


def slope(values: Sequence[float]) -> float:
    """Least squares of the value on its index 0, 1, 2 …, in the form that cancels."""
    n = float(len(values))
    x = total(range(len(values)))
    y = total(values)
    xy = total(i * value for i, value in enumerate(values))
    xx = total(i * i for i in range(len(values)))
    return divide(n * xy - x * y, n * xx - x * x)


def in_order(values: Sequence[float], what: str) -> list[float]:
    """Sorted; the original compares without asking whether a value is NaN, and panics if one is."""
    if len(values) > 1 and any(value != value for value in values):
        raise GradwatchError(
            f"NaN: the original stops here, where it sorts {what}. The default rules go on.",
            Exit.USAGE,
        )
    return sorted(values)


def share(excess: float) -> float:
    """1 / (1 + excess), at most 1; NaN is lost in the minimum and comes out as 1."""
    return least(divide(1.0, 1.0 + excess), 1.0)


def consistency(norms: Sequence[float]) -> float:
    """1 / (1 + mean change relative to the earlier value)."""
    if len(norms) < 2:
        return 1.0
    return share(mean([divide(abs(b - a), a + 1e-8) for a, b in itertools.pairwise(norms)]))


def information_flow_rate(norms: Sequence[float]) -> float:
    """Mean absolute change, divided by the number of samples."""
    if len(norms) < 2:
        return 0.0
    return total(abs(b - a) for a, b in itertools.pairwise(norms)) / len(norms)
