"""Statistics of one layer's norms over time, with the original's percentiles."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.sorting import in_order
from gradwatch.analysis.result import Result


@dataclass(frozen=True)
class GradientStatistics(Result):
    mean: float
    std: float
    median: float
    percentile_95: float
    percentile_5: float
    samples: int
    variance: float
    skewness: float
    kurtosis: float


def statistics(norms: Sequence[float]) -> GradientStatistics:
    """All zero for an empty history."""
    n = len(norms)
    if not n:
        return GradientStatistics(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0.0)
    centre = floats.mean(norms)
    spread = floats.variance(norms, centre)
    std = floats.root(spread)
    ordered = in_order(list(norms))
    skewness, kurtosis = standardised(norms, centre, std)
    return GradientStatistics(
        mean=centre,
        std=std,
        median=median(ordered),
        percentile_95=ordered[min(int(n * 0.95), n - 1)],
        percentile_5=ordered[int(n * 0.05)],
        samples=n,
        variance=spread,
        skewness=skewness,
        kurtosis=kurtosis,
    )


def median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2.0


def standardised(values: Sequence[float], centre: float, std: float) -> tuple[float, float]:
    """Skewness and excess kurtosis; 0 where the std is 0 or NaN."""
    if not std > 0.0:
        return 0.0, 0.0
    n = float(len(values))
    z = [floats.divide(x - centre, std) for x in values]
    skewness = floats.divide(floats.total(x * x * x for x in z), n)
    kurtosis = floats.divide(floats.total((x * x) * (x * x) for x in z), n) - 3.0
    return skewness, kurtosis


def share(excess: float) -> float:
    """1 / (1 + excess), at most 1; NaN is lost in the minimum and comes out as 1."""
    return floats.least(floats.divide(1.0, 1.0 + excess), 1.0)


def consistency(norms: Sequence[float]) -> float:
    """1 / (1 + mean change relative to the earlier value)."""
    if len(norms) < 2:
        return 1.0
    x = list(norms)
    changes = [floats.divide(abs(b - a), a + 1e-8) for a, b in itertools.pairwise(x)]
    return share(floats.mean(changes))


def information_flow_rate(norms: Sequence[float]) -> float:
    """Mean absolute change, divided by the number of samples."""
    if len(norms) < 2:
        return 0.0
    x = list(norms)
    return floats.total(abs(b - a) for a, b in itertools.pairwise(x)) / float(len(x))
