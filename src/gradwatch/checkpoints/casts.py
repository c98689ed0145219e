"""What would become of a tensor in a narrower type, read off its histogram."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradwatch.checkpoints.joining import Measured


@dataclass(frozen=True, slots=True)
class Target:
    """A floating type: its largest number, its smallest normal and its smallest number at all."""

    name: str
    largest: float
    normal_exponent: int
    smallest_exponent: int


TARGETS = (
    Target("bfloat16", 3.3895313892515355e38, -126, -133),
    Target("float16", 65504.0, -14, -24),
    Target("float8_e5m2", 57344.0, -14, -16),
    Target("float8_e4m3fn", 448.0, -6, -9),
)


@dataclass(frozen=True, slots=True)
class Cast:
    """A tensor in a target type, without scaling."""

    target: str
    headroom: float
    """Largest number of the type divided by the largest element; below 1 it overflows."""
    subnormal_fraction: float
    """Share of all elements that lose precision (not zero, below the smallest normal number)."""
    vanishing_fraction: float
    """Share that would become zero: below half of the smallest number."""


def overall(tensors: Iterable[Measured]) -> tuple[Cast, ...]:
    """All floating tensors together: the least headroom, and shares of all elements."""
    found = [(casts(measured), measured.tensor.count) for measured in tensors]
    found = [(cast, count) for cast, count in found if cast]
    total = sum(count for _, count in found)
    return tuple(
        Cast(
            target.name,
            min(cast[place].headroom for cast, _ in found),
            sum(cast[place].subnormal_fraction * count for cast, count in found) / total,
            sum(cast[place].vanishing_fraction * count for cast, count in found) / total,
        )
        for place, target in enumerate(TARGETS)
        if found
    )


def casts(measured: Measured) -> tuple[Cast, ...]:
    """One for every target; none for tensors without finite elements or a histogram."""
    histogram, count = measured.histogram, int(measured.moments["count"])
    if histogram is None or not measured.finite or not measured.tensor.element.floating:
        return ()
    bins = histogram.negative + histogram.positive
    largest = float(measured.moments["abs_max"])

    def below(exponent: int) -> int:
        return int(bins[: max(0, exponent - histogram.first_exponent)].sum())

    found = []
    for target in TARGETS:
        vanishing = below(target.smallest_exponent - 1)
        found.append(
            Cast(
                target.name,
                target.largest / largest if largest else float("inf"),
                (below(target.normal_exponent) - vanishing) / count,
                vanishing / count,
            )
        )
    return tuple(found)
