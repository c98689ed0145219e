"""The three things to know of each analysis, in sentences: for the terminal, the report, the page.

Health words come from the verdict; everything else is a number of the result, read out.
"""

from collections.abc import Iterator
from typing import Any

from gradwatch.analysis.animator import GradientFlowSummary
from gradwatch.analysis.explosion import GradientExplosionAnalysis
from gradwatch.analysis.flow import GradientFlow
from gradwatch.analysis.flow.network import EdgeType, NodeType
from gradwatch.analysis.gradients import GradientAnalysis
from gradwatch.analysis.gradients.relations import InteractionType
from gradwatch.analysis.gradients.training import ConvergenceTrend, LearningPhase
from gradwatch.analysis.weights import WeightDistributionAnalysis
from gradwatch.text import number, percent, several

_TRENDS = {
    ConvergenceTrend.CONVERGING: "falls",
    ConvergenceTrend.DIVERGING: "rises",
    ConvergenceTrend.OSCILLATING: "swings to and fro",
    ConvergenceTrend.STABLE: "keeps its size",
    ConvergenceTrend.UNKNOWN: "was seen too rarely for a trend",
}
_PHASES = {
    LearningPhase.INITIAL_LEARNING: "has hardly begun to learn",
    LearningPhase.RAPID_LEARNING: "learns fast",
    LearningPhase.REFINEMENT: "refines what it has learnt",
    LearningPhase.CONVERGENCE: "has nearly converged",
    LearningPhase.PLATEAU: "is on a plateau",
    LearningPhase.OVERFITTING: "overfits",
}


def sentences(result: Any) -> tuple[str, ...]:
    """What a person should know first of a result, most important first."""
    match result:
        case GradientAnalysis():
            return tuple(_of_gradients(result))
        case GradientFlow():
            return tuple(_of_flow(result))
        case WeightDistributionAnalysis():
            return tuple(_of_weights(result))
        case GradientFlowSummary():
            return tuple(_of_animation(result))
        case GradientExplosionAnalysis():
            return tuple(_of_explosion(result))
    raise TypeError(f"There are no sentences for a {type(result).__name__}.")


def went_non_finite(step: int | None) -> Iterator[str]:
    """That a run is described only up to where it went non-finite."""
    if step is not None:
        yield f"From step {step} on there is NaN or Inf: what follows describes the steps before."


# -- gradients -------------------------------------------------------------------------------------


def _of_gradients(analysis: GradientAnalysis) -> Iterator[str]:
    yield _layers_in_a_sentence(analysis)
    network = analysis.network_level_analysis
    if network.convergence_indicators is not None and network.training_dynamics is not None:
        yield _training(network)
    if network.stability_assessment is not None:
        yield _steadiness(network.stability_assessment)
    moving = [
        item
        for item in network.layer_interactions or ()
        if item.interaction_type is not InteractionType.NEUTRAL
    ]
    if moving:
        first = moving[0]
        yield (
            f"{len(moving)} pairs of layers move together or against each other, above all "
            f"{first.layer1} and {first.layer2} ({first.interaction_type.value.lower()}, "
            f"{number(first.interaction_strength)})."
        )


def _layers_in_a_sentence(analysis: GradientAnalysis) -> str:
    details = list(analysis.layer_details.values())
    sick: dict[str, list[str]] = {"Critical": [], "Warning": []}
    for item in details:
        sick.get(item.health_metrics.overall_health.value, []).append(item.layer_name)
    words = [
        f"{len(names)} {word.lower()} ({several(names)})" for word, names in sick.items() if names
    ]
    state = " and ".join(words) if words else "none of them in trouble"
    norms = {
        item.layer_name: item.gradient_statistics.mean
        for item in details
        if item.gradient_statistics.mean
    }
    text = f"{len(details)} {'layer' if len(details) == 1 else 'layers'}: {state}"
    if len(norms) < 2:
        return f"{text}."
    low, high = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
    return (
        f"{text}; mean norms from {number(norms[low])} in {low} to {number(norms[high])} in {high}."
    )


def _training(network: Any) -> str:
    convergence, dynamics = network.convergence_indicators, network.training_dynamics
    text = f"The gradient as a whole {_TRENDS[convergence.convergence_trend]}"
    left = convergence.estimated_steps_to_convergence
    if left is not None:
        text += f" ({left[0]} to {left[1]} steps to a hundredth of its start, if it goes on)"
    phase = dynamics.learning_phase
    if phase is None:
        return f"{text}; {dynamics.missing['learning_phase']}."
    text += f"; by its loss the training {_PHASES[phase]}"
    plateau = dynamics.plateau_detection
    if plateau.is_plateau:
        text += f" since step {plateau.plateau_start}"
    return f"{text}."


def _steadiness(stability: Any) -> str:
    if stability.overall_stability is None:
        return (
            f"How steady the gradients are is not known: {stability.missing['overall_stability']}."
        )
    text = f"Stability {number(stability.overall_stability)} of 1"
    if stability.stability_trend is not None:
        text += f", {stability.stability_trend.value.lower()}"
    if stability.instability_sources:
        worst = max(stability.instability_sources, key=lambda item: item.severity)
        text += f"; disturbed most: {worst.description}"
    return f"{text}."


