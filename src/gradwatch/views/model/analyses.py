"""The section of the analyses: what to look at first, the network, groups, interactions, weights.

Numbers come from `gradwatch.analysis`; every word of health from the verdict of the diagnosis that
the page shows. Lists are cut to what can be read, and say how many there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from gradwatch.analysis.gradients import GradientAnalysis, analyze_gradients
from gradwatch.analysis.gradients.groups import LayerGroup
from gradwatch.analysis.gradients.layer import LayerHealth
from gradwatch.analysis.gradients.priorities import (
    OptimizationPriority,
    OptimizationTarget,
    Urgency,
)
from gradwatch.analysis.gradients.relations import (
    CrossLevelInteraction,
    InteractionDirection,
    InteractionType,
    LayerInteraction,
)
from gradwatch.analysis.sentences import network_facts
from gradwatch.analysis.weights import WeightDistributionAnalysis, analyze_weights
from gradwatch.diagnosis import Diagnosis, Verdict, Verdicts, verdicts
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median
from gradwatch.text import number
from gradwatch.views.model.titles import rounded

MOST_VALUES = 2_000_000
MOST_NAMES = 10_000
"""Tensors × steps and tensors: more are left to `gradwatch analyze`, so that a page opens soon."""
MOST_TARGETS = 30
MOST_GROUPS = 12
MOST_IN_MATRIX = 12
MOST_BETWEEN = 6
MOST_TENSORS = 40


class Target(TypedDict):
    """A layer, a group of layers or the network: what is said of it and what to try."""

    name: str
    kind: str
    """layer, group or network."""
    state: str
    """healthy, warning, critical or unknown: the verdict's word."""
    reasons: list[str]
    traits: list[str]
    """How its norms move: worth knowing, no trouble in itself."""
    actions: list[str]
    share: float | None
    """Of the squared norm of the whole gradient."""
    decades: float | None
    """Between its typical gradient RMS and the median layer's."""
    stability: float | None


class Fact(TypedDict):
    """One thing to know about the network."""

    name: str
    text: str


class Bar(TypedDict):
    """One group of layers."""

    name: str
    layers: int
    share: float | None
    decades: float | None


class Level(TypedDict):
    """One way of dividing all layers into groups."""

    name: str
    explains: float | None
    """How much of the spread of the layers' gradients lies between its groups."""
    bars: list[Bar]
    count: int


class Matrix(TypedDict):
    """The layers that move together most, and each measured pair of them."""

    names: list[str]
    pairs: list[tuple[int, int, float, str]]
    """Row, column (above the diagonal), strength 0 … 1, kind."""
    count: int
    between: list[str]
    """What is said of whole blocks."""


class WeightRow(TypedDict):
    """The weights of one tensor."""

    name: str
    state: str
    reasons: list[str]
    std: float | None
    zeros: float | None
    outliers: int | None
    expected: float | None
    entropy: float | None
    """Of its largest possible value."""


class Analyses(TypedDict):
    """What the page shows; what is not there says why under `missing`."""

    targets: list[Target]
    """What to look at first."""
    target_count: int
    network: list[Fact]
    levels: list[Level]
    matrix: Matrix | None
    weights: list[WeightRow]
    weight_count: int
    missing: dict[str, str]


def analyses(
    run: Run, diagnosis: Diagnosis, weights: WeightDistributionAnalysis | None = None
) -> Analyses:
    """All of it, of the whole run; `weights` where somebody has analysed the elements already."""
    said = verdicts(run, diagnosis)
    section = Analyses(
        targets=[],
        target_count=0,
        network=[],
        levels=[],
        matrix=None,
        weights=[],
        weight_count=0,
        missing={},
    )
    steps, tensors = len(run.steps), len(run.parameters)
    if steps * tensors > MOST_VALUES or tensors > MOST_NAMES:
        reason = (
            f"{tensors:,} tensors on {steps:,} steps are too many for a page that opens soon; "
            "gradwatch analyze looks at them all"
        )
        section["missing"] = {"gradients": reason, "weights": reason}
        return section
    if Stat.GRAD_NORM not in run.recorded or not len(run.measured_rows(Stat.GRAD_NORM)):
        section["missing"]["gradients"] = "no gradient was recorded"
    else:
        _add_gradients(section, run, analyze_gradients(run), said)
    try:
        _add_weights(section, weights or analyze_weights(run), said)
    except GradwatchError:
        section["missing"]["weights"] = "no weights were recorded"
    return section


