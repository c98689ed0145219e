"""`analyze_gradients`: every layer, the network, its groups, and what to look at first."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.comparison import ComparativeAnalysis, compare
from gradwatch.analysis.gradients.convergence import ConvergenceIndicators, convergence
from gradwatch.analysis.gradients.distribution import (
    GradientDistribution,
    LayerInteraction,
    distribution,
    interactions,
)
from gradwatch.analysis.gradients.dynamics import TrainingDynamics, dynamics
from gradwatch.analysis.gradients.health import LayerHealthMetrics, judge, risks, surroundings
from gradwatch.analysis.gradients.hierarchy import GradientHierarchy, hierarchy
from gradwatch.analysis.gradients.levels import LayerHealth
from gradwatch.analysis.gradients.priorities import (
    LayerOptimizationSuggestion,
    OptimizationPriority,
    priority,
    suggestions,
)
from gradwatch.analysis.gradients.stability import StabilityAssessment, stability
from gradwatch.analysis.gradients.statistics import (
    FlowCharacteristics,
    GradientStatistics,
    flow,
    statistics,
)
from gradwatch.analysis.layers import LayerSeries, histories
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import gradients as original_gradients
from gradwatch.result import Result
from gradwatch.run import Run
from gradwatch.stats import Stat

CRITICAL_SHARE = 0.3


@dataclass(frozen=True)
class LayerDetail(Result):
    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics
    health_metrics: LayerHealthMetrics
    optimization_suggestions: tuple[LayerOptimizationSuggestion, ...]
    comparative_analysis: ComparativeAnalysis


@dataclass(frozen=True)
class NetworkLevelAnalysis(Result):
    overall_gradient_health: LayerHealth
    gradient_distribution: GradientDistribution
    layer_interactions: tuple[LayerInteraction, ...]
    convergence_indicators: ConvergenceIndicators
    training_dynamics: TrainingDynamics
    stability_assessment: StabilityAssessment


@dataclass(frozen=True)
class GradientAnalysis(Result):
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
    around = surroundings(recent)
    details, found = _details(run, series, recent, window)
    share = _shares(series)
    ranked = [
        priority(
            name,
            detail.health_metrics.overall_health,
            detail.health_metrics.gradient_stability,
            detail.comparative_analysis.optimization_potential,
            float(share[column]),
            found[column],
        )
        for column, (name, detail) in enumerate(details.items())
    ]
    return GradientAnalysis(
        details,
        _network(run, series, details, found, around.typical, window, stability_threshold),
        hierarchy(run, recent, around.typical),
        tuple(sorted(ranked, key=lambda item: -item.priority_score)),
    )


def _details(
    run: Run, series: LayerSeries, recent: LayerSeries, window: int
) -> tuple[dict[str, LayerDetail], list[list[Any]]]:
    around = surroundings(recent)
    means = _means(series.norms)
    compared = compare(series.names, means, around.typical)
    activity = _activity(run, series.names)
    details, all_risks = {}, []
    for column, name in enumerate(series.names):
        bad = int((series.nonfinite[:, column] > 0).sum())
        numbers = statistics(series.norms[:, column], bad)
        trend = trends.trend(recent.logs[:, column])
        moves = flow(recent.steps, recent.logs[:, column], trend)
        found = risks(series, column, around, window)
        health = judge(moves, found, numbers.samples, trend, activity[column])
        details[name] = LayerDetail(
            name, numbers, moves, health, suggestions(found), compared[column]
        )
        all_risks.append(found)
    return details, all_risks


def _network(
    run: Run,
    series: LayerSeries,
    details: dict[str, LayerDetail],
    found: list[list[Any]],
    typical: NDArray[np.float64],
    window: int,
    threshold: float,
) -> NetworkLevelAnalysis:
    health = [detail.health_metrics for detail in details.values()]
    return NetworkLevelAnalysis(
        overall([item.overall_health for item in health]),
        distribution(series.names, _means(series.norms), typical),
        interactions(series.last(window)),
        convergence(run, series, [item.convergence_indicator for item in health], window),
        dynamics(run, series, window),
        stability(series, [item.gradient_stability for item in health], found, typical, threshold),
    )


def overall(levels: list[LayerHealth]) -> LayerHealth:
    """One critical layer is enough for a warning; more than three in ten are critical."""
    known = [level for level in levels if level is not LayerHealth.UNKNOWN]
    if not known:
        return LayerHealth.UNKNOWN
    critical = known.count(LayerHealth.CRITICAL) / len(known)
    if critical > CRITICAL_SHARE:
        return LayerHealth.CRITICAL
    return LayerHealth.HEALTHY if set(known) == {LayerHealth.HEALTHY} else LayerHealth.WARNING


def _means(norms: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.isfinite(norms)
    sums = np.where(known, norms, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), np.nan)


def _shares(series: LayerSeries) -> NDArray[np.float64]:
    squares = np.nan_to_num(_means(series.norms)) ** 2
    total = float(squares.sum())
    shares: NDArray[np.float64] = squares / total if total > 0 else squares
    return shares


def _activity(run: Run, names: tuple[str, ...]) -> list[float | None]:
    """Share of rows (output units) with a gradient in the window, from the largest tensor."""
    if Stat.GRAD_DEAD_ROWS not in run.recorded:
        return [None] * len(names)
    dead = run.series[Stat.GRAD_DEAD_ROWS]
    best: dict[str, tuple[int, float]] = {}
    for column, subject in enumerate(run.parameters):
        known = dead[:, column][np.isfinite(dead[:, column])]
        if len(subject.shape) >= 2 and len(known) and subject.shape[0]:
            value = 1 - float(known[-1]) / subject.shape[0]
            if subject.count > best.get(subject.layer, (0, 0.0))[0]:
                best[subject.layer] = (subject.count, value)
    return [best[name][1] if name in best else None for name in names]
