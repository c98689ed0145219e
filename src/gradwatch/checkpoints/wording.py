"""Numbers and lists as findings about weights say them."""

import math
from collections.abc import Sequence


def short(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0 or 1e-2 <= size < 1e4:
        return f"{value:.3g}" if size < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def percent(fraction: float) -> str:
    """A fraction as whole per cent; the ends only when really reached."""
    value = 100 * fraction
    if 0 < value < 1:
        return "under 1 %"
    if 99 < value < 100:
        return "over 99 %"
    return f"{value:.0f} %"


def listed(numbers: Sequence[int], shown: int = 4) -> str:
    """`3, 17, 40 …`"""
    words = ", ".join(str(number) for number in numbers[:shown])
    return f"{words} …" if len(numbers) > shown else words
