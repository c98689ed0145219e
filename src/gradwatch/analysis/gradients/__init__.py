"""`analyze_gradients`: every layer, the network, its groups, and what to look at first."""

from dataclasses import dataclass
from typing import Any

from gradwatch.analysis import Rules
from gradwatch.analysis.gradients.groups import (
    GradientDistribution,
    GradientHierarchy,
    LayerInteraction,
    distribution,
    hierarchy,
    interactions,
)
from gradwatch.analysis.gradients.layer import (
    LayerDetail,
    LayerHealth,
    OptimizationPriority,
    layer_details,
    priority,
)
from gradwatch.analysis.gradients.training import (
    ConvergenceIndicators,
    StabilityAssessment,
    TrainingDynamics,
    convergence,
    dynamics,
    stability,
)
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import gradients as original_gradients
from gradwatch.result import Result
from gradwatch.run import Run

CRITICAL_SHARE = 0.3


@dataclass(frozen=True)
class NetworkLevelAnalysis(Result):
    """What holds for all layers together."""

    overall_gradient_health: LayerHealth
    gradient_distribution: GradientDistribution
    layer_interactions: tuple[LayerInteraction, ...]
    convergence_indicators: ConvergenceIndicators
    training_dynamics: TrainingDynamics
    stability_assessment: StabilityAssessment


@dataclass(frozen=True)
class GradientAnalysis(Result):
    """The result of `analyze_gradients`."""

    layer_details: dict[str, LayerDetail]
    network_level_analysis: NetworkLevelAnalysis
    gradient_hierarchy: GradientHierarchy
    optimization_priorities: tuple[OptimizationPriority, ...]


def analyze_gradients(
    run: Run,
    *,
    window: int = 100,
    stability_threshold: float = 0.8,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """What the gradients of a run say: a `GradientAnalysis`.

    `window` is the number of recorded steps that count as "now"; below `stability_threshold` a fall
    of stability is reported sooner. `rules="original"` gives the original program's own answer.
    """
    if window < 3:
        raise GradwatchError(f"Expected a window of at least 3 steps, got {window}.", Exit.USAGE)
    if Rules(rules) is Rules.ORIGINAL:
        return original_gradients.analyze_gradients(
            histories(run), window=window, stability_threshold=stability_threshold
        )
    series = LayerSeries.of(run)
    recent = series.last(window)
    layers = layer_details(run, series, recent)
    health = [layer.health_metrics for layer in layers]
    total = float(series.squares.sum()) or 1.0
    priorities = (
        priority(layer, float(square) / total)
        for layer, square in zip(layers, series.squares, strict=True)
    )
    return GradientAnalysis(
        {layer.layer_name: layer for layer in layers},
        NetworkLevelAnalysis(
            overall_health([item.overall_health for item in health]),
            distribution(series, recent),
            interactions(recent),
            convergence(run, series, [item.convergence_indicator for item in health], window),
            dynamics(run, window),
            stability(run, series, recent, stability_threshold),
        ),
        hierarchy(run, recent),
        tuple(sorted(priorities, key=lambda item: -item.priority_score)),
    )


def overall_health(levels: list[LayerHealth]) -> LayerHealth:
    """One critical layer is enough for a warning; more than three in ten are critical."""
    judged = [level for level in levels if level is not LayerHealth.UNKNOWN]
    if not judged:
        return LayerHealth.UNKNOWN
    if judged.count(LayerHealth.CRITICAL) / len(judged) > CRITICAL_SHARE:
        return LayerHealth.CRITICAL
    return LayerHealth.HEALTHY if set(judged) == {LayerHealth.HEALTHY} else LayerHealth.WARNING
