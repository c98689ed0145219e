"""Statistics of one layer's norms over the whole run, and how they move from step to step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.result import Result, missing

TOO_FEW = "fewer finite samples than needed"


@dataclass(frozen=True)
class GradientStatistics(Result):
    """Of the finite norms; percentiles interpolate linearly at q(n−1)."""

    mean: float | None
    std: float | None
    median: float | None
    percentile_95: float | None
    percentile_5: float | None
    samples: int
    variance: float | None
    skewness: float | None
    kurtosis: float | None
    non_finite_samples: int


@dataclass(frozen=True)
class FlowCharacteristics(Result):
    """Free of units: all of it is computed on ln norm."""

    consistency_score: float | None
    smoothness_index: float | None
    trend_strength: float | None
    oscillation_frequency: float | None
    stability_measure: float | None
    volatility: float | None
    """Mean |Δ ln norm|: what the original called information flow rate."""


def statistics(norms: NDArray[np.float64], non_finite: int) -> GradientStatistics:
    x = trends.finite(norms)
    n = len(x)
    if not n:
        gone = missing("no finite sample")
        return GradientStatistics(gone, gone, gone, gone, gone, 0, gone, gone, gone, non_finite)
    mean, std = float(x.mean()), float(x.std())
    low, median, high = (float(value) for value in np.percentile(x, (5, 50, 95)))
    skewness, kurtosis = shape(x, mean, std)
    return GradientStatistics(
        mean, std, median, high, low, n, std * std, skewness, kurtosis, non_finite
    )


def shape(x: NDArray[np.float64], mean: float, std: float) -> tuple[float, float]:
    """Skewness and excess kurtosis; 0 where the spread is only rounding."""
    if std <= 8 * np.finfo(float).eps * float(np.abs(x).max()):
        return 0.0, 0.0
    z = (x - mean) / std
    return float((z**3).mean()), float((z**4).mean()) - 3.0


def flow(
    steps: NDArray[np.int64], logs: NDArray[np.float64], found: trends.Trend | None
) -> FlowCharacteristics:
    """`logs`: the last samples of ln norm in time order, NaN where zero or absent."""
    x = trends.finite(logs)
    n = len(x)
    volatility = float(np.abs(np.diff(x)).mean()) if n >= 2 else None
    fit = trends.line(steps, logs)
    return FlowCharacteristics(
        missing(TOO_FEW) if volatility is None else 1 / (1 + volatility),
        _or_missing(trends.smoothness(x)),
        _or_missing(abs(found.tau) if found else None),
        missing(TOO_FEW) if n < 4 else trends.turning_points(x) / (n - 2),
        missing(TOO_FEW) if fit is None else 1 / (1 + fit.spread),
        _or_missing(volatility),
    )


def _or_missing(value: float | None) -> float:
    return missing(TOO_FEW) if value is None else value