def _add_gradients(section: Analyses, run: Run, found: GradientAnalysis, said: Verdicts) -> None:
    shares, decades = _shares(found), _decades(run, found)
    targets = [
        _target(item, found, said, shares, decades) for item in found.optimization_priorities
    ]
    section["target_count"] = len(targets)
    section["targets"] = targets[:MOST_TARGETS]
    told = network_facts(found).items()
    section["network"] = [
        _counted(targets, said.diagnosis),
        *(Fact(name=name, text=text) for name, text in told),
    ]
    section["levels"] = _levels(found, shares, decades)
    section["matrix"] = _matrix(found)
    if section["matrix"] is None:
        section["missing"]["matrix"] = (
            "No two layers were seen to move together more than chance lets them."
            if len(found.layer_details) > 1
            else "One layer has no other to move with."
        )


# -- targets ---------------------------------------------------------------------------------------


_KINDS = {
    OptimizationTarget.INDIVIDUAL_LAYER: "layer",
    OptimizationTarget.LAYER_GROUP: "group",
    OptimizationTarget.NETWORK_LEVEL: "network",
}


def _target(
    item: OptimizationPriority,
    found: GradientAnalysis,
    said: Verdicts,
    shares: Mapping[str, float],
    decades: Mapping[str, float],
) -> Target:
    """Numbers are a layer's own; groups and the network have them among the groups."""
    layer = item.target_type is OptimizationTarget.INDIVIDUAL_LAYER
    detail = found.layer_details.get(item.target_name) if layer else None
    metrics = detail.health_metrics if detail else None
    verdicts_on = said.by_layer.get(item.target_name, ()) if layer else ()
    known = metrics is not None and metrics.overall_health is not LayerHealth.UNKNOWN
    return Target(
        name=item.target_name,
        kind=_KINDS[item.target_type],
        state=_state(verdicts_on, known) if layer else _word(item.urgency_level),
        reasons=_reasons(verdicts_on) if layer else list(item.reasons),
        traits=[str(trait).lower() for trait in metrics.traits] if metrics else [],
        actions=list(dict.fromkeys(action.action_name for action in item.recommended_actions)),
        share=rounded(shares.get(item.target_name), 3) if layer else None,
        decades=rounded(decades.get(item.target_name), 3) if layer else None,
        stability=rounded(metrics.gradient_stability, 3) if metrics else None,
    )


def _state(said: Sequence[Verdict], known: bool) -> str:
    """The gravest word about a layer or tensor; below a warning only whether it was judged."""
    if said and said[0].severity >= Severity.WARNING:
        return said[0].severity.word
    return "healthy" if known else "unknown"


def _word(urgency: Urgency) -> str:
    """Groups and the network are only listed for a trouble that their layers share."""
    return "critical" if urgency is Urgency.CRITICAL else "warning"


def _reasons(said: Iterable[Verdict]) -> list[str]:
    """Each check and the step since when it holds; a checkpoint has no time, and no step."""
    return [
        f"{item.check} since step {item.first_step}" if item.last_step else item.check
        for item in said
        if item.severity >= Severity.WARNING
    ]


def _shares(found: GradientAnalysis) -> dict[str, float]:
    """Each layer's part of the squared norm of the whole gradient."""
    means = {name: d.gradient_statistics.mean for name, d in found.layer_details.items()}
    known = {name: mean for name, mean in means.items() if mean is not None}
    largest = max(known.values(), default=0.0)
    if not largest > 0:
        return {}
    squares = {name: (mean / largest) ** 2 for name, mean in known.items()}
    total = sum(squares.values())
    return {name: square / total for name, square in squares.items()}


def _decades(run: Run, found: GradientAnalysis) -> dict[str, float]:
    """Each layer's typical RMS against the median layer's; layers without one are left out."""
    counts: dict[str, int] = {}
    for subject in run.parameters:
        counts[subject.layer] = counts.get(subject.layer, 0) + subject.count
    logs = {
        name: float(np.log10(typical) - np.log10(max(counts.get(name, 0), 1)) / 2)
        for name, detail in found.layer_details.items()
        if (typical := detail.gradient_statistics.median) is not None and typical > 0
    }
    middle = median(np.array(list(logs.values())))
    return {name: log - middle for name, log in logs.items()}


# -- network ---------------------------------------------------------------------------------------

_WORDS = ("critical", "warning", "unknown", "healthy")


def _counted(targets: Sequence[Target], diagnosis: Diagnosis) -> Fact:
    """How many layers have which word, the gravest first."""
    states = [target["state"] for target in targets if target["kind"] == "layer"]
    said = ", ".join(f"{states.count(word)} {word}" for word in _WORDS if word in states)
    more = "" if diagnosis.findings else "; the checks found nothing"
    return Fact(name="layers", text=f"{said} of {len(states)}{more}.")


# -- groups and interactions -----------------------------------------------------------------------


