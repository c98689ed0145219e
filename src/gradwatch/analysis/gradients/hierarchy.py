"""Groups found in the model: blocks, kinds of layer, levels of gradient; coherence measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.gradients.distribution import correlations
from gradwatch.analysis.gradients.levels import Difficulty, InteractionDirection
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run, block_of

HALF_A_DECADE = 10**0.5
FEWEST_COMMON = 8
NO_CURVATURE = "needs the curvature (lr·λ/2), which is not recorded"


@dataclass(frozen=True)
class GroupCharacteristics(Result):
    average_gradient_norm: float | None
    gradient_synchronization: float | None
    """Mean correlation of Δ ln norm between its members."""
    learning_rate_sensitivity: float | None
    optimization_difficulty: Difficulty | None
    importance: float | None
    """Share of the squared norm of the whole gradient."""


@dataclass(frozen=True)
class LayerGroup(Result):
    group_name: str
    layers: tuple[str, ...]
    group_characteristics: GroupCharacteristics
    internal_coherence: float | None
    """1 − variance of log10 RMS within the group over the variance of all layers."""


@dataclass(frozen=True)
class HierarchyLevel(Result):
    level_id: int
    level_name: str
    layer_groups: tuple[str, ...]
    level_importance: float | None
    """How much of the variance of log10 RMS this way of grouping explains."""


@dataclass(frozen=True)
class CrossLevelInteraction(Result):
    from_level: str
    to_level: str
    interaction_strength: float
    direction: InteractionDirection


@dataclass(frozen=True)
class GradientHierarchy(Result):
    layer_groups: tuple[LayerGroup, ...]
    hierarchy_levels: tuple[HierarchyLevel, ...]
    cross_level_interactions: tuple[CrossLevelInteraction, ...]


def hierarchy(run: Run, series: LayerSeries, typical: NDArray[np.float64]) -> GradientHierarchy:
    """`typical` is the median RMS of each layer in the window."""
    measure = _Measure(series, typical)
    kinds = {s.layer: s.module for s in run.parameters if s.module}
    blocks = _grouped(series.names, block_of)
    levels = {
        "block": blocks,
        "kind": _grouped(series.names, lambda name: kinds.get(name, "")),
        "gradient level": _by_level(series.names, typical),
    }
    return GradientHierarchy(
        tuple(
            measure.group(f"{level} {key}", columns)
            for level, groups in levels.items()
            for key, columns in groups.items()
        ),
        tuple(
            HierarchyLevel(
                i, level, tuple(f"{level} {key}" for key in groups), measure.explained(groups)
            )
            for i, (level, groups) in enumerate(levels.items())
        ),
        tuple(_crossed(series, blocks)),
    )


def _grouped(names: Iterable[str], key: object) -> dict[str, list[int]]:
    assert callable(key)
    groups: dict[str, list[int]] = {}
    for column, name in enumerate(names):
        groups.setdefault(str(key(name)), []).append(column)
    groups.pop("", None)
    return groups


def _by_level(names: tuple[str, ...], typical: NDArray[np.float64]) -> dict[str, list[int]]:
    """High, medium and low against the median layer, half a decade either way."""
    positive = typical[typical > 0]
    middle = float(np.median(positive)) if len(positive) else 0.0
    groups: dict[str, list[int]] = {"high": [], "medium": [], "low": []}
    for column in range(len(names)):
        value = typical[column]
        if np.isfinite(value):
            above, below = value > middle * HALF_A_DECADE, value * HALF_A_DECADE < middle
            groups["high" if above else "low" if below else "medium"].append(column)
    return {name: columns for name, columns in groups.items() if columns}


class _Measure:
    """What all groups share, computed once: correlations, squared norms, spread of log RMS."""

    def __init__(self, series: LayerSeries, typical: NDArray[np.float64]) -> None:
        self._names = series.names
        known = np.isfinite(series.norms)
        self._means = np.where(known, series.norms, 0).sum(axis=0) / np.maximum(known.sum(0), 1)
        self._means[~known.any(axis=0)] = np.nan
        self._squares = np.nan_to_num(self._means) ** 2
        self._logs = np.full(len(typical), np.nan)
        np.log10(typical, out=self._logs, where=typical > 0)
        self._correlation, self._common = correlations(series.changes)

    def group(self, key: str, columns: list[int]) -> LayerGroup:
        means = self._means[columns]
        known = means[np.isfinite(means)]
        total = float(self._squares.sum())
        alone = missing("the group has one layer")
        gone = missing("no finite sample")
        characteristics = GroupCharacteristics(
            float(known.mean()) if len(known) else gone,
            self._synchronisation(columns) if len(columns) > 1 else alone,
            missing(NO_CURVATURE),
            self._difficulty(columns),
            float(self._squares[columns].sum()) / total if total > 0 else gone,
        )
        return LayerGroup(
            key,
            tuple(self._names[column] for column in columns),
            characteristics,
            self._coherence(columns) if len(columns) > 1 else alone,
        )

    def explained(self, groups: dict[str, list[int]]) -> float | None:
        """Between-group share of the variance of log10 RMS."""
        logs = self._logs[np.isfinite(self._logs)]
        total = float(((logs - logs.mean()) ** 2).sum()) if len(logs) else 0.0
        if total < 1e-24 or not groups:
            return missing("all layers are alike")  # type: ignore[no-any-return]
        between = 0.0
        for columns in groups.values():
            inside = self._logs[columns]
            inside = inside[np.isfinite(inside)]
            if len(inside):
                between += len(inside) * float(inside.mean() - logs.mean()) ** 2
        return min(between / total, 1.0)

    def _synchronisation(self, columns: list[int]) -> float:
        part = np.ix_(columns, columns)
        upper = np.triu(np.ones((len(columns),) * 2, bool), 1) & (
            self._common[part] >= FEWEST_COMMON
        )
        found = self._correlation[part][upper & np.isfinite(self._correlation[part])]
        return float(found.mean()) if len(found) else missing("too few common steps")

    def _coherence(self, columns: list[int]) -> float:
        inside = self._logs[columns]
        inside, whole = inside[np.isfinite(inside)], self._logs[np.isfinite(self._logs)]
        if len(inside) < 2 or float(whole.var()) < 1e-24:
            return missing("all layers are alike")  # type: ignore[no-any-return]
        return max(1 - float(inside.var()) / float(whole.var()), 0.0)

    def _difficulty(self, columns: list[int]) -> Difficulty | None:
        """By the decades between the group and the median layer, in either direction."""
        inside = self._logs[columns]
        inside = inside[np.isfinite(inside)]
        if not len(inside):
            return missing("no positive sample")  # type: ignore[no-any-return]
        away = abs(float(np.median(inside)) - float(np.nanmedian(self._logs)))
        for limit, difficulty in ((0.5, Difficulty.EASY), (1.5, Difficulty.MODERATE)):
            if away <= limit:
                return difficulty
        return Difficulty.DIFFICULT if away <= 3 else Difficulty.VERY_DIFFICULT


def _crossed(
    series: LayerSeries, blocks: dict[str, list[int]], strongest: int = 20
) -> list[CrossLevelInteraction]:
    """Between neighbouring blocks: correlation of their mean Δ ln norm, direction from the lag."""
    changes = series.changes
    if len(changes) < FEWEST_COMMON + 1:
        return []
    moves = {}
    for key, columns in blocks.items():
        part = changes[:, columns]
        known = np.isfinite(part)
        sums, rows = np.where(known, part, 0).sum(axis=1), known.sum(axis=1)
        moves[key] = np.where(rows > 0, sums / np.maximum(rows, 1), np.nan)
    pairs = list(zip(list(moves), list(moves)[1:], strict=False))
    if len(moves) <= 8:
        pairs = list(combinations(moves, 2))
    found = [_lagged(a, b, moves[a], moves[b]) for a, b in pairs]
    known_pairs = [item for item in found if item]
    return sorted(known_pairs, key=lambda item: -item.interaction_strength)[:strongest]


def _lagged(
    a: str, b: str, first: NDArray[np.float64], second: NDArray[np.float64]
) -> CrossLevelInteraction | None:
    """The earlier block leading by a step is BottomUp, the later one TopDown."""
    by_lag = {
        InteractionDirection.BIDIRECTIONAL: _correlation(first, second),
        InteractionDirection.BOTTOM_UP: _correlation(first[:-1], second[1:]),
        InteractionDirection.TOP_DOWN: _correlation(first[1:], second[:-1]),
    }
    known = {direction: abs(r) for direction, r in by_lag.items() if r is not None}
    if not known:
        return None
    direction = max(known, key=known.__getitem__)
    return CrossLevelInteraction(a, b, known[direction], direction)


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < FEWEST_COMMON:
        return None
    x, y = a[both] - a[both].mean(), b[both] - b[both].mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else None
