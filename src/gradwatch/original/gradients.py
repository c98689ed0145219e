"""The original's enhanced gradient analysis: layers, the network, a hierarchy, priorities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from typing import Literal

from gradwatch.original.arithmetic import (
    Histories,
    consistency,
    divide,
    greatest,
    in_order,
    information_flow_rate,
    least,
    mean,
    root,
    share,
    slope,
    total,
    truncated,
    variance,
)
from gradwatch.result import Result

LayerHealth = Literal["Healthy", "Warning", "Critical"]
SuggestionType = Literal["WeightInitialization", "LearningRateAdjustment", "RegularizationAdd"]
ImplementationComplexity = Literal["Simple", "Moderate"]
DistributionType = Literal["Normal", "Skewed", "HeavyTailed", "Multimodal", "Degenerate"]
InteractionType = Literal["Cooperative", "Competitive", "Neutral"]
ConvergenceTrend = Literal["Converging", "Stable", "Diverging", "Unknown"]
LearningPhase = Literal["InitialLearning", "RapidLearning", "Refinement", "Convergence", "Plateau"]
PlateauSeverity = Literal["Mild", "Severe"]
StabilityTrend = Literal["Stable", "Degrading"]
InstabilityType = Literal["GradientExplosion", "GradientVanishing", "Oscillation"]
StabilityOutlook = Literal["Stable", "Deteriorating", "Uncertain"]
OptimizationDifficulty = Literal["Easy", "Moderate", "Difficult"]
OptimizationTarget = Literal["IndividualLayer"]
UrgencyLevel = Literal["Low", "Medium", "High", "Critical"]
ActionType = Literal["ParameterAdjustment", "OptimizationTechnique", "LearningRateScheduling"]
ImplementationEffort = Literal["Minimal", "Low", "Moderate"]


class GradientStatistics(Result):
    mean: float = 0.0
    std: float = 0.0
    median: float = 0.0
    percentile_95: float = 0.0
    percentile_5: float = 0.0
    samples: int = 0
    variance: float = 0.0
    skewness: float = 0.0
    kurtosis: float = 0.0


class FlowCharacteristics(Result):
    consistency_score: float
    smoothness_index: float
    trend_strength: float
    oscillation_frequency: float
    stability_measure: float


class LayerHealthMetrics(Result):
    overall_health: LayerHealth
    gradient_stability: float
    information_flow_rate: float
    neuron_activity_ratio: float
    convergence_indicator: float
    risk_factors: tuple[str, ...]


class LayerOptimizationSuggestion(Result):
    suggestion_type: SuggestionType
    description: str
    rationale: str
    expected_improvement: float
    implementation_complexity: ImplementationComplexity
    side_effects: tuple[str, ...]


class ComparativeAnalysis(Result):
    relative_performance: float
    rank_among_layers: int
    similar_layers: tuple[str, ...]
    performance_gap: float
    optimization_potential: float


class LayerGradientDetails(Result):
    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics
    health_metrics: LayerHealthMetrics
    optimization_suggestions: tuple[LayerOptimizationSuggestion, ...]
    comparative_analysis: ComparativeAnalysis


class GradientDistribution(Result):
    mean_gradient_norm: float
    gradient_variance: float
    gradient_skewness: float
    gradient_kurtosis: float
    layer_gradient_ratios: dict[str, float]
    distribution_type: DistributionType


class LayerInteraction(Result):
    layer1: str
    layer2: str
    interaction_strength: float
    interaction_type: InteractionType
    impact_score: float


class ConvergenceIndicators(Result):
    gradient_convergence_score: float
    parameter_convergence_score: float
    loss_convergence_score: float
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: int | None


class PlateauDetection(Result):
    is_plateau: bool
    plateau_duration: int
    plateau_severity: PlateauSeverity
    suggested_actions: tuple[str, ...]


class TrainingDynamics(Result):
    learning_phase: LearningPhase
    gradient_momentum: float
    learning_velocity: float
    adaptation_rate: float
    plateau_detection: PlateauDetection


class InstabilitySource(Result):
    source_type: InstabilityType
    affected_layers: tuple[str, ...]
    severity: float
    description: str


class StabilityForecast(Result):
    short_term_outlook: StabilityOutlook
    long_term_outlook: StabilityOutlook
    confidence_level: float
    recommended_monitoring: tuple[str, ...]


class StabilityAssessment(Result):
    overall_stability: float
    stability_trend: StabilityTrend
    instability_sources: tuple[InstabilitySource, ...]
    stability_forecast: StabilityForecast


class NetworkLevelAnalysis(Result):
    overall_gradient_health: LayerHealth
    gradient_distribution: GradientDistribution
    layer_interactions: tuple[LayerInteraction, ...]
    convergence_indicators: ConvergenceIndicators
    training_dynamics: TrainingDynamics
    stability_assessment: StabilityAssessment


class GroupCharacteristics(Result):
    average_gradient_norm: float
    gradient_synchronization: float
    learning_rate_sensitivity: float
    optimization_difficulty: OptimizationDifficulty


class LayerGroup(Result):
    group_name: str
    layers: tuple[str, ...]
    group_characteristics: GroupCharacteristics
    internal_coherence: float


class HierarchyLevel(Result):
    level_id: int
    level_name: str
    layer_groups: tuple[str, ...]
    level_importance: float
    optimization_impact: float


class GradientHierarchy(Result):
    layer_groups: tuple[LayerGroup, ...]
    hierarchy_levels: tuple[HierarchyLevel, ...]
    cross_level_interactions: tuple[()]


class RecommendedAction(Result):
    action_name: str
    action_type: ActionType
    expected_impact: float
    implementation_effort: ImplementationEffort
    prerequisites: tuple[str, ...]


class OptimizationPriority(Result):
    target_name: str
    target_type: OptimizationTarget
    priority_score: float
    urgency_level: UrgencyLevel
    optimization_potential: float
    recommended_actions: tuple[RecommendedAction, ...]


class GradientAnalysis(Result):
    """`EnhancedLayerGradientAnalysis` there."""

    layer_details: dict[str, LayerGradientDetails]
    network_level_analysis: NetworkLevelAnalysis
    gradient_hierarchy: GradientHierarchy
    optimization_priorities: tuple[OptimizationPriority, ...]


Details = Sequence[LayerGradientDetails]


@dataclass(frozen=True)
class EnhancedGradientAnalyzer:
    """The original's analyzer; it never asks for its depth."""

    analysis_depth: str = "Standard"
    convergence_window: int = 100
    stability_threshold: float = 0.8

    def generate_enhanced_analysis(self, gradient_histories: Histories) -> GradientAnalysis:
        """What the norms of each layer say; NaN among two or more stops it."""
        norms = {name: list(history.gradient_norms) for name, history in gradient_histories.items()}
        statistics = {name: _statistics(name, values) for name, values in norms.items()}
        means = {name: numbers.mean for name, numbers in statistics.items()}
        details = []
        for name, numbers in statistics.items():
            flow = _flow_characteristics(norms[name], numbers)
            wanted = (numbers.mean < 1e-5, numbers.mean > 10.0, flow.oscillation_frequency > 0.5)
            details.append(
                LayerGradientDetails(
                    layer_name=name,
                    gradient_statistics=numbers,
                    flow_characteristics=flow,
                    health_metrics=_health_metrics(
                        norms[name], numbers.mean, flow, self.convergence_window
                    ),
                    optimization_suggestions=tuple(compress(SUGGESTIONS, wanted)),
                    comparative_analysis=_comparison(name, means),
                )
            )
        network = _network(details, self.stability_threshold)
        typical = network.gradient_distribution.mean_gradient_norm
        ranked = [_priority(layer, typical) for layer in details]
        return GradientAnalysis(
            layer_details={layer.layer_name: layer for layer in details},
            network_level_analysis=network,
            gradient_hierarchy=_hierarchy(means),
            optimization_priorities=tuple(sorted(ranked, key=lambda item: -item.priority_score)),
        )

    analyze_gradients = generate_enhanced_analysis


