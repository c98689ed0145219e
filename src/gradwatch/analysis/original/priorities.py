"""Which layer to work on first, by the original's weighted sum."""

from collections.abc import Mapping
from dataclasses import dataclass

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.layers import LayerGradientDetails
from gradwatch.analysis.original.levels import (
    ActionType,
    ImplementationEffort,
    LayerHealth,
    Level,
    OptimizationTarget,
)
from gradwatch.analysis.result import Result

_WEIGHT = {LayerHealth.CRITICAL: 1.0, LayerHealth.WARNING: 0.7, LayerHealth.HEALTHY: 0.3}


@dataclass(frozen=True)
class RecommendedAction(Result):
    action_name: str
    action_type: ActionType
    expected_impact: float
    implementation_effort: ImplementationEffort
    prerequisites: tuple[str, ...]


@dataclass(frozen=True)
class OptimizationPriority(Result):
    target_name: str
    target_type: OptimizationTarget
    priority_score: float
    urgency_level: Level
    optimization_potential: float
    recommended_actions: tuple[RecommendedAction, ...]


ACTIONS = (
    RecommendedAction(
        "Weight Initialization Improvement",
        ActionType.PARAMETER_ADJUSTMENT,
        0.8,
        ImplementationEffort.MODERATE,
        ("A look at the architecture.",),
    ),
    RecommendedAction(
        "Learning Rate Reduction",
        ActionType.LEARNING_RATE_SCHEDULING,
        0.7,
        ImplementationEffort.MINIMAL,
        (),
    ),
    RecommendedAction(
        "Gradient Clipping",
        ActionType.OPTIMIZATION_TECHNIQUE,
        0.6,
        ImplementationEffort.LOW,
        ("Tuning of the hyper-parameters.",),
    ),
)


def priorities(
    details: Mapping[str, LayerGradientDetails], network_mean: float
) -> tuple[OptimizationPriority, ...]:
    """Highest score first; ties and NaN stay in insertion order."""
    listed = [_priority(item, network_mean) for item in details.values()]
    return tuple(_by_score(listed))


def _priority(item: LayerGradientDetails, network_mean: float) -> OptimizationPriority:
    health = item.health_metrics
    potential = item.comparative_analysis.optimization_potential
    stability = health.gradient_stability
    flow = floats.divide(health.information_flow_rate, floats.greatest(network_mean, 1e-8))
    score = (
        _WEIGHT[health.overall_health] * 0.4
        + (1.0 - stability) * 0.3
        + potential * 0.2
        + flow * 0.1
    )
    mean = item.gradient_statistics.mean
    wanted = (mean < 1e-5, mean > 10.0, stability < 0.5)
    return OptimizationPriority(
        target_name=item.layer_name,
        target_type=OptimizationTarget.INDIVIDUAL_LAYER,
        priority_score=floats.least(score, 1.0),
        urgency_level=_urgency(health.overall_health, stability),
        optimization_potential=potential,
        recommended_actions=tuple(a for a, do in zip(ACTIONS, wanted, strict=True) if do),
    )


def _urgency(health: LayerHealth, stability: float) -> Level:
    if health is LayerHealth.CRITICAL:
        return Level.CRITICAL
    if health is LayerHealth.HEALTHY:
        return Level.LOW
    return Level.HIGH if stability < 0.3 else Level.MEDIUM


def _by_score(listed: list[OptimizationPriority]) -> list[OptimizationPriority]:
    return sorted(listed, key=lambda priority: -priority.priority_score)
