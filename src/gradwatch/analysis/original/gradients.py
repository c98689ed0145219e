"""The whole gradient analysis of the original."""

from dataclasses import dataclass

from gradwatch.analysis.original.hierarchy import GradientHierarchy, hierarchy
from gradwatch.analysis.original.history import Histories
from gradwatch.analysis.original.layers import (
    LayerGradientDetails,
    comparison,
    flow_characteristics,
    health_metrics,
    suggestions,
)
from gradwatch.analysis.original.network import NetworkLevelAnalysis, network_level
from gradwatch.analysis.original.priorities import OptimizationPriority, priorities
from gradwatch.analysis.original.statistics import statistics
from gradwatch.analysis.result import Result


@dataclass(frozen=True)
class GradientAnalysis(Result):
    """`EnhancedLayerGradientAnalysis` there."""

    layer_details: dict[str, LayerGradientDetails]
    network_level_analysis: NetworkLevelAnalysis
    gradient_hierarchy: GradientHierarchy
    optimization_priorities: tuple[OptimizationPriority, ...]


def analyze_gradients(
    histories: Histories, *, window: int = 100, stability_threshold: float = 0.8
) -> GradientAnalysis:
    """Raises `GradwatchError` where the original panics (NaN among 21 or more norms, sometimes)."""
    norms = {name: list(history.gradient_norms) for name, history in histories.items()}
    found = {name: statistics(values) for name, values in norms.items()}
    means = {name: item.mean for name, item in found.items()}
    details = {}
    for name, values in norms.items():
        flow = flow_characteristics(values, found[name])
        details[name] = LayerGradientDetails(
            layer_name=name,
            gradient_statistics=found[name],
            flow_characteristics=flow,
            health_metrics=health_metrics(values, found[name], flow, window),
            optimization_suggestions=suggestions(found[name], flow),
            comparative_analysis=comparison(name, means),
        )
    network = network_level(list(details.values()), stability_threshold)
    return GradientAnalysis(
        layer_details=details,
        network_level_analysis=network,
        gradient_hierarchy=hierarchy(list(details.values())),
        optimization_priorities=priorities(
            details, network.gradient_distribution.mean_gradient_norm
        ),
    )
