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
from gradwatch.analysis.weights import WeightDistributionAnalysis
from gradwatch.text import number, percent, several

UNCHANGED = 0.05
"""Decades a path must lose or gain to be spoken of."""
_PHASES = {
    "InitialLearning": "the loss has hardly fallen yet",
    "RapidLearning": "the loss falls about as fast as it ever did",
    "Refinement": "the loss still falls, but slower than at its best",
    "Convergence": "the loss has almost stopped falling",
    "Plateau": "the loss stands still",
    "Overfitting": "the validation loss rises while the training loss falls",
}
_TRENDS = {
    "Converging": "falls",
    "Stable": "neither falls nor rises",
    "Diverging": "rises",
    "Oscillating": "goes up and down",
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
    facts = network_facts(analysis)
    for name, text in facts.items():
        if name in ("gradient", "phase", "stability"):
            yield f"{name.capitalize()}: {text[0].lower()}{text[1:]}"
    moving = [
        item
        for item in analysis.network_level_analysis.layer_interactions or ()
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


def network_facts(found: GradientAnalysis) -> dict[str, str]:
    """What holds for the network as a whole: a sentence for each thing to know, by its name."""
    network = found.network_level_analysis
    dynamics, convergence = network.training_dynamics, network.convergence_indicators
    if dynamics is None or convergence is None:  # a depth that does not compute them
        return {}
    stability = network.stability_assessment
    phase = dynamics.learning_phase
    broken = found.non_finite_since
    told = {
        "described": "" if broken is None else f"the steps before {broken}; then came NaN or Inf",
        "phase": _or_why(dynamics, "learning_phase", phase and _PHASES.get(phase, phase)),
        "plateau": _plateau(dynamics.plateau_detection),
        "gradient": f"the norm of all layers together {_TRENDS[convergence.convergence_trend]}"
        if convergence.convergence_trend in _TRENDS
        else "too few steps to tell where the norm of all layers together is heading",
        "forecast": _forecast(convergence),
        "stability": _stability(stability),
        "outlook": _outlook(stability),
        "direction": _or_why(
            dynamics,
            "gradient_momentum",
            dynamics.gradient_momentum is not None
            and f"successive gradients have a mean cosine of {number(dynamics.gradient_momentum)}",
        ),
    }
    return {name: f"{text[0].upper()}{text[1:]}." for name, text in told.items() if text}


def _or_why(result: Any, field: str, text: Any) -> str:
    """The text, or why there is none."""
    return str(text) if text else f"not known: {result.missing.get(field, 'too little was seen')}"


def _plateau(plateau: Any) -> str:
    if plateau.is_plateau is None:
        return _or_why(plateau, "is_plateau", None)
    if not plateau.is_plateau:
        return "none: the loss does not stand still"
    severity = str(plateau.plateau_severity).lower()
    return (
        f"the loss has not improved since step {plateau.plateau_start}, for "
        f"{plateau.plateau_duration} steps ({severity}). {' '.join(plateau.suggested_actions)}"
    ).rstrip(".")


def _forecast(convergence: Any) -> str:
    left = convergence.estimated_steps_to_convergence
    if left is None:
        return _or_why(convergence, "estimated_steps_to_convergence", None)
    return (
        f"at this rate the gradient is down to 1 % of its start in {left[0]} to {left[1]} steps "
        "(95 % interval)"
    )


def _stability(stability: Any) -> str:
    if stability.overall_stability is None:
        return _or_why(stability, "overall_stability", None)
    trend = stability.stability_trend
    words = {"Improving": ", and growing", "Degrading": ", and falling"}
    return f"{number(stability.overall_stability)} of 1{words.get(trend, '')}"


def _outlook(stability: Any) -> str:
    forecast = stability.stability_forecast
    if forecast is None:
        return _or_why(stability, "stability_forecast", None)
    if forecast.short_term_outlook is None:
        return _or_why(forecast, "short_term_outlook", None)
    short, far = (str(o).lower() for o in (forecast.short_term_outlook, forecast.long_term_outlook))
    words = short if short == far else f"{short} soon, {far} later"
    held = forecast.confidence_level
    return words if held is None else f"{words}; {percent(held)} of held-back stretches bore it out"


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
        if abs(lost) < UNCHANGED:
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
        ("No gradient", summary.layers_with_dead_grads),
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
