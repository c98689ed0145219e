"""Weight distributions over a list of 32-bit tensors, in 32 bits."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.original.levels import DistributionHealthStatus, Level
from gradwatch.analysis.original.singles import Singles, divided, moments, norm, total
from gradwatch.analysis.result import Result

ZEROS, SKEWED, TAILS, EXTREME = (
    "Most weights are exactly zero.",
    "The weights are strongly skewed.",
    "The weights have heavy tails.",
    "Some weights are extreme.",
)
ADVICE = {
    ZEROS: "Lower the learning rate or change the activation.",
    SKEWED: "Normalise the weights or initialise them differently.",
}
"""The original has advice for the other two as well, but never finds them: wrong case."""
STATUS = (
    (90.0, DistributionHealthStatus.EXCELLENT),
    (75.0, DistributionHealthStatus.GOOD),
    (60.0, DistributionHealthStatus.FAIR),
    (40.0, DistributionHealthStatus.POOR),
)


@dataclass(frozen=True)
class WeightStatistics(Result):
    mean: float
    std_dev: float
    skewness: float
    kurtosis: float
    entropy: float
    min: float
    max: float
    zero_fraction: float


@dataclass(frozen=True)
class LayerWeightAnalysis(Result):
    layer_index: int
    statistics: WeightStatistics
    health_score: float
    issues: tuple[str, ...]
    recommendations: tuple[str, ...]


@dataclass(frozen=True)
class DistributionHealth(Result):
    score: float
    status: DistributionHealthStatus


@dataclass(frozen=True)
class WeightOutlier(Result):
    layer_index: int
    weight_index: int
    value: float
    z_score: float
    severity: Level


@dataclass(frozen=True)
class WeightDistributionAnalysis(Result):
    layer_analyses: tuple[LayerWeightAnalysis, ...]
    overall_statistics: WeightStatistics
    distribution_health: DistributionHealth
    outlier_detection: tuple[WeightOutlier, ...] | None


@np.errstate(all="ignore")
def analyze_weight_distribution(
    weights: Sequence[NDArray[np.float32]],
) -> WeightDistributionAnalysis:
    """A layer is known only by its position; elements count in row-major order."""
    flat = [np.asarray(tensor, np.float32).ravel() for tensor in weights]
    outliers = [found for index, values in enumerate(flat) for found in _outliers(index, values)]
    return judge([_statistics(values) for values in flat], tuple(outliers))


def judge(
    statistics: Sequence[WeightStatistics], outliers: tuple[WeightOutlier, ...]
) -> WeightDistributionAnalysis:
    """Scores, issues and averages from the statistics of the layers."""
    layers = tuple(_layer(index, found) for index, found in enumerate(statistics))
    overall = _overall(statistics)
    return WeightDistributionAnalysis(layers, overall, _distribution_health(overall), outliers)


def l2_norm(tensor: NDArray[np.float32]) -> float:
    """√Σx² in 32 bits."""
    with np.errstate(all="ignore"):
        return float(norm(tensor))


def _statistics(values: Singles) -> WeightStatistics:
    if not values.size:
        return WeightStatistics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    mean, std = moments(values)
    count = np.float32(values.size)
    skewness = kurtosis = np.float32(0.0)
    z = (values - mean) / std if std != 0 else np.empty(0, np.float32)
    if std != 0 and values.size >= 3:
        skewness = divided(total(z * z * z), count)
    if std != 0 and values.size >= 4:
        kurtosis = divided(total((z * z) * (z * z)), count) - np.float32(3.0)
    return WeightStatistics(
        mean=float(mean),
        std_dev=float(std),
        skewness=float(skewness),
        kurtosis=float(kurtosis),
        entropy=entropy(float(std)),
        min=float(np.fmin.reduce(values, initial=np.float32(np.inf))),
        max=float(np.fmax.reduce(values, initial=np.float32(-np.inf))),
        zero_fraction=float(divided(np.float32(np.count_nonzero(values == 0)), count)),
    )


def entropy(std: float) -> float:
    """The original's: of the standard deviation."""
    return max(float(np.log2(np.float32(std))), 0.0) if std > 0 else 0.0


def _layer(index: int, found: WeightStatistics) -> LayerWeightAnalysis:
    checks = (
        (ZEROS, found.zero_fraction > 0.5, 30.0),
        (SKEWED, abs(found.skewness) > 2.0, 15.0),
        (TAILS, found.kurtosis > 10.0, 15.0),
        (EXTREME, abs(found.max) > 10.0 or abs(found.min) > 10.0, 20.0),
    )
    issues = tuple(issue for issue, present, _ in checks if present)
    score = max(100.0 - sum(penalty for _, present, penalty in checks if present), 0.0)
    advice = tuple(ADVICE[issue] for issue in issues if issue in ADVICE)
    return LayerWeightAnalysis(index, found, score, issues, advice)


def _overall(layers: Sequence[WeightStatistics]) -> WeightStatistics:
    """Unweighted averages of the layers; extremes start at 0."""
    if not layers:
        return _statistics(np.empty(0, np.float32))
    table = {
        field.name: np.array([getattr(layer, field.name) for layer in layers], np.float32)
        for field in fields(WeightStatistics)
    }
    count = np.float32(len(layers))
    zero = np.float32(0.0)  # sums and extremes start here, so that +0 wins over −0
    averages = {name: float(divided(zero + total(column), count)) for name, column in table.items()}
    averages["min"] = float(zero + np.fmin.reduce(table["min"], initial=zero))
    averages["max"] = float(zero + np.fmax.reduce(table["max"], initial=zero))
    return WeightStatistics(**averages)


def _distribution_health(overall: WeightStatistics) -> DistributionHealth:
    penalties = (
        (overall.zero_fraction > np.float32(0.3), 25.0),
        (abs(overall.skewness) > 1.0, 15.0),
        (overall.kurtosis > 5.0, 15.0),
        (abs(overall.max) > 5.0 or abs(overall.min) > 5.0, 20.0),
    )
    score = 100.0 - sum(penalty for present, penalty in penalties if present)
    status = next((s for at_least, s in STATUS if score >= at_least), None)
    return DistributionHealth(score, status or DistributionHealthStatus.CRITICAL)


def _outliers(index: int, values: Singles) -> list[WeightOutlier]:
    """Beyond three of the tensor's own standard deviations; 0/0 of a constant is none."""
    if not values.size:
        return []
    mean, std = moments(values)
    z = np.abs(values - mean) / std
    return [
        WeightOutlier(
            layer_index=index,
            weight_index=int(at),
            value=float(values[at]),
            z_score=float(z[at]),
            severity=Level.HIGH if z[at] > 5 else Level.MEDIUM,
        )
        for at in np.flatnonzero(z > 3)
    ]
