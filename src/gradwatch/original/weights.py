"""The original's weight analysis: exploding gradients, weight distributions, drift.

Tensors are 32-bit and so are the sums, one addition after the other: right for the original, wrong
for large tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import arithmetic
from gradwatch.result import Result

Singles = NDArray[np.float32]
Level = TypeVar("Level", bound=str)
ExplosionSeverity = Literal["Low", "Medium", "High", "Critical"]
OutlierSeverity = Literal["Medium", "High"]
DistributionHealthStatus = Literal["Excellent", "Good", "Fair", "Poor", "Critical"]
WeightDriftSeverity = Literal["Minimal", "Low", "Medium", "High"]


def _first_passed(value: float, limits: Mapping[Level, float], otherwise: Level) -> Level:
    """The first level whose limit the value is above."""
    return next((level for level, above in limits.items() if value > above), otherwise)


def _divided(numerator: np.float32, count: int) -> np.float32:
    """0/0 is NaN; the callers silence numpy's warning."""
    return np.float32(np.divide(numerator, np.float32(count)))


def _moments(values: Singles) -> tuple[np.float32, np.float32]:
    """Mean and population standard deviation; NaN when empty."""
    mean = _divided(arithmetic.array_total(values), values.size)
    centred = values - mean
    return mean, np.sqrt(_divided(arithmetic.array_total(centred * centred), values.size))


@np.errstate(all="ignore")
def compute_l2_norm(tensor: NDArray[np.float32]) -> float:
    """√Σx²; squares overflow above 1.8e19 and vanish below 1e-23."""
    flat = np.asarray(tensor, np.float32).ravel()
    return float(np.sqrt(arithmetic.array_total(flat * flat)))


# -- exploding gradients ---------------------------------------------------------------------------

ACTIONS = {
    "Urgent: cut the learning rate tenfold and clip gradients.": 100.0,
    "Lower the learning rate and clip gradients.": 10.0,
    "Consider clipping or a lower learning rate.": 5.0,
}
KEEP_WATCHING = "Keep watching these gradients."
MANY = ("Many layers explode.", "Cut the learning rate strongly.")
HUGE = ("Gradients are extremely large.", "Clip gradients below 1.0.")
ALWAYS = ("Keep watching gradient norms.", "Consider normalisation layers.")
LAYER_SEVERITY: dict[ExplosionSeverity, float] = {"Critical": 100.0, "High": 50.0, "Medium": 10.0}
"""Norm over the mean of the norms so far."""
OVERALL_SEVERITY: dict[ExplosionSeverity, tuple[float, float]] = {
    "Critical": (0.5, 10.0),
    "High": (0.3, 5.0),
    "Medium": (0.1, 2.0),
}
"""Share of the layers; largest norm over the threshold."""


class ExplodingLayer(Result):
    layer_index: int
    gradient_norm: float
    severity: ExplosionSeverity
    recommended_action: str


class GradientExplosionAnalysis(Result):
    exploding_layers: tuple[ExplodingLayer, ...]
    max_gradient_norm: float
    mean_gradient_norm: float
    std_gradient_norm: float
    explosion_ratio: float
    overall_severity: ExplosionSeverity
    mitigation_recommendations: tuple[str, ...]


@np.errstate(all="ignore")
def detect_gradient_explosion(
    gradients: Sequence[NDArray[np.float32]], threshold: float
) -> GradientExplosionAnalysis:
    """Layers whose norm is above the threshold."""
    limit = np.float32(threshold)
    norms = np.array([compute_l2_norm(gradient) for gradient in gradients], np.float32)
    exploding = tuple(_exploding(index, norms) for index in np.flatnonzero(norms > limit).tolist())
    largest = _from_zero(np.fmax, norms)
    mean, std = _moments(norms)
    ratio = _divided(np.float32(len(exploding)), len(norms))
    return GradientExplosionAnalysis(
        exploding_layers=exploding,
        max_gradient_norm=largest,
        mean_gradient_norm=float(mean),
        std_gradient_norm=float(std),
        explosion_ratio=float(ratio),
        overall_severity=_overall_severity(ratio, largest, limit),
        mitigation_recommendations=(
            *(MANY if ratio > np.float32(0.3) else ()),
            *(HUGE if largest > 100 else ()),
            *ALWAYS,
        ),
    )


