"""Gradient analysis of the whole network: distribution, interactions, convergence, stability."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.layers import LayerGradientDetails
from gradwatch.analysis.original.levels import (
    ConvergenceTrend,
    DistributionType,
    InstabilityType,
    InteractionType,
    LayerHealth,
    LearningPhase,
    PlateauSeverity,
    StabilityOutlook,
    StabilityTrend,
)
from gradwatch.analysis.original.statistics import standardised
from gradwatch.analysis.result import Result

PLATEAU_ACTIONS = ("Lower the learning rate.", "Regularise.")
MONITORING = ("Watch gradient norms.", "Watch the convergence indicators.")
SOURCES = {
    InstabilityType.GRADIENT_EXPLOSION: "The gradients of '{}' are very large.",
    InstabilityType.GRADIENT_VANISHING: "The gradients of '{}' are very small.",
    InstabilityType.OSCILLATION: "The gradients of '{}' oscillate.",
}
PHASES = (
    (0.2, LearningPhase.INITIAL_LEARNING),
    (0.4, LearningPhase.RAPID_LEARNING),
    (0.6, LearningPhase.REFINEMENT),
    (0.8, LearningPhase.CONVERGENCE),
)

Details = Sequence[LayerGradientDetails]


@dataclass(frozen=True)
class GradientDistribution(Result):
    mean_gradient_norm: float
    gradient_variance: float
    gradient_skewness: float
    gradient_kurtosis: float
    layer_gradient_ratios: dict[str, float]
    distribution_type: DistributionType


@dataclass(frozen=True)
class LayerInteraction(Result):
    layer1: str
    layer2: str
    interaction_strength: float
    interaction_type: InteractionType
    impact_score: float


@dataclass(frozen=True)
class ConvergenceIndicators(Result):
    gradient_convergence_score: float
    parameter_convergence_score: float
    loss_convergence_score: float
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: int | None


@dataclass(frozen=True)
class PlateauDetection(Result):
    is_plateau: bool
    plateau_duration: int
    plateau_severity: PlateauSeverity
    suggested_actions: tuple[str, ...]


@dataclass(frozen=True)
class TrainingDynamics(Result):
    learning_phase: LearningPhase
    gradient_momentum: float
    learning_velocity: float
    adaptation_rate: float
    plateau_detection: PlateauDetection


@dataclass(frozen=True)
class InstabilitySource(Result):
    source_type: InstabilityType
    affected_layers: tuple[str, ...]
    severity: float
    description: str


@dataclass(frozen=True)
class StabilityForecast(Result):
    short_term_outlook: StabilityOutlook
    long_term_outlook: StabilityOutlook
    confidence_level: float
    recommended_monitoring: tuple[str, ...]


@dataclass(frozen=True)
class StabilityAssessment(Result):
    overall_stability: float
    stability_trend: StabilityTrend
    instability_sources: tuple[InstabilitySource, ...]
    stability_forecast: StabilityForecast


@dataclass(frozen=True)
class NetworkLevelAnalysis(Result):
    overall_gradient_health: LayerHealth
    gradient_distribution: GradientDistribution
    layer_interactions: tuple[LayerInteraction, ...]
    convergence_indicators: ConvergenceIndicators
    training_dynamics: TrainingDynamics
    stability_assessment: StabilityAssessment


def network_level(details: Details, stability_threshold: float) -> NetworkLevelAnalysis:
    scores = [d.health_metrics.convergence_indicator for d in details]
    # (an average over no layers is the empty sum, −0)
    score = floats.total(scores) / float(max(len(details), 1))
    return NetworkLevelAnalysis(
        overall_gradient_health=_health([d.health_metrics.overall_health for d in details]),
        gradient_distribution=_distribution(details),
        layer_interactions=tuple(_interaction(a, b) for a, b in combinations(details, 2)),
        convergence_indicators=_convergence(score),
        training_dynamics=_dynamics(score),
        stability_assessment=_stability(details, stability_threshold),
    )


def _health(layers: Sequence[LayerHealth]) -> LayerHealth:
    critical = floats.divide(layers.count(LayerHealth.CRITICAL), len(layers))
    warning = floats.divide(layers.count(LayerHealth.WARNING), len(layers))
    if critical > 0.3:
        return LayerHealth.CRITICAL
    return LayerHealth.WARNING if critical > 0.1 or warning > 0.5 else LayerHealth.HEALTHY


def _distribution(details: Details) -> GradientDistribution:
    if not details:
        return GradientDistribution(0.0, 0.0, 0.0, 0.0, {}, DistributionType.DEGENERATE)
    means = [d.gradient_statistics.mean for d in details]
    centre = floats.mean(means)
    variance = floats.variance(means, centre)
    skewness, kurtosis = standardised(means, centre, floats.root(variance))
    ratios = {
        d.layer_name: floats.divide(d.gradient_statistics.mean, centre) if centre > 0 else 1.0
        for d in details
    }
    return GradientDistribution(
        centre, variance, skewness, kurtosis, ratios, _kind(skewness, kurtosis)
    )


def _kind(skewness: float, kurtosis: float) -> DistributionType:
    if abs(skewness) > 2.0:
        return DistributionType.SKEWED
    if kurtosis > 3.0:
        return DistributionType.HEAVY_TAILED
    return DistributionType.MULTIMODAL if kurtosis < -1.0 else DistributionType.NORMAL


def _interaction(a: LayerGradientDetails, b: LayerGradientDetails) -> LayerInteraction:
    apart = abs(a.gradient_statistics.mean - b.gradient_statistics.mean)
    stability = abs(
        a.flow_characteristics.stability_measure - b.flow_characteristics.stability_measure
    )
    strength = 1.0 / (1.0 + apart + stability)
    gap = abs(a.health_metrics.convergence_indicator - b.health_metrics.convergence_indicator)
    kind = InteractionType.COMPETITIVE if gap > 0.5 else InteractionType.NEUTRAL
    kind = InteractionType.COOPERATIVE if gap < 0.1 else kind
    return LayerInteraction(a.layer_name, b.layer_name, strength, kind, strength * 0.5)


def _convergence(score: float) -> ConvergenceIndicators:
    trend = ConvergenceTrend.DIVERGING if score < 0.3 else ConvergenceTrend.UNKNOWN
    trend = ConvergenceTrend.STABLE if score > 0.6 else trend
    trend = ConvergenceTrend.CONVERGING if score > 0.8 else trend
    steps = floats.truncated((1.0 - score) * 1000.0) if score > 0.1 else None
    return ConvergenceIndicators(score, score * 0.8, score * 0.9, trend, steps)


def _dynamics(score: float) -> TrainingDynamics:
    phase = next((phase for below, phase in PHASES if score < below), LearningPhase.PLATEAU)
    flat = score > 0.9
    plateau = PlateauDetection(
        is_plateau=flat,
        plateau_duration=10 if flat else 0,
        plateau_severity=PlateauSeverity.SEVERE if score > 0.95 else PlateauSeverity.MILD,
        suggested_actions=PLATEAU_ACTIONS if flat else (),
    )
    return TrainingDynamics(phase, score * 0.8, score * 1.2, 1.0 - score, plateau)


def _stability(details: Details, threshold: float) -> StabilityAssessment:
    measures = [d.flow_characteristics.stability_measure for d in details]
    overall = floats.total(measures) / float(max(len(details), 1))
    short = StabilityOutlook.STABLE if overall > 0.7 else StabilityOutlook.DETERIORATING
    long = StabilityOutlook.STABLE if overall > 0.8 else StabilityOutlook.UNCERTAIN
    return StabilityAssessment(
        overall_stability=overall,
        stability_trend=StabilityTrend.STABLE if overall > threshold else StabilityTrend.DEGRADING,
        instability_sources=tuple(source for d in details for source in _sources(d)),
        stability_forecast=StabilityForecast(short, long, overall, MONITORING),
    )


def _sources(details: LayerGradientDetails) -> list[InstabilitySource]:
    mean = details.gradient_statistics.mean
    frequency = details.flow_characteristics.oscillation_frequency
    tests = (
        (InstabilityType.GRADIENT_EXPLOSION, mean > 100.0, mean / 100.0),
        (InstabilityType.GRADIENT_VANISHING, mean < 1e-5, 1.0 - mean * 1e5),
        (InstabilityType.OSCILLATION, frequency > 0.5, frequency),
    )
    name = details.layer_name
    return [
        InstabilitySource(kind, (name,), severity, SOURCES[kind].format(name))
        for kind, present, severity in tests
        if present
    ]
