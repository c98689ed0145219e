"""What to look at first: each layer's score from bounded terms, with its reasons."""

from dataclasses import dataclass

from gradwatch.analysis.gradients.levels import (
    SUGGESTIONS,
    TEXTS,
    LayerHealth,
    Risk,
    Suggestion,
    Urgency,
)
from gradwatch.result import Result

HEALTH_WEIGHT, STABILITY_WEIGHT, DISTANCE_WEIGHT, SHARE_WEIGHT = 0.4, 0.3, 0.2, 0.1
UNSTABLE = 0.3
TARGET = "IndividualLayer"
_HEALTH = {
    LayerHealth.CRITICAL: 1.0,
    LayerHealth.WARNING: 0.7,
    LayerHealth.UNKNOWN: 0.5,
    LayerHealth.HEALTHY: 0.0,
}


@dataclass(frozen=True)
class LayerOptimizationSuggestion(Result):
    suggestion_type: Suggestion
    description: str
    reason: Risk


@dataclass(frozen=True)
class OptimizationPriority(Result):
    target_name: str
    target_type: str
    priority_score: float
    urgency_level: Urgency
    optimization_potential: float | None
    reasons: tuple[Risk, ...]
    recommended_actions: tuple[Suggestion, ...]


def suggestions(risks: list[Risk]) -> tuple[LayerOptimizationSuggestion, ...]:
    """One entry for each thing to try, with the first risk that asks for it."""
    found: dict[Suggestion, Risk] = {}
    for risk in risks:
        for suggestion in SUGGESTIONS[risk]:
            found.setdefault(suggestion, risk)
    return tuple(LayerOptimizationSuggestion(s, TEXTS[s], risk) for s, risk in found.items())


def priority(
    name: str,
    health: LayerHealth,
    stability: float | None,
    distance: float | None,
    share: float,
    risks: list[Risk],
) -> OptimizationPriority:
    """Every term lies in 0 … 1 and so does the sum; what is unknown adds nothing."""
    score = (
        HEALTH_WEIGHT * _HEALTH[health]
        + STABILITY_WEIGHT * (0.0 if stability is None else 1 - stability)
        + DISTANCE_WEIGHT * (distance or 0.0)
        + SHARE_WEIGHT * share * (health is not LayerHealth.HEALTHY)
    )
    actions = tuple(item.suggestion_type for item in suggestions(risks))
    return OptimizationPriority(
        name, TARGET, score, urgency(health, stability), distance, tuple(risks), actions
    )


def urgency(health: LayerHealth, stability: float | None) -> Urgency:
    if health is LayerHealth.CRITICAL:
        return Urgency.CRITICAL
    if health is LayerHealth.WARNING:
        shaky = stability is not None and stability < UNSTABLE
        return Urgency.HIGH if shaky else Urgency.MEDIUM
    return Urgency.MEDIUM if health is LayerHealth.UNKNOWN else Urgency.LOW
