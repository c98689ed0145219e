"""Three bands of layers by mean norm; every number about a band is a constant in the original."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.analysis.original.layers import LayerGradientDetails
from gradwatch.analysis.original.levels import OptimizationDifficulty
from gradwatch.analysis.result import Result


@dataclass(frozen=True)
class GroupCharacteristics(Result):
    average_gradient_norm: float
    gradient_synchronization: float
    learning_rate_sensitivity: float
    optimization_difficulty: OptimizationDifficulty


@dataclass(frozen=True)
class LayerGroup(Result):
    group_name: str
    layers: tuple[str, ...]
    group_characteristics: GroupCharacteristics
    internal_coherence: float


@dataclass(frozen=True)
class HierarchyLevel(Result):
    level_id: int
    level_name: str
    layer_groups: tuple[str, ...]
    level_importance: float
    optimization_impact: float


@dataclass(frozen=True)
class GradientHierarchy(Result):
    layer_groups: tuple[LayerGroup, ...]
    hierarchy_levels: tuple[HierarchyLevel, ...]
    cross_level_interactions: tuple[()]


BANDS = (
    ("High", GroupCharacteristics(2.0, 0.8, 0.9, OptimizationDifficulty.DIFFICULT), 0.7, 0.9, 0.8),
    ("Medium", GroupCharacteristics(0.5, 0.6, 0.5, OptimizationDifficulty.MODERATE), 0.8, 0.7, 0.6),
    ("Low", GroupCharacteristics(0.05, 0.4, 0.3, OptimizationDifficulty.EASY), 0.5, 0.5, 0.4),
)


def hierarchy(details: Sequence[LayerGradientDetails]) -> GradientHierarchy:
    """Empty bands are left out; the level keeps its number."""
    members: tuple[list[str], ...] = ([], [], [])
    for item in details:
        mean = item.gradient_statistics.mean
        if mean == mean:  # NaN belongs to no band
            members[0 if mean > 1.0 else 1 if mean >= 0.1 else 2].append(item.layer_name)
    groups, levels = [], []
    for number, (names, band) in enumerate(zip(members, BANDS, strict=True)):
        title, characteristics, coherence, importance, impact = band
        if names:
            group = f"{title} Gradient Layers"
            groups.append(LayerGroup(group, tuple(names), characteristics, coherence))
            levels.append(
                HierarchyLevel(number, f"{title} Gradient Level", (group,), importance, impact)
            )
    return GradientHierarchy(tuple(groups), tuple(levels), ())
