"""Layers among each other: how magnitude is spread over them, which move together, groups.

The groups are those found in the model: blocks, kinds of layer, levels of gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run, block_of
from gradwatch.stats.medians import median, medians

FEWEST_LAYERS = 8
FEWEST_COMMON = 8
STRONGEST = 20
SPIKE = 5.0
HALF_A_DECADE = 10**0.5
NO_CURVATURE = "needs the curvature (lr·λ/2), which is not recorded"

Groups = dict[str, list[int]]
"""Name of a group → columns of its layers."""


class DistributionType(StrEnum):
    """Shape of the distribution of log10 RMS over the layers."""

    NORMAL = "Normal"
    SKEWED = "Skewed"
    HEAVY_TAILED = "HeavyTailed"
    MULTIMODAL = "Multimodal"
    DEGENERATE = "Degenerate"


class InteractionType(StrEnum):
    """How the norms of two layers move with each other."""

    COOPERATIVE = "Cooperative"
    COMPETITIVE = "Competitive"
    NEUTRAL = "Neutral"
    DISRUPTIVE = "Disruptive"


class Difficulty(StrEnum):
    """How many decades a group lies from the median layer."""

    EASY = "Easy"
    MODERATE = "Moderate"
    DIFFICULT = "Difficult"
    VERY_DIFFICULT = "VeryDifficult"


class InteractionDirection(StrEnum):
    """Which of two blocks moves first."""

    TOP_DOWN = "TopDown"
    BOTTOM_UP = "BottomUp"
    BIDIRECTIONAL = "Bidirectional"


@dataclass(frozen=True)
class GradientDistribution(Result):
    """How magnitude is spread over the layers."""

    mean_gradient_norm: float | None
    gradient_variance: float | None
    gradient_skewness: float | None
    gradient_kurtosis: float | None
    layer_gradient_ratios: dict[str, float | None]
    distribution_type: DistributionType


@dataclass(frozen=True)
class LayerInteraction(Result):
    """Between layers only the correlation of Δ ln norm exists: their gradients share no space."""

    layer1: str
    layer2: str
    interaction_strength: float
    """|correlation| of the changes of ln norm over the steps both were recorded on."""
    interaction_type: InteractionType
    impact_score: float
    """The share of variance they have in common: correlation squared."""
    common_steps: int


@dataclass(frozen=True)
class GroupCharacteristics(Result):
    """What the layers of a group have in common."""

    average_gradient_norm: float | None
    gradient_synchronization: float | None
    """Mean correlation of Δ ln norm between its members."""
    learning_rate_sensitivity: float | None
    optimization_difficulty: Difficulty | None
    importance: float | None
    """Share of the squared norm of the whole gradient."""


@dataclass(frozen=True)
class LayerGroup(Result):
    """Layers that belong together."""

    group_name: str
    layers: tuple[str, ...]
    group_characteristics: GroupCharacteristics
    internal_coherence: float | None
    """1 − variance of log10 RMS within the group over the variance of all layers."""


@dataclass(frozen=True)
class HierarchyLevel(Result):
    """One way of dividing all layers into groups."""

    level_id: int
    level_name: str
    layer_groups: tuple[str, ...]
    level_importance: float | None
    """How much of the variance of log10 RMS this way of grouping explains."""


@dataclass(frozen=True)
class CrossLevelInteraction(Result):
    """How the norms of two blocks move with each other."""

    from_level: str
    to_level: str
    interaction_strength: float
    direction: InteractionDirection


@dataclass(frozen=True)
class GradientHierarchy(Result):
    """The groups, the ways of grouping, and blocks that move together."""

    layer_groups: tuple[LayerGroup, ...]
    hierarchy_levels: tuple[HierarchyLevel, ...]
    cross_level_interactions: tuple[CrossLevelInteraction, ...]


# -- distribution ----------------------------------------------------------------------------------


def distribution(series: LayerSeries, recent: LayerSeries) -> GradientDistribution:
    """Of the mean norms over the run; its type is that of the recent RMS."""
    means = trends.finite(series.means)
    if not len(means):
        gone = missing("no layer has a finite sample")
        return GradientDistribution(gone, gone, gone, gone, {}, DistributionType.DEGENERATE)
    mean, std = float(means.mean()), float(means.std())
    ratios = {
        name: None if math.isnan(value) else value / mean if mean > 0 else 1.0
        for name, value in zip(series.names, series.means.tolist(), strict=True)
    }
    return GradientDistribution(
        mean, std * std, *trends.shape(means), ratios, distribution_type(recent.typical)
    )


def distribution_type(rms: NDArray[np.float64]) -> DistributionType:
    """On log10 RMS, with standard errors: a few layers cannot be skewed "significantly"."""
    x = np.log10(rms[np.isfinite(rms) & (rms > 0)])
    n = len(x)
    if n < FEWEST_LAYERS or float(x.std()) < 1e-12:
        return DistributionType.DEGENERATE
    if _two_groups(np.sort(x)):
        return DistributionType.MULTIMODAL
    g1, g2 = trends.shape(x)
    skew = g1 * math.sqrt(n * (n - 1)) / (n - 2)
    tails = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * g2 + 6)
    skew_error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    tails_error = 2 * skew_error * math.sqrt((n * n - 1) / ((n - 3) * (n + 5)))
    if abs(skew) / skew_error > 2:
        return DistributionType.SKEWED
    return DistributionType.HEAVY_TAILED if tails / tails_error > 2 else DistributionType.NORMAL


def _two_groups(x: NDArray[np.float64]) -> bool:
    """The best cut into two explains nearly all variance, and neither part is a lone outlier.

    A Gaussian cut at its median explains 2/π of its variance, a uniform sample three quarters.
    """
    n = len(x)
    sums = np.cumsum(x)[:-1]
    left = np.arange(1, n)
    gap = sums / left - (x.sum() - sums) / (n - left)
    explained = left * (n - left) / n * gap**2 / float(((x - x.mean()) ** 2).sum())
    cut = int(np.argmax(explained))
    smaller = min(cut + 1, n - cut - 1)
    return bool(explained[cut] > (0.95 if n < 20 else 0.9) and smaller >= max(2, n // 5))


# -- interactions ----------------------------------------------------------------------------------


def interactions(recent: LayerSeries) -> tuple[LayerInteraction, ...]:
    """Neighbours in forward order and the strongest pairs beside them, by position."""
    if len(recent.changes) < FEWEST_COMMON or len(recent.names) < 2:
        return ()
    correlations, common = recent.correlations
    strength = np.triu(np.abs(np.nan_to_num(correlations)), 1)
    ranked = np.argsort(-strength, axis=None, kind="stable")[:STRONGEST]
    chosen = set(pairwise(range(len(recent.names)))) | {
        (int(i), int(j)) for i, j in zip(*np.unravel_index(ranked, strength.shape), strict=True)
    }
    spikes = _spikes(recent.changes)
    pairs = []
    for i, j in sorted(chosen):
        correlation, steps = float(correlations[i, j]), int(common[i, j])
        if i >= j or steps < FEWEST_COMMON or not math.isfinite(correlation):
            continue
        if _disrupts(spikes[:, i], spikes[:, j]) or _disrupts(spikes[:, j], spikes[:, i]):
            type_ = InteractionType.DISRUPTIVE
        elif _p_value(correlation, steps) * len(chosen) >= 0.01:
            type_ = InteractionType.NEUTRAL
        else:
            positive = correlation > 0
            type_ = InteractionType.COOPERATIVE if positive else InteractionType.COMPETITIVE
        names = recent.names[i], recent.names[j]
        pairs.append(LayerInteraction(*names, abs(correlation), type_, correlation**2, steps))
    return tuple(pairs)


def _p_value(correlation: float, n: int) -> float:
    """Fisher's z."""
    bounded = max(min(correlation, 1 - 1e-12), -1 + 1e-12)
    return math.erfc(abs(math.atanh(bounded)) * math.sqrt(max(n - 3, 1)) / math.sqrt(2))