# -- one layer -------------------------------------------------------------------------------------

RISKS = (
    "Gradients are very small.",
    "Gradients are very large.",
    "Gradients are unstable.",
    "Gradients oscillate.",
)
SUGGESTIONS = (
    LayerOptimizationSuggestion(
        "WeightInitialization",
        "Initialise the weights better.",
        "Gradients this small often come from a poor initialisation.",
        0.7,
        "Simple",
        ("Training may have to start over.",),
    ),
    LayerOptimizationSuggestion(
        "LearningRateAdjustment",
        "Lower the learning rate of this layer.",
        "Gradients this large often come from too large a learning rate.",
        0.6,
        "Simple",
        ("Convergence may become slower.",),
    ),
    LayerOptimizationSuggestion(
        "RegularizationAdd",
        "Add dropout or weight decay.",
        "Oscillation may come from overfitting or instability.",
        0.5,
        "Moderate",
        ("The model may lose capacity.",),
    ),
)


def _statistics(name: str, norms: Sequence[float]) -> GradientStatistics:
    """All zero for an empty history."""
    if not norms:
        return GradientStatistics()
    centre = mean(norms)
    spread = variance(norms, centre)
    std = root(spread)
    ordered, n = in_order(norms, f"the norms of {name!r}"), len(norms)
    half = n // 2
    skewness, kurtosis = _shape(norms, centre, std)
    return GradientStatistics(
        mean=centre,
        std=std,
        median=ordered[half] if n % 2 else (ordered[half - 1] + ordered[half]) / 2.0,
        percentile_95=ordered[min(int(n * 0.95), n - 1)],
        percentile_5=ordered[int(n * 0.05)],
        samples=n,
        variance=spread,
        skewness=skewness,
        kurtosis=kurtosis,
    )


