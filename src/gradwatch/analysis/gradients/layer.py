"""One layer: its norms, how they move, its health, its place among the others, what to try.

Health is judged by the worst of several rules on ratios, to the layer's own past and to the other
layers; nothing here has a unit.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median

FEWEST = 3
DEAD_FOR = 10
GROWTH = 1e3
FADED = 1e-4
ABOVE_OTHERS = 1e4
UNSTABLE = 0.5
VERY_UNSTABLE = 0.3
SIMILAR = math.log(1.2)
HEALTH_WEIGHT, STABILITY_WEIGHT, DISTANCE_WEIGHT, SHARE_WEIGHT = 0.4, 0.3, 0.2, 0.1
TARGET = "IndividualLayer"
TOO_FEW = "fewer finite samples than needed"


class LayerHealth(StrEnum):
    """A layer's health; unknown where it has too few samples."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"


class Risk(StrEnum):
    """Why a layer is not healthy."""

    NON_FINITE = "NonFinite"
    DEAD = "Dead"
    EXPLODING = "Exploding"
    VANISHING = "Vanishing"
    UNSTABLE = "Unstable"
    OSCILLATING = "Oscillating"


class Urgency(StrEnum):
    """How soon a layer should be looked at."""

    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class Suggestion(AdviceCode):
    """What to try."""

    WEIGHT_INITIALIZATION = (
        "WeightInitialization",
        "Check the initialisation: its scale decides how a gradient shrinks from layer to layer.",
    )
    LEARNING_RATE_ADJUSTMENT = (
        "LearningRateAdjustment",
        "Lower the learning rate, or warm it up: the steps overshoot.",
    )
    GRADIENT_CLIPPING = "GradientClipping", "Clip the global gradient norm near its usual value."
    BATCH_NORMALIZATION = (
        "BatchNormalization",
        "Put a normalisation or a residual connection before this layer.",
    )
    FIND_NON_FINITE = (
        "FindNonFinite",
        "Find the first NaN or Inf: `gradwatch diagnose` names the layer and the phase.",
    )
    CHECK_CONNECTION = (
        "CheckConnection",
        "Check that the loss depends on this layer: detached, frozen, or all its units inactive.",
    )


_CRITICAL_RISKS = frozenset({Risk.NON_FINITE, Risk.DEAD, Risk.EXPLODING})
_SUGGESTIONS = {
    Risk.NON_FINITE: (Suggestion.FIND_NON_FINITE,),
    Risk.DEAD: (Suggestion.CHECK_CONNECTION,),
    Risk.EXPLODING: (Suggestion.LEARNING_RATE_ADJUSTMENT, Suggestion.GRADIENT_CLIPPING),
    Risk.VANISHING: (Suggestion.BATCH_NORMALIZATION, Suggestion.WEIGHT_INITIALIZATION),
    Risk.UNSTABLE: (Suggestion.GRADIENT_CLIPPING,),
    Risk.OSCILLATING: (Suggestion.LEARNING_RATE_ADJUSTMENT,),
}
_BADNESS = {
    LayerHealth.CRITICAL: 1.0,
    LayerHealth.WARNING: 0.7,
    LayerHealth.UNKNOWN: 0.5,
    LayerHealth.HEALTHY: 0.0,
}


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


@dataclass(frozen=True)
class LayerHealthMetrics(Result):
    """How well a layer is, and why not."""

    overall_health: LayerHealth
    gradient_stability: float | None
    neuron_activity_ratio: float | None
    """Share of output units whose gradient was not zero in the window."""
    convergence_indicator: float | None
    """max(0, −τ_b) of ln norm over the window where the trend is significant, else 0."""
    risk_factors: tuple[Risk, ...]


@dataclass(frozen=True)
class LayerOptimizationSuggestion(Result):
    """Something to try, and the risk that asks for it."""

    suggestion_type: Suggestion
    description: str
    reason: Risk


@dataclass(frozen=True)
class ComparativeAnalysis(Result):
    """One layer among the others."""

    relative_performance: float | None
    """The layer's mean norm over the average of the others': a magnitude, not a merit."""
    rank_among_layers: int | None
    similar_layers: tuple[str, ...]
    performance_gap: float | None
    optimization_potential: float | None
    """Decades between this layer's RMS and the median layer's, halved, at most 1."""


@dataclass(frozen=True)
class LayerDetail(Result):
    """Everything the analysis has about one layer."""

    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics
    health_metrics: LayerHealthMetrics
    optimization_suggestions: tuple[LayerOptimizationSuggestion, ...]
    comparative_analysis: ComparativeAnalysis