# -- flow ------------------------------------------------------------------------------------------


def _of_flow(flow: GradientFlow) -> Iterator[str]:
    network = flow.flow_network
    blocked = [e for e in network.edges if e.edge_type is EdgeType.BLOCKED]
    narrow = [n.layer_name for n in network.nodes if n.node_type is NodeType.BOTTLENECK]
    passed = network.network_metrics.overall_flow_efficiency
    text = f"{len(network.nodes)} layers, {len(network.edges)} connections"
    if passed is not None:
        text += f"; on average one passes {number(passed)} of the gradient back"
    if blocked:
        pairs = [f"{edge.to_layer} to {edge.from_layer}" for edge in blocked]
        text += f"; blocked: {several(pairs)}"
    if narrow:
        text += f"; bottlenecks: {several(narrow)}"
    yield f"{text}."
    for path in flow.critical_paths[:1]:
        lost = path.criticality_score
        if path.total_flow_strength == 0:
            yield (
                f"From {path.layers[-1]} back to {path.layers[0]} no gradient arrives: it ends at "
                f"{several(path.bottleneck_layers)}."
            )
            continue
        yield (
            f"From {path.layers[-1]} back to {path.layers[0]} the gradient "
            f"{'loses' if lost > 0 else 'gains'} {abs(lost):.1f} decades over {path.path_length} "
            f"layers" + (f", most at {several(path.bottleneck_layers)}" if lost > 0 else "") + "."
        )
    regions = [
        f"{word} in {several(region.affected_layers)} from step {region.extent.start_step}"
        + ("" if region.current else f" to {region.extent.end_step}")
        for word, kind in (
            ("vanishing", flow.vanishing_regions),
            ("exploding", flow.exploding_regions),
        )
        for region in kind
    ]
    regions += [
        f"dead {several(z.affected_layers)} since step {z.start_step}" for z in flow.dead_zones
    ]
    if regions:
        more = f"; and {len(regions) - 3} more" if len(regions) > 3 else ""
        yield f"Regions: {'; '.join(regions[:3])}{more}."


# -- weights, animation, explosion -----------------------------------------------------------------


def _of_weights(analysis: WeightDistributionAnalysis) -> Iterator[str]:
    layers = list(analysis.layer_analyses.values())
    with_issues = [layer for layer in layers if layer.issues]
    text = f"{len(layers)} tensors"
    if with_issues:
        kinds = dict.fromkeys(str(issue.value) for layer in with_issues for issue in layer.issues)
        text += f", {len(with_issues)} with issues ({', '.join(kinds)})"
    overall = analysis.overall_statistics
    if overall.mean is not None and overall.std_dev is not None:
        text += f"; all together mean {number(overall.mean)}, std {number(overall.std_dev)}"
    if overall.zero_fraction:
        text += f", {percent(overall.zero_fraction)} zeros"
    yield f"{text}."
    outliers = analysis.outlier_detection
    if outliers is None:
        yield f"Outliers and entropy: {analysis.missing['outlier_detection']}."
    elif outliers.outliers:
        furthest = max(outliers.outliers, key=lambda item: abs(item.z_score))
        yield (
            f"{outliers.total} outliers, the furthest {number(furthest.value)} in {furthest.name}, "
            f"{number(abs(furthest.z_score))} robust deviations from its median."
        )
    entropies = {x.name: x.statistics.normalized_entropy for x in layers}
    known = {name: value for name, value in entropies.items() if value is not None}
    if known:
        lowest = min(known, key=known.__getitem__)
        yield f"Least spread out: {lowest}, {percent(known[lowest])} of the entropy it could have."


def _of_animation(summary: GradientFlowSummary) -> Iterator[str]:
    yield (
        f"{summary.frames_retained} frames"
        + (
            ""
            if summary.first_step is None
            else f", steps {summary.first_step}–{summary.last_step}"
        )
        + f": {summary.overall_health.value}."
    )
    for word, layers in (
        ("NaN or Inf", summary.layers_with_nonfinite_grads),
        ("Exploding", summary.layers_with_exploding_grads),
        ("Vanishing", summary.layers_with_vanishing_grads),
    ):
        if layers:
            yield f"{word}: {several(layers, 3)}."
    for code in summary.recommendations[:3]:
        yield code.advice


def _of_explosion(analysis: GradientExplosionAnalysis) -> Iterator[str]:
    if not analysis.exploding_layers:
        largest = number(analysis.max_gradient_norm or 0.0)
        yield f"No layer is above the limit; the largest norm is {largest}."
        return
    names = list(analysis.exploding_layers)
    yield f"{len(names)} above the limit ({several(names)}): {analysis.overall_severity.value}."
    if analysis.clip_coefficient is not None:
        factor = number(analysis.clip_coefficient)
        yield f"Clipping at the limit would multiply every gradient by {factor}."
    for code in analysis.mitigation_recommendations[:2]:
        yield code.advice
