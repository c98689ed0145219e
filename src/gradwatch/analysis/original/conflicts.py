"""Conflicts between layers, from the angle between their recent norms."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.history import Histories
from gradwatch.analysis.original.levels import Complexity, ConflictType, Level
from gradwatch.analysis.result import Result

LISTED = 5

ADVICE = {
    ConflictType.SEVERE: (
        "These two layers pull strongly against each other.",
        "Clip or normalise gradients.",
        "Look at the learning rates of both layers.",
        "Think about changing the architecture.",
    ),
    ConflictType.MODERATE: (
        "These two layers pull against each other.",
        "Adjust the learning rates.",
        "Watch how gradients flow.",
    ),
    ConflictType.MILD: (
        "These two layers disagree a little.",
        "Keep watching the conflict.",
    ),
    ConflictType.NONE: ("These two layers do not conflict to speak of.",),
}
SUMMARIES = {
    Level.CRITICAL: "Critical: {} conflicts; act now, or training stays unstable.",
    Level.HIGH: "High: {} conflicts; apply one of the strategies.",
    Level.MEDIUM: "Medium: {} conflicts; watch them and tune.",
    Level.LOW: "Low: {} conflicts; gradients look steady.",
}


@dataclass(frozen=True)
class GradientConflict(Result):
    layer1: str
    layer2: str
    conflict_score: float
    conflict_type: ConflictType
    recommendations: tuple[str, ...]


@dataclass(frozen=True)
class MitigationStrategy(Result):
    strategy_name: str
    description: str
    target_conflicts: tuple[str, ...]
    effectiveness: float
    implementation_complexity: Complexity
    expected_outcome: str


@dataclass(frozen=True)
class ConflictAnalysis(Result):
    total_conflicts: int
    conflicts: tuple[GradientConflict, ...]
    overall_conflict_level: Level
    mitigation_strategies: tuple[MitigationStrategy, ...]


@dataclass(frozen=True)
class ConflictReport(Result):
    total_conflicts: int
    overall_level: Level
    most_problematic_layers: tuple[str, ...]
    most_problematic_pairs: tuple[GradientConflict, ...]
    recommended_strategies: tuple[MitigationStrategy, ...]
    summary: str


def analyze_conflicts(
    histories: Histories, threshold: float = 0.5, window: int = 10
) -> ConflictAnalysis:
    """Every pair of layers with at least `window` norms, in insertion order."""
    recent = {  # newest first: it decides the last digit, and with it who leads among ties
        name: list(history.gradient_norms)[::-1][:window]
        for name, history in histories.items()
        if len(history.gradient_norms) >= window
    }
    conflicts = []
    for (name1, a), (name2, b) in combinations(recent.items(), 2):
        score = conflict_score(a, b)
        if score > threshold:
            kind = _kind(score)
            conflicts.append(GradientConflict(name1, name2, score, kind, ADVICE[kind]))
    return ConflictAnalysis(
        len(conflicts), tuple(conflicts), _level(conflicts), tuple(_strategies(conflicts))
    )


def report_conflicts(analysis: ConflictAnalysis) -> ConflictReport:
    """The five layers with most conflicts, the five highest scores; ties as they were met."""
    counts: dict[str, int] = {}
    for conflict in analysis.conflicts:
        for name in (conflict.layer1, conflict.layer2):
            counts[name] = counts.get(name, 0) + 1
    worst = sorted(counts, key=lambda name: -counts[name])[:LISTED]
    pairs = sorted(analysis.conflicts, key=lambda conflict: -conflict.conflict_score)[:LISTED]
    level = analysis.overall_conflict_level
    return ConflictReport(
        total_conflicts=analysis.total_conflicts,
        overall_level=level,
        most_problematic_layers=tuple(worst),
        most_problematic_pairs=tuple(pairs),
        recommended_strategies=analysis.mitigation_strategies,
        summary=SUMMARIES[level].format(analysis.total_conflicts),
    )


def conflict_score(a: Sequence[float], b: Sequence[float]) -> float:
    """1 − |cosine|; 1 where a vector is zero, 0 where the lengths differ."""
    if len(a) != len(b) or not a:
        return 0.0
    dot = floats.total(x * y for x, y in zip(a, b, strict=True))
    length_a = floats.root(floats.total(x * x for x in a))
    length_b = floats.root(floats.total(x * x for x in b))
    if length_a == 0.0 or length_b == 0.0:
        return 1.0
    cosine = floats.divide(dot, length_a * length_b)
    return floats.greatest(1.0 - abs(cosine), 0.0)


def _kind(score: float) -> ConflictType:
    if score > 0.8:
        return ConflictType.SEVERE
    if score > 0.6:
        return ConflictType.MODERATE
    return ConflictType.MILD if score > 0.3 else ConflictType.NONE


def _level(conflicts: Sequence[GradientConflict]) -> Level:
    if not conflicts:
        return Level.LOW
    kinds = [conflict.conflict_type for conflict in conflicts]
    moderate = kinds.count(ConflictType.MODERATE)
    layers = len({n for conflict in conflicts for n in (conflict.layer1, conflict.layer2)})
    if ConflictType.SEVERE in kinds or layers > 10:
        return Level.CRITICAL
    if moderate > 3 or layers > 5:
        return Level.HIGH
    return Level.MEDIUM if moderate or layers > 2 else Level.LOW


def _strategies(conflicts: Sequence[GradientConflict]) -> list[MitigationStrategy]:
    severe = _pairs(conflicts, {ConflictType.SEVERE})
    strong = _pairs(conflicts, {ConflictType.SEVERE, ConflictType.MODERATE})
    offers = (
        (
            bool(severe),
            ("Gradient Clipping", "Clip gradients so that none is extreme.", severe),
            (0.8, Complexity.SIMPLE, "Conflicts of magnitude shrink."),
        ),
        (
            len(conflicts) > 2,
            (
                "Adaptive Learning Rates",
                "Give each layer its own learning rate.",
                _pairs(conflicts, set(ConflictType)),
            ),
            (0.7, Complexity.MODERATE, "Gradients are balanced between layers."),
        ),
        (
            len(strong) > 1,
            ("Gradient Normalization", "Bring gradients to one scale.", strong),
            (0.6, Complexity.SIMPLE, "Gradients have one scale."),
        ),
        (
            len(severe) > 3,
            ("Architecture Modification", "Add residual paths or attention.", severe),
            (0.9, Complexity.REQUIRES_ARCHITECTURE_CHANGE, "Gradients flow better from the root."),
        ),
    )
    return [MitigationStrategy(*what, *worth) for wanted, what, worth in offers if wanted]


def _pairs(conflicts: Sequence[GradientConflict], kinds: set[ConflictType]) -> tuple[str, ...]:
    return tuple(f"{c.layer1}-{c.layer2}" for c in conflicts if c.conflict_type in kinds)