@dataclass(frozen=True)
class OptimizationPriority(Result):
    """How early a layer should be looked at, and for which reasons."""

    target_name: str
    target_type: str
    priority_score: float
    urgency_level: Urgency
    optimization_potential: float | None
    reasons: tuple[Risk, ...]
    recommended_actions: tuple[Suggestion, ...]


def layer_details(run: Run, series: LayerSeries, recent: LayerSeries) -> list[LayerDetail]:
    """Each layer in forward order; `recent` is the part of the series that counts as "now"."""
    compared = _compared(series, recent)
    activity = _activity(run)
    details = []
    for column, name in enumerate(series.names):
        statistics = _statistics(series, column)
        trend = trends.trend(recent.logs[:, column])
        flow = _flow(recent.steps, recent.logs[:, column], trend)
        risks = _risks(series, recent, column, flow.stability_measure)
        health = LayerHealthMetrics(
            _health(risks, statistics.samples),
            _or_missing(flow.stability_measure),
            activity.get(name, missing("rows of the gradient were not recorded")),
            missing(TOO_FEW) if trend is None else trend.fall,
            risks,
        )
        details.append(
            LayerDetail(name, statistics, flow, health, _suggestions(risks), compared[column])
        )
    return details


# -- numbers ---------------------------------------------------------------------------------------


def _statistics(series: LayerSeries, column: int) -> GradientStatistics:
    norms = trends.finite(series.norms[:, column])
    non_finite = int((series.nonfinite[:, column] > 0).sum())
    if not len(norms):
        gone = missing("no finite sample")
        return GradientStatistics(gone, gone, gone, gone, gone, 0, gone, gone, gone, non_finite)
    mean, std = float(norms.mean()), float(norms.std())
    low, middle, high = (float(value) for value in np.percentile(norms, (5, 50, 95)))
    skewness, kurtosis = trends.shape(norms)
    return GradientStatistics(
        mean, std, middle, high, low, len(norms), std * std, skewness, kurtosis, non_finite
    )


def _flow(
    steps: NDArray[np.int64], logs: NDArray[np.float64], trend: trends.Trend | None
) -> FlowCharacteristics:
    """`logs`: the last samples of ln norm in time order, NaN where zero or absent."""
    x = trends.finite(logs)
    n = len(x)
    volatility = trends.volatility(x)
    fit = trends.line(steps, logs)
    return FlowCharacteristics(
        _or_missing(None if volatility is None else 1 / (1 + volatility)),
        _or_missing(trends.smoothness(x)),
        _or_missing(abs(trend.tau) if trend else None),
        _or_missing(None if n < 4 else trends.turning_points(x) / (n - 2)),
        _or_missing(fit.stability if fit else None),
        _or_missing(volatility),
    )


def _or_missing(value: float | None) -> float:
    return missing(TOO_FEW) if value is None else value


def _activity(run: Run) -> dict[str, float]:
    """Share of rows (output units) with a gradient at the end, from the layer's largest tensor."""
    if Stat.GRAD_DEAD_ROWS not in run.recorded:
        return {}
    dead_rows = run.series[Stat.GRAD_DEAD_ROWS]
    largest: dict[str, int] = {}
    activity = {}
    for column, subject in enumerate(run.parameters):
        dead = trends.finite(dead_rows[:, column])
        if len(subject.shape) < 2 or not len(dead) or not subject.shape[0]:
            continue
        if subject.count > largest.get(subject.layer, 0):
            largest[subject.layer] = subject.count
            activity[subject.layer] = 1 - float(dead[-1]) / subject.shape[0]
    return activity


def _compared(series: LayerSeries, recent: LayerSeries) -> list[ComparativeAnalysis]:
    """All layers at once: one sort and one total instead of a pass over the others for each."""
    means = series.means
    finite = np.isfinite(means)
    total, size = float(means[finite].sum()), int(finite.sum())
    ordered = np.sort(means[finite])
    logs = np.full(len(means), -np.inf)
    np.log(means, out=logs, where=finite & (means > 0))
    by_log = sorted(np.flatnonzero(finite).tolist(), key=lambda i: (logs[i], i))
    sorted_logs = logs[by_log]
    gone = missing("no finite sample")
    alone = missing("there is no other layer to compare with")
    compared = []
    for i, mean in enumerate(means.tolist()):
        if not finite[i]:
            compared.append(ComparativeAnalysis(gone, gone, (), gone, gone))
            continue
        if size < 2:
            compared.append(ComparativeAnalysis(1.0, 1, (), 0.0, alone))
            continue
        others = (total - mean) / (size - 1)
        low = int(np.searchsorted(sorted_logs, logs[i] - SIMILAR - 1e-12))
        high = int(np.searchsorted(sorted_logs, logs[i] + SIMILAR + 1e-12, side="right"))
        compared.append(
            ComparativeAnalysis(
                mean / others if others > 0 else 1.0,
                1 + size - int(np.searchsorted(ordered, mean, side="right")),
                tuple(series.names[j] for j in sorted(by_log[low:high]) if j != i),
                abs(mean - others),
                _distance(recent.typical[i], recent.middle),
            )
        )
    return compared


