"""Arithmetic as the original does it: one addition after the other, extremes that skip NaN.

The golden outputs agree to the last digits only if sums run left to right and an empty sum is −0.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal


def total(values: Iterable[float]) -> float:
    """Left to right; −0 when empty, as the original's standard library has it."""
    result = -0.0
    for value in values:
        result += value
    return result


def divide(numerator: float, denominator: float) -> float:
    """Division that never traps: 0/0 is NaN, x/0 is infinite."""
    if denominator != 0 or numerator != numerator:
        return numerator / denominator if denominator != 0 else math.nan
    if numerator == 0:
        return math.nan
    return math.copysign(math.inf, numerator) * math.copysign(1.0, denominator)


def root(value: float) -> float:
    """Square root; NaN below zero."""
    return math.sqrt(value) if value >= 0 or value != value else math.nan


def least(a: float, b: float) -> float:
    """The smaller; where one is NaN, the other."""
    return b if a != a else a if b != b else min(a, b)


def greatest(a: float, b: float) -> float:
    """The larger; where one is NaN, the other."""
    return b if a != a else a if b != b else max(a, b)


def truncated(value: float) -> int:
    """A float cast to an unsigned integer: towards zero, NaN and negative to 0."""
    if value != value or value <= 0:
        return 0
    return int(value) if value < 2.0**64 else 2**64 - 1


def mean(values: Sequence[float]) -> float:
    """NaN when empty."""
    return divide(total(values), float(len(values)))


def variance(values: Sequence[float], centre: float) -> float:
    """Population variance about `centre`; NaN when empty."""
    return divide(total((x - centre) * (x - centre) for x in values), float(len(values)))


def slope(values: Sequence[float]) -> float:
    """Least squares of the value on its index 0, 1, 2 …, in the form that cancels."""
    n = float(len(values))
    x = total(float(i) for i in range(len(values)))
    y = total(values)
    xy = total(i * value for i, value in enumerate(values))
    xx = total(float(i) * i for i in range(len(values)))
    return divide(n * xy - x * y, n * xx - x * x)


def displayed(value: float) -> str:
    """A number as the original prints it: shortest digits, no exponent, no trailing `.0`."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


def scientific(value: float) -> str:
    """Eight decimals and the shortest exponent: `3.50000000e-1`."""
    if value != value or math.isinf(value):
        return displayed(value)
    digits, exponent = f"{value:.8e}".split("e")
    return f"{digits}e{int(exponent)}"
