"""What would become of a tensor in a narrower type, read off its histogram."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gradwatch.checkpoints.measure import TensorStats

_TARGETS = {
    "bfloat16": (3.3895313892515355e38, -126, -133),
    "float16": (65504.0, -14, -24),
    "float8_e5m2": (57344.0, -14, -16),
    "float8_e4m3fn": (448.0, -6, -9),
}
"""The largest number of a type, and the exponents of its smallest normal and smallest number."""


@dataclass(frozen=True, slots=True)
class Cast:
    """A tensor in a narrower type, without scaling."""

    headroom: float
    """Largest number of the type divided by the largest element; below 1 it overflows."""
    subnormal_fraction: float
    """Share of all elements that lose precision (not zero, below the smallest normal number)."""
    vanishing_fraction: float
    """Share that would become zero: below half of the smallest number."""


def overall_casts(tensors: Iterable[TensorStats]) -> dict[str, Cast]:
    """All floating tensors together: the least headroom, and shares of all elements."""
    counted = [(cast, stats.tensor.count) for stats in tensors if (cast := casts(stats))]
    total = sum(count for _, count in counted)
    return {
        target: Cast(
            min(cast[target].headroom for cast, _ in counted),
            sum(cast[target].subnormal_fraction * count for cast, count in counted) / total,
            sum(cast[target].vanishing_fraction * count for cast, count in counted) / total,
        )
        for target in (_TARGETS if counted else ())
    }


def casts(stats: TensorStats) -> dict[str, Cast]:
    """By the name of the type; none for tensors without finite elements or a histogram."""
    histogram, count = stats.histogram, int(stats.moments["count"])
    if histogram is None or not stats.finite or not stats.tensor.element.floating:
        return {}
    bins = histogram.negative + histogram.positive
    largest = float(stats.moments["abs_max"])

    def below(exponent: int) -> int:
        return int(bins[: max(0, exponent - histogram.first_exponent)].sum())

    results = {}
    for target, (limit, normal, smallest) in _TARGETS.items():
        vanishing = below(smallest - 1)
        subnormal = below(normal) - vanishing
        headroom = limit / largest if largest else math.inf
        results[target] = Cast(headroom, subnormal / count, vanishing / count)
    return results