def _shape(values: Sequence[float], centre: float, std: float) -> tuple[float, float]:
    """Skewness and excess kurtosis; 0 where the std is 0 or NaN."""
    if not std > 0.0:
        return 0.0, 0.0
    z = [(x - centre) / std for x in values]
    third, fourth = total(x * x * x for x in z), total((x * x) * (x * x) for x in z)
    return third / len(z), fourth / len(z) - 3.0


def _flow_characteristics(x: Sequence[float], numbers: GradientStatistics) -> FlowCharacteristics:
    """Of the norms in time order; each measure has its value for a short history."""
    n = len(x)
    bends = [abs(x[i + 2] - 2.0 * x[i + 1] + x[i]) for i in range(n - 2)]
    turns = sum((x[i] - x[i - 1]) * (x[i - 1] - x[i - 2]) < 0 for i in range(2, n))
    return FlowCharacteristics(
        consistency_score=consistency(x),
        smoothness_index=share(mean(bends)) if n >= 3 else 1.0,
        trend_strength=least(abs(slope(x)), 1.0) if n >= 3 else 0.0,
        oscillation_frequency=turns / n if n >= 4 else 0.0,
        stability_measure=share(numbers.std / numbers.mean) if numbers.mean else 0.0,
    )


def _health_metrics(
    norms: Sequence[float], centre: float, flow: FlowCharacteristics, window: int
) -> LayerHealthMetrics:
    """Healthy without a risk, Critical with three."""
    present = (
        centre < 1e-5,
        centre > 100.0,
        flow.stability_measure < 0.5,
        flow.oscillation_frequency > 0.5,
    )
    risks = tuple(compress(RISKS, present))
    activity = mean(norms)  # NaN without a norm, where the statistics say 0
    return LayerHealthMetrics(
        overall_health="Critical" if len(risks) >= 3 else "Warning" if risks else "Healthy",
        gradient_stability=flow.stability_measure,
        information_flow_rate=information_flow_rate(norms),
        neuron_activity_ratio=least(divide(activity, activity + 1e-5), 1.0),
        convergence_indicator=_convergence_indicator(norms, window),
        risk_factors=risks,
    )


def _convergence_indicator(norms: Sequence[float], window: int) -> float:
    """From the slope of the last `window` norms, taken newest first: growing norms converge."""
    if len(norms) < window:
        return 0.5
    newest_first = norms[::-1][:window]
    trend = slope(newest_first) if len(newest_first) >= 3 else 0.0
    return least(-trend, 1.0) if trend < 0 else 0.0


def _comparison(layer: str, means: Mapping[str, float]) -> ComparativeAnalysis:
    """With the unweighted average of the other layers."""
    own = means[layer]
    others = {name: value for name, value in means.items() if name != layer}
    if not others:
        return ComparativeAnalysis(1.0, 1, (), 0.0, 0.5)
    average = mean(list(others.values()))
    ratio = own / average if average > 0 else 1.0
    return ComparativeAnalysis(
        relative_performance=ratio,
        rank_among_layers=_rank(own, list(others.values())),
        similar_layers=tuple(name for name, value in others.items() if _alike(own, value)),
        performance_gap=abs(own - average),
        optimization_potential=0.8 if ratio < 0.5 else 0.6 if ratio < 0.8 else 0.3,
    )