def _exploding(index: int, norms: Singles) -> ExplodingLayer:
    """The severity looks only at the layers up to this one."""
    norm = norms[index]
    mean, _ = _moments(norms[: index + 1])
    ratio = norm / (mean + np.float32(1e-8))
    severity = _first_passed(ratio, LAYER_SEVERITY, "Low")
    return ExplodingLayer(index, float(norm), severity, _first_passed(norm, ACTIONS, KEEP_WATCHING))


def _overall_severity(ratio: np.float32, largest: float, limit: np.float32) -> ExplosionSeverity:
    for severity, (above, times) in OVERALL_SEVERITY.items():
        if ratio > np.float32(above) or largest > limit * np.float32(times):
            return severity
    return "Low"


def _from_zero(extreme: np.ufunc, values: Singles) -> float:
    """The extreme of the values and 0; NaN is skipped, +0 wins over −0."""
    zero = np.float32(0.0)
    return float(zero + extreme.reduce(values, initial=zero))


# -- distribution of weights -----------------------------------------------------------------------

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
STATUS: dict[DistributionHealthStatus, float] = {
    "Excellent": 90.0,
    "Good": 75.0,
    "Fair": 60.0,
    "Poor": 40.0,
}


class WeightStatistics(Result):
    mean: float = 0.0
    std_dev: float = 0.0
    skewness: float = 0.0
    kurtosis: float = 0.0
    entropy: float = 0.0
    min: float = 0.0
    max: float = 0.0
    zero_fraction: float = 0.0


class LayerWeightAnalysis(Result):
    layer_index: int
    statistics: WeightStatistics
    health_score: float
    issues: tuple[str, ...]
    recommendations: tuple[str, ...]


class DistributionHealth(Result):
    score: float
    status: DistributionHealthStatus


class WeightOutlier(Result):
    layer_index: int
    weight_index: int
    value: float
    z_score: float
    severity: OutlierSeverity


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
    outliers = [item for index, values in enumerate(flat) for item in _outliers(index, values)]
    return judge([_statistics(values) for values in flat], tuple(outliers))


def judge(
    statistics: Sequence[WeightStatistics], outliers: tuple[WeightOutlier, ...]
) -> WeightDistributionAnalysis:
    """Scores, issues and averages from the statistics of the layers."""
    layers = tuple(_layer(index, layer) for index, layer in enumerate(statistics))
    overall = _overall(statistics)
    return WeightDistributionAnalysis(layers, overall, _distribution_health(overall), outliers)


def entropy(std: float) -> float:
    """The original's: of the standard deviation."""
    return max(float(np.log2(np.float32(std))), 0.0) if std > 0 else 0.0


def _statistics(values: Singles) -> WeightStatistics:
    if not values.size:
        return WeightStatistics()
    mean, std = _moments(values)
    skewness = kurtosis = np.float32(0.0)
    if std != 0:
        z = (values - mean) / std
        if values.size >= 3:
            skewness = _divided(arithmetic.array_total(z * z * z), values.size)
        if values.size >= 4:
            fourth = arithmetic.array_total((z * z) * (z * z))
            kurtosis = _divided(fourth, values.size) - np.float32(3.0)
    return WeightStatistics(
        mean=float(mean),
        std_dev=float(std),
        skewness=float(skewness),
        kurtosis=float(kurtosis),
        entropy=entropy(float(std)),
        min=float(np.fmin.reduce(values, initial=np.float32(np.inf))),
        max=float(np.fmax.reduce(values, initial=np.float32(-np.inf))),
        zero_fraction=float(_divided(np.float32(np.count_nonzero(values == 0)), values.size)),
    )


def _layer(index: int, layer: WeightStatistics) -> LayerWeightAnalysis:
    checks = (
        (ZEROS, layer.zero_fraction > 0.5, 30.0),
        (SKEWED, abs(layer.skewness) > 2.0, 15.0),
        (TAILS, layer.kurtosis > 10.0, 15.0),
        (EXTREME, abs(layer.max) > 10.0 or abs(layer.min) > 10.0, 20.0),
    )
    issues = tuple(issue for issue, present, _ in checks if present)
    score = 100.0 - sum(penalty for _, present, penalty in checks if present)
    advice = tuple(ADVICE[issue] for issue in issues if issue in ADVICE)
    return LayerWeightAnalysis(index, layer, score, issues, advice)


