"""Gradient analysis of single layers: flow, health, suggestions, comparison with the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import Complexity, LayerHealth, SuggestionType
from gradwatch.analysis.original.sorting import in_order
from gradwatch.analysis.original.statistics import (
    GradientStatistics,
    consistency,
    information_flow_rate,
    share,
)
from gradwatch.analysis.result import Result

RISKS = (
    "Gradients are very small.",
    "Gradients are very large.",
    "Gradients are unstable.",
    "Gradients oscillate.",
)


@dataclass(frozen=True)
class FlowCharacteristics(Result):
    consistency_score: float
    smoothness_index: float
    trend_strength: float
    oscillation_frequency: float
    stability_measure: float


@dataclass(frozen=True)
class LayerHealthMetrics(Result):
    overall_health: LayerHealth
    gradient_stability: float
    information_flow_rate: float
    neuron_activity_ratio: float
    convergence_indicator: float
    risk_factors: tuple[str, ...]


@dataclass(frozen=True)
class LayerOptimizationSuggestion(Result):
    suggestion_type: SuggestionType
    description: str
    rationale: str
    expected_improvement: float
    implementation_complexity: Complexity
    side_effects: tuple[str, ...]


@dataclass(frozen=True)
class ComparativeAnalysis(Result):
    relative_performance: float
    rank_among_layers: int
    similar_layers: tuple[str, ...]
    performance_gap: float
    optimization_potential: float


@dataclass(frozen=True)
class LayerGradientDetails(Result):
    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics
    health_metrics: LayerHealthMetrics
    optimization_suggestions: tuple[LayerOptimizationSuggestion, ...]
    comparative_analysis: ComparativeAnalysis


SUGGESTIONS = (
    LayerOptimizationSuggestion(
        SuggestionType.WEIGHT_INITIALIZATION,
        "Initialise the weights better.",
        "Gradients this small often come from a poor initialisation.",
        0.7,
        Complexity.SIMPLE,
        ("Training may have to start over.",),
    ),
    LayerOptimizationSuggestion(
        SuggestionType.LEARNING_RATE_ADJUSTMENT,
        "Lower the learning rate of this layer.",
        "Gradients this large often come from too large a learning rate.",
        0.6,
        Complexity.SIMPLE,
        ("Convergence may become slower.",),
    ),
    LayerOptimizationSuggestion(
        SuggestionType.REGULARIZATION_ADD,
        "Add dropout or weight decay.",
        "Oscillation may come from overfitting or instability.",
        0.5,
        Complexity.MODERATE,
        ("The model may lose capacity.",),
    ),
)


def flow_characteristics(norms: Sequence[float], found: GradientStatistics) -> FlowCharacteristics:
    """Of norms in time order."""
    return FlowCharacteristics(
        consistency_score=consistency(norms),
        smoothness_index=_smoothness(norms),
        trend_strength=floats.least(abs(floats.slope(norms)), 1.0) if len(norms) >= 3 else 0.0,
        oscillation_frequency=_oscillation(norms),
        stability_measure=_stability(found),
    )


def _smoothness(norms: Sequence[float]) -> float:
    x = list(norms)
    if len(x) < 3:
        return 1.0
    bends = [abs(x[i + 2] - 2.0 * x[i + 1] + x[i]) for i in range(len(x) - 2)]
    return share(floats.mean(bends))


def _oscillation(norms: Sequence[float]) -> float:
    x = list(norms)
    if len(x) < 4:
        return 0.0
    turns = sum((x[i] - x[i - 1]) * (x[i - 1] - x[i - 2]) < 0 for i in range(2, len(x)))
    return turns / float(len(x))


def _stability(found: GradientStatistics) -> float:
    if not found.samples or found.mean == 0.0:
        return 0.0
    return share(floats.divide(found.std, found.mean))


def convergence_indicator(norms: Sequence[float], window: int) -> float:
    """From the slope of the last `window` norms, taken newest first: growing norms converge."""
    if len(norms) < window:
        return 0.5
    newest_first = list(norms)[::-1][:window]
    trend = floats.slope(newest_first) if len(newest_first) >= 3 else 0.0
    return floats.least(-trend, 1.0) if trend < 0 else 0.0


def health_metrics(
    norms: Sequence[float], found: GradientStatistics, flow: FlowCharacteristics, window: int
) -> LayerHealthMetrics:
    """Healthy without a risk, Critical with three."""
    present = (
        found.mean < 1e-5,
        found.mean > 100.0,
        flow.stability_measure < 0.5,
        flow.oscillation_frequency > 0.5,
    )
    risks = tuple(risk for risk, is_there in zip(RISKS, present, strict=True) if is_there)
    health = LayerHealth.HEALTHY if not risks else LayerHealth.WARNING
    centre = floats.mean(norms)
    return LayerHealthMetrics(
        overall_health=LayerHealth.CRITICAL if len(risks) >= 3 else health,
        gradient_stability=flow.stability_measure,
        information_flow_rate=information_flow_rate(norms),
        neuron_activity_ratio=floats.least(floats.divide(centre, centre + 1e-5), 1.0),
        convergence_indicator=convergence_indicator(norms, window),
        risk_factors=risks,
    )


def suggestions(
    found: GradientStatistics, flow: FlowCharacteristics
) -> tuple[LayerOptimizationSuggestion, ...]:
    wanted = (found.mean < 1e-5, found.mean > 10.0, flow.oscillation_frequency > 0.5)
    return tuple(s for s, is_wanted in zip(SUGGESTIONS, wanted, strict=True) if is_wanted)


def comparison(layer: str, means: dict[str, float]) -> ComparativeAnalysis:
    """With the unweighted average of the other layers."""
    own = means[layer]
    others = {name: value for name, value in means.items() if name != layer}
    if not others:
        return ComparativeAnalysis(1.0, 1, (), 0.0, 0.5)
    average = floats.mean(list(others.values()))
    ratio = floats.divide(own, average) if average > 0 else 1.0
    return ComparativeAnalysis(
        relative_performance=ratio,
        rank_among_layers=_rank(own, list(others.values())),
        similar_layers=tuple(n for n, value in others.items() if _distance(own, value) <= 1.2),
        performance_gap=abs(own - average),
        optimization_potential=0.8 if ratio < 0.5 else 0.6 if ratio < 0.8 else 0.3,
    )


def _rank(own: float, others: list[float]) -> int:
    """Place of the first smaller or equal one among the others, largest first; NaN never is."""
    falling = [-value for value in in_order([-value for value in others])]
    return 1 + next((i for i, value in enumerate(falling) if own >= value), len(falling))


def _distance(a: float, b: float) -> float:
    return floats.greatest(floats.divide(a, b + 1e-8), floats.divide(b, a + 1e-8))