def _rank(own: float, others: Sequence[float]) -> int:
    """Place of the first smaller or equal one among the others, largest first; NaN never is."""
    falling = in_order(others, "the means of the layers")[::-1]
    return 1 + next((i for i, value in enumerate(falling) if own >= value), len(falling))


def _alike(a: float, b: float) -> bool:
    return greatest(divide(a, b + 1e-8), divide(b, a + 1e-8)) <= 1.2


# -- the network -----------------------------------------------------------------------------------

PLATEAU_ACTIONS = ("Lower the learning rate.", "Regularise.")
MONITORING = ("Watch gradient norms.", "Watch the convergence indicators.")
PHASES: tuple[tuple[float, LearningPhase], ...] = (
    (0.2, "InitialLearning"),
    (0.4, "RapidLearning"),
    (0.6, "Refinement"),
    (0.8, "Convergence"),
)


def _network(details: Details, stability_threshold: float) -> NetworkLevelAnalysis:
    count = max(len(details), 1)  # an average over no layers is the empty sum, −0
    score = total(layer.health_metrics.convergence_indicator for layer in details) / count
    stability = total(layer.flow_characteristics.stability_measure for layer in details) / count
    return NetworkLevelAnalysis(
        overall_gradient_health=_network_health(details),
        gradient_distribution=_distribution(details),
        layer_interactions=tuple(_interaction(a, b) for a, b in combinations(details, 2)),
        convergence_indicators=_convergence(score),
        training_dynamics=_dynamics(score),
        stability_assessment=StabilityAssessment(
            overall_stability=stability,
            stability_trend="Stable" if stability > stability_threshold else "Degrading",
            instability_sources=tuple(source for layer in details for source in _sources(layer)),
            stability_forecast=StabilityForecast(
                short_term_outlook="Stable" if stability > 0.7 else "Deteriorating",
                long_term_outlook="Stable" if stability > 0.8 else "Uncertain",
                confidence_level=stability,
                recommended_monitoring=MONITORING,
            ),
        ),
    )


def _network_health(details: Details) -> LayerHealth:
    layers = [layer.health_metrics.overall_health for layer in details]
    critical = layers.count("Critical") / max(len(layers), 1)
    warning = layers.count("Warning") / max(len(layers), 1)
    if critical > 0.3:
        return "Critical"
    return "Warning" if critical > 0.1 or warning > 0.5 else "Healthy"


def _distribution(details: Details) -> GradientDistribution:
    if not details:
        return GradientDistribution(0.0, 0.0, 0.0, 0.0, {}, "Degenerate")
    means = {layer.layer_name: layer.gradient_statistics.mean for layer in details}
    values = list(means.values())
    centre = mean(values)
    spread = variance(values, centre)
    skewness, kurtosis = _shape(values, centre, root(spread))
    ratios = {name: value / centre if centre > 0 else 1.0 for name, value in means.items()}
    kind: DistributionType = "Multimodal" if kurtosis < -1.0 else "Normal"
    if abs(skewness) > 2.0:
        kind = "Skewed"
    elif kurtosis > 3.0:
        kind = "HeavyTailed"
    return GradientDistribution(centre, spread, skewness, kurtosis, ratios, kind)


def _interaction(a: LayerGradientDetails, b: LayerGradientDetails) -> LayerInteraction:
    apart = abs(a.gradient_statistics.mean - b.gradient_statistics.mean)
    steadier = abs(
        a.flow_characteristics.stability_measure - b.flow_characteristics.stability_measure
    )
    strength = 1.0 / (1.0 + apart + steadier)
    gap = abs(a.health_metrics.convergence_indicator - b.health_metrics.convergence_indicator)
    kind: InteractionType = "Competitive" if gap > 0.5 else "Neutral"
    if gap < 0.1:
        kind = "Cooperative"
    return LayerInteraction(a.layer_name, b.layer_name, strength, kind, strength * 0.5)


def _convergence(score: float) -> ConvergenceIndicators:
    trend: ConvergenceTrend = "Diverging" if score < 0.3 else "Unknown"
    if score > 0.6:
        trend = "Converging" if score > 0.8 else "Stable"
    steps = truncated((1.0 - score) * 1000.0) if score > 0.1 else None
    return ConvergenceIndicators(score, score * 0.8, score * 0.9, trend, steps)