def _levels(
    found: GradientAnalysis, shares: Mapping[str, float], decades: Mapping[str, float]
) -> list[Level]:
    """Each way of grouping with its largest groups, in forward order."""
    assert found.gradient_hierarchy is not None  # the standard depth has it
    groups = {group.group_name: group for group in found.gradient_hierarchy.layer_groups}
    levels = []
    for level in found.gradient_hierarchy.hierarchy_levels:
        members = [groups[name] for name in level.layer_groups if name in groups]
        if len(members) < 2:
            continue
        sizes = [sum(shares.get(name, 0.0) for name in group.layers) for group in members]
        largest = sorted(range(len(members)), key=lambda i: -sizes[i])[:MOST_GROUPS]
        levels.append(
            Level(
                name=level.level_name,
                explains=rounded(level.level_importance, 3),
                bars=[
                    _bar(members[i], level.level_name, sizes[i], decades) for i in sorted(largest)
                ],
                count=len(members),
            )
        )
    return levels


def _bar(group: LayerGroup, level: str, share: float, decades: Mapping[str, float]) -> Bar:
    inside = [decades[name] for name in group.layers if name in decades]
    return Bar(
        name=group.group_name.removeprefix(f"{level} "),
        layers=len(group.layers),
        share=rounded(share, 3),
        decades=rounded(median(np.array(inside)), 3),
    )


def _matrix(found: GradientAnalysis) -> Matrix | None:
    """The strongest pairs that are more than chance; None without any."""
    every = found.network_level_analysis.layer_interactions or ()
    blocks = found.gradient_hierarchy.cross_level_interactions if found.gradient_hierarchy else ()
    telling = sorted(
        (pair for pair in every if pair.interaction_type is not InteractionType.NEUTRAL),
        key=lambda pair: -pair.interaction_strength,
    )
    chosen: set[str] = set()
    for pair in telling:
        both = chosen | {pair.layer1, pair.layer2}
        chosen = both if len(both) <= MOST_IN_MATRIX else chosen
    if not chosen:
        return None
    names = [name for name in found.layer_details if name in chosen]
    at = {name: index for index, name in enumerate(names)}
    return Matrix(
        names=names,
        pairs=[_pair(pair, at) for pair in every if {pair.layer1, pair.layer2} <= chosen],
        count=len(telling),
        between=[_between(item) for item in blocks[:MOST_BETWEEN]],
    )


def _pair(pair: LayerInteraction, at: Mapping[str, int]) -> tuple[int, int, float, str]:
    row, column = sorted((at[pair.layer1], at[pair.layer2]))
    strength = rounded(pair.interaction_strength, 3) or 0.0
    return row, column, strength, str(pair.interaction_type).lower()


def _between(item: CrossLevelInteraction) -> str:
    """Which of two blocks moves first, and by how much."""
    first, second = item.from_level, item.to_level
    if item.interaction_direction is InteractionDirection.TOP_DOWN:
        first, second = second, first
    strength = number(item.interaction_strength)
    if item.interaction_direction is InteractionDirection.BIDIRECTIONAL:
        how = "against each other" if item.opposed else "together"
        return f"{first} and {second} move {how} ({strength})"
    later = "a recorded step" if abs(item.lag) == 1 else f"{abs(item.lag)} recorded steps"
    verb = "answers" if item.opposed else "follows"
    return f"{second} {verb} {first} {later} later ({strength})"


# -- weights ---------------------------------------------------------------------------------------


def _add_weights(section: Analyses, found: WeightDistributionAnalysis, said: Verdicts) -> None:
    rows = [_weight_row(found, name, said) for name in found.layer_analyses]
    rows.sort(key=lambda row: _WORDS.index(row["state"]))
    section["weight_count"] = len(rows)
    section["weights"] = rows[:MOST_TENSORS]
    if rows and found.outlier_detection is None:
        section["missing"]["outliers"] = found.missing.get("outlier_detection", "not measured")
    if rows and all(row["entropy"] is None for row in rows):
        first = next(iter(found.layer_analyses.values())).statistics
        section["missing"]["entropy"] = first.missing.get("normalized_entropy", "not measured")


def _weight_row(found: WeightDistributionAnalysis, name: str, said: Verdicts) -> WeightRow:
    numbers = found.layer_analyses[name].statistics
    outliers = found.outlier_detection.layers.get(name) if found.outlier_detection else None
    items = said.by_tensor.get(name, ())
    return WeightRow(
        name=name,
        state=_state(items, said.diagnosis.healthy is not None),
        reasons=_reasons(items),
        std=rounded(numbers.std_dev, 3),
        zeros=rounded(numbers.zero_fraction, 3),
        outliers=None if outliers is None else outliers.total,
        expected=None if outliers is None else rounded(outliers.expected, 3),
        entropy=rounded(numbers.normalized_entropy, 3),
    )