@np.errstate(all="ignore")
def _overall(layers: Sequence[WeightStatistics]) -> WeightStatistics:
    """Unweighted averages of the layers; sums and extremes start at 0."""
    if not layers:
        return WeightStatistics()
    columns = {
        field.name: np.array([getattr(layer, field.name) for layer in layers], np.float32)
        for field in fields(WeightStatistics)
    }
    averages = {
        name: float(_divided(np.float32(0.0) + arithmetic.array_total(column), len(layers)))
        for name, column in columns.items()
    }
    averages["min"] = _from_zero(np.fmin, columns["min"])
    averages["max"] = _from_zero(np.fmax, columns["max"])
    return WeightStatistics(**averages)


def _distribution_health(overall: WeightStatistics) -> DistributionHealth:
    penalties = (
        (overall.zero_fraction > np.float32(0.3), 25.0),
        (abs(overall.skewness) > 1.0, 15.0),
        (overall.kurtosis > 5.0, 15.0),
        (abs(overall.max) > 5.0 or abs(overall.min) > 5.0, 20.0),
    )
    score = 100.0 - sum(penalty for present, penalty in penalties if present)
    status: DistributionHealthStatus = next(
        (status for status, at_least in STATUS.items() if score >= at_least), "Critical"
    )
    return DistributionHealth(score, status)


def _outliers(index: int, values: Singles) -> list[WeightOutlier]:
    """Beyond three of the tensor's own standard deviations; 0/0 of a constant is none."""
    mean, std = _moments(values)
    z = np.abs(values - mean) / std
    return [
        WeightOutlier(index, at, float(values[at]), float(z[at]), "High" if z[at] > 5 else "Medium")
        for at in np.flatnonzero(z > 3).tolist()
    ]


# -- drift -----------------------------------------------------------------------------------------

DRIFT_SEVERITY: dict[WeightDriftSeverity, float] = {"High": 0.1, "Medium": 0.05, "Low": 0.01}


class WeightDriftAnalysis(Result):
    """Declared by the original, which has no function for it."""

    mean_drift: float
    max_drift: float
    severity: WeightDriftSeverity
    affected_layers: tuple[str, ...]


def analyze_drift(
    before: Mapping[str, NDArray[np.float32]], after: Mapping[str, NDArray[np.float32]]
) -> WeightDriftAnalysis:
    """Mean absolute difference per layer, as an older, uncompiled copy of the original has it.

    A layer is affected where it moved more than twice as far as the mean of the layers.
    """
    if list(before) != list(after) or any(
        np.shape(before[name]) != np.shape(after[name]) for name in before
    ):
        raise GradwatchError("Drift needs the same tensors before and after.", Exit.USAGE)
    drifts = {name: _drift(before[name], after[name]) for name in before}
    mean = arithmetic.mean(list(drifts.values())) if drifts else 0.0
    severity = _first_passed(mean, DRIFT_SEVERITY, "Minimal")
    affected = tuple(name for name, drift in drifts.items() if drift > 2.0 * mean)
    return WeightDriftAnalysis(mean, max(drifts.values(), default=0.0), severity, affected)


@np.errstate(all="ignore")
def _drift(before: NDArray[np.float32], after: NDArray[np.float32]) -> float:
    first, last = np.asarray(before), np.asarray(after)
    kind = np.result_type(np.float64, first, last)  # complex where one of them is
    apart = np.abs(last.astype(kind) - first.astype(kind))
    return float(apart.mean()) if apart.size else 0.0


class WeightAnalyzer:
    """The original's analyzer of tensors, which keeps nothing."""

    detect_gradient_explosion = staticmethod(detect_gradient_explosion)
    analyze_weight_distribution = staticmethod(analyze_weight_distribution)
    compute_l2_norm = staticmethod(compute_l2_norm)