def _dynamics(score: float) -> TrainingDynamics:
    flat = score > 0.9
    plateau = PlateauDetection(
        is_plateau=flat,
        plateau_duration=10 if flat else 0,
        plateau_severity="Severe" if score > 0.95 else "Mild",
        suggested_actions=PLATEAU_ACTIONS if flat else (),
    )
    phase: LearningPhase = next((name for below, name in PHASES if score < below), "Plateau")
    return TrainingDynamics(phase, score * 0.8, score * 1.2, 1.0 - score, plateau)


def _sources(layer: LayerGradientDetails) -> list[InstabilitySource]:
    name, centre = layer.layer_name, layer.gradient_statistics.mean
    frequency = layer.flow_characteristics.oscillation_frequency
    tests: tuple[tuple[bool, InstabilityType, float, str], ...] = (
        (centre > 100.0, "GradientExplosion", centre / 100.0, "are very large"),
        (centre < 1e-5, "GradientVanishing", 1.0 - centre * 1e5, "are very small"),
        (frequency > 0.5, "Oscillation", frequency, "oscillate"),
    )
    return [
        InstabilitySource(kind, (name,), severity, f"The gradients of '{name}' {words}.")
        for present, kind, severity, words in tests
        if present
    ]


# -- hierarchy -------------------------------------------------------------------------------------

BANDS = (
    ("High", GroupCharacteristics(2.0, 0.8, 0.9, "Difficult"), 0.7, 0.9, 0.8),
    ("Medium", GroupCharacteristics(0.5, 0.6, 0.5, "Moderate"), 0.8, 0.7, 0.6),
    ("Low", GroupCharacteristics(0.05, 0.4, 0.3, "Easy"), 0.5, 0.5, 0.4),
)


def _hierarchy(means: Mapping[str, float]) -> GradientHierarchy:
    """Three bands by mean norm; every number about a band is a constant in the original.

    Empty bands are left out; the level keeps its number. NaN belongs to no band.
    """
    members = (
        [name for name, value in means.items() if value > 1.0],
        [name for name, value in means.items() if 0.1 <= value <= 1.0],
        [name for name, value in means.items() if value < 0.1],
    )
    groups, levels = [], []
    for number, (names, band) in enumerate(zip(members, BANDS, strict=True)):
        title, characteristics, coherence, importance, impact = band
        if names:
            group = f"{title} Gradient Layers"
            level = f"{title} Gradient Level"
            groups.append(LayerGroup(group, tuple(names), characteristics, coherence))
            levels.append(HierarchyLevel(number, level, (group,), importance, impact))
    return GradientHierarchy(tuple(groups), tuple(levels), ())


# -- priorities ------------------------------------------------------------------------------------

WEIGHT: dict[LayerHealth, float] = {"Critical": 1.0, "Warning": 0.7, "Healthy": 0.3}
ACTIONS = (
    RecommendedAction(
        "Weight Initialization Improvement",
        "ParameterAdjustment",
        0.8,
        "Moderate",
        ("A look at the architecture.",),
    ),
    RecommendedAction("Learning Rate Reduction", "LearningRateScheduling", 0.7, "Minimal", ()),
    RecommendedAction(
        "Gradient Clipping",
        "OptimizationTechnique",
        0.6,
        "Low",
        ("Tuning of the hyper-parameters.",),
    ),
)


def _priority(layer: LayerGradientDetails, typical: float) -> OptimizationPriority:
    """A weighted sum of four terms, at most 1; `typical` is the mean norm of the network."""
    health = layer.health_metrics
    stability = health.gradient_stability
    potential = layer.comparative_analysis.optimization_potential
    score = (
        WEIGHT[health.overall_health] * 0.4
        + (1.0 - stability) * 0.3
        + potential * 0.2
        + health.information_flow_rate / greatest(typical, 1e-8) * 0.1
    )
    centre = layer.gradient_statistics.mean
    wanted = (centre < 1e-5, centre > 10.0, stability < 0.5)
    return OptimizationPriority(
        target_name=layer.layer_name,
        target_type="IndividualLayer",
        priority_score=least(score, 1.0),
        urgency_level=_urgency(health.overall_health, stability),
        optimization_potential=potential,
        recommended_actions=tuple(compress(ACTIONS, wanted)),
    )


def _urgency(health: LayerHealth, stability: float) -> UrgencyLevel:
    if health == "Critical":
        return "Critical"
    if health == "Healthy":
        return "Low"
    return "High" if stability < 0.3 else "Medium"