def _distance(rms: float, middle: float) -> float | None:
    if not (rms > 0 and middle > 0):
        return missing("the layer's gradient is zero")  # type: ignore[no-any-return]
    return min(abs(math.log10(rms / middle)) / 2, 1.0)


# -- judgement -------------------------------------------------------------------------------------


def _risks(
    series: LayerSeries, recent: LayerSeries, column: int, stability: float | None
) -> tuple[Risk, ...]:
    """Every reason that holds, gravest first."""
    norms = trends.finite(series.norms[:, column])
    risks = [Risk.NON_FINITE] if series.nonfinite[:, column].any() else []
    if len(norms) < FEWEST:
        return tuple(risks)
    if len(norms) >= DEAD_FOR and not norms[-DEAD_FOR:].any():
        return (*risks, Risk.DEAD)
    typical = recent.typical[column]
    if _grew(norms) or typical > ABOVE_OTHERS * recent.middle:
        risks.append(Risk.EXPLODING)
    if typical < FADED * recent.largest:
        risks.append(Risk.VANISHING)
    if stability is not None and stability < UNSTABLE:
        risks.append(Risk.UNSTABLE)
    if trends.oscillates(recent.logs[:, column]):
        risks.append(Risk.OSCILLATING)
    return tuple(risks)


def _grew(norms: NDArray[np.float64]) -> bool:
    """The last tenth against the first: three decades more, and still rising to the end."""
    tenth = max(len(norms) // 10, 1)
    early, late = median(norms[:tenth]), median(norms[-tenth:])
    return early > 0 and late >= GROWTH * early


def _health(risks: tuple[Risk, ...], samples: int) -> LayerHealth:
    if any(risk in _CRITICAL_RISKS for risk in risks):
        return LayerHealth.CRITICAL
    if risks:
        return LayerHealth.WARNING
    return LayerHealth.HEALTHY if samples >= FEWEST else LayerHealth.UNKNOWN


def _suggestions(risks: tuple[Risk, ...]) -> tuple[LayerOptimizationSuggestion, ...]:
    """One entry for each thing to try, with the first risk that asks for it."""
    reasons: dict[Suggestion, Risk] = {}
    for risk in risks:
        for suggestion in _SUGGESTIONS[risk]:
            reasons.setdefault(suggestion, risk)
    return tuple(LayerOptimizationSuggestion(s, s.advice, risk) for s, risk in reasons.items())


def priority(layer: LayerDetail, share: float) -> OptimizationPriority:
    """What to look at first. Every term lies in 0 … 1 and so does the sum; unknown adds nothing.

    `share` is the layer's part of the squared norm of the whole gradient.
    """
    health = layer.health_metrics.overall_health
    stability = layer.health_metrics.gradient_stability
    distance = layer.comparative_analysis.optimization_potential
    score = (
        HEALTH_WEIGHT * _BADNESS[health]
        + STABILITY_WEIGHT * (0.0 if stability is None else 1 - stability)
        + DISTANCE_WEIGHT * (distance or 0.0)
        + SHARE_WEIGHT * share * (health is not LayerHealth.HEALTHY)
    )
    return OptimizationPriority(
        layer.layer_name,
        TARGET,
        score,
        urgency(health, stability),
        distance,
        layer.health_metrics.risk_factors,
        tuple(item.suggestion_type for item in layer.optimization_suggestions),
    )


def urgency(health: LayerHealth, stability: float | None) -> Urgency:
    """By the layer's health; an unsteady one is more urgent."""
    if health is LayerHealth.CRITICAL:
        return Urgency.CRITICAL
    if health is LayerHealth.WARNING:
        shaky = stability is not None and stability < VERY_UNSTABLE
        return Urgency.HIGH if shaky else Urgency.MEDIUM
    return Urgency.MEDIUM if health is LayerHealth.UNKNOWN else Urgency.LOW