def _spikes(changes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Changes far outside the column's own usual ones."""
    size = np.abs(changes)
    usual = np.nan_to_num(medians(size))
    spiked: NDArray[np.bool_] = np.nan_to_num(size) > SPIKE * np.maximum(1.4826 * usual, 1e-12)
    return spiked


def _disrupts(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> bool:
    """Three or more spikes of one follow a step after the other's, far above chance, none together.

    Spikes on the same step have a common cause (a bad batch), so they are no disruption.
    """
    lone, followed = first[:-1] & ~second[:-1], second[1:] & ~first[1:]
    hits, tries = int((lone & followed).sum()), int(lone.sum())
    rate = float(followed.mean()) if len(followed) else 0.0
    return hits >= 3 and hits >= 0.5 * tries and hits > 5 * rate * tries


# -- groups ----------------------------------------------------------------------------------------


def hierarchy(run: Run, recent: LayerSeries) -> GradientHierarchy:
    """Group the layers three ways and measure each group."""
    modules = {s.layer: s.module for s in run.parameters if s.module}
    levels = {
        "block": _grouped(recent.names, block_of),
        "kind": _grouped(recent.names, lambda name: modules.get(name, "")),
        "gradient level": _by_gradient(recent),
    }
    return GradientHierarchy(
        tuple(
            _group(recent, f"{level} {key}", columns)
            for level, groups in levels.items()
            for key, columns in groups.items()
        ),
        tuple(
            HierarchyLevel(
                i, level, tuple(f"{level} {key}" for key in groups), _explained(recent, groups)
            )
            for i, (level, groups) in enumerate(levels.items())
        ),
        tuple(_between_blocks(recent, levels["block"])),
    )


def _grouped(names: tuple[str, ...], key: Callable[[str], str]) -> Groups:
    groups: Groups = {}
    for column, name in enumerate(names):
        groups.setdefault(key(name), []).append(column)
    groups.pop("", None)
    return groups


def _by_gradient(recent: LayerSeries) -> Groups:
    """High, medium and low against the median layer, half a decade either way."""
    middle = np.nan_to_num(recent.middle)
    groups: Groups = {"high": [], "medium": [], "low": []}
    for column, value in enumerate(recent.typical):
        if np.isfinite(value):
            above, below = value > middle * HALF_A_DECADE, value * HALF_A_DECADE < middle
            groups["high" if above else "low" if below else "medium"].append(column)
    return {name: columns for name, columns in groups.items() if columns}


def _group(recent: LayerSeries, name: str, columns: list[int]) -> LayerGroup:
    means = trends.finite(recent.means[columns])
    total = float(recent.squares.sum())
    alone = missing("the group has one layer")
    gone = missing("no finite sample")
    return LayerGroup(
        name,
        tuple(recent.names[column] for column in columns),
        GroupCharacteristics(
            float(means.mean()) if len(means) else gone,
            _synchronisation(recent, columns) if len(columns) > 1 else alone,
            missing(NO_CURVATURE),
            _difficulty(recent, columns),
            float(recent.squares[columns].sum()) / total if total > 0 else gone,
        ),
        _coherence(recent, columns) if len(columns) > 1 else alone,
    )


def _synchronisation(recent: LayerSeries, columns: list[int]) -> float:
    correlations, common = (table[np.ix_(columns, columns)] for table in recent.correlations)
    pairs = np.triu(common >= FEWEST_COMMON, 1) & np.isfinite(correlations)
    return float(correlations[pairs].mean()) if pairs.any() else missing("too few common steps")


def _difficulty(recent: LayerSeries, columns: list[int]) -> Difficulty | None:
    """By the decades between the group and the median layer, in either direction."""
    away = abs(median(recent.decades[columns]) - median(recent.decades))
    if math.isnan(away):
        return missing("no positive sample")  # type: ignore[no-any-return]
    for limit, difficulty in ((0.5, Difficulty.EASY), (1.5, Difficulty.MODERATE)):
        if away <= limit:
            return difficulty
    return Difficulty.DIFFICULT if away <= 3 else Difficulty.VERY_DIFFICULT


def _coherence(recent: LayerSeries, columns: list[int]) -> float:
    inside, every = trends.finite(recent.decades[columns]), trends.finite(recent.decades)
    if len(inside) < 2 or float(every.var()) < 1e-24:
        return missing("all layers are alike")  # type: ignore[no-any-return]
    return max(1 - float(inside.var()) / float(every.var()), 0.0)


def _explained(recent: LayerSeries, groups: Groups) -> float | None:
    """Between-group share of the variance of log10 RMS."""
    every = trends.finite(recent.decades)
    total = float(((every - every.mean()) ** 2).sum()) if len(every) else 0.0
    if total < 1e-24 or not groups:
        return missing("all layers are alike")  # type: ignore[no-any-return]
    between = 0.0
    for columns in groups.values():
        inside = trends.finite(recent.decades[columns])
        if len(inside):
            between += len(inside) * float(inside.mean() - every.mean()) ** 2
    return min(between / total, 1.0)


def _between_blocks(recent: LayerSeries, blocks: Groups) -> list[CrossLevelInteraction]:
    """Neighbouring blocks (of few, all): correlation of mean Δ ln norm, direction from the lag."""
    if len(recent.changes) < FEWEST_COMMON + 1:
        return []
    moves = {}
    for key, columns in blocks.items():
        changes = recent.changes[:, columns]
        finite = np.isfinite(changes)
        sums, counts = np.where(finite, changes, 0).sum(axis=1), finite.sum(axis=1)
        moves[key] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    pairs = combinations(moves, 2) if len(moves) <= 8 else pairwise(moves)
    lagged = (_lagged(a, b, moves[a], moves[b]) for a, b in pairs)
    measured = [interaction for interaction in lagged if interaction]
    return sorted(measured, key=lambda item: -item.interaction_strength)[:STRONGEST]


def _lagged(
    a: str, b: str, first: NDArray[np.float64], second: NDArray[np.float64]
) -> CrossLevelInteraction | None:
    """The earlier block leading by a step is BottomUp, the later one TopDown."""
    by_lag = {
        InteractionDirection.BIDIRECTIONAL: _correlation(first, second),
        InteractionDirection.BOTTOM_UP: _correlation(first[:-1], second[1:]),
        InteractionDirection.TOP_DOWN: _correlation(first[1:], second[:-1]),
    }
    strengths = {direction: abs(r) for direction, r in by_lag.items() if r is not None}
    if not strengths:
        return None
    direction = max(strengths, key=strengths.__getitem__)
    return CrossLevelInteraction(a, b, strengths[direction], direction)


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < FEWEST_COMMON:
        return None
    x, y = a[both] - a[both].mean(), b[both] - b[both].mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else None
