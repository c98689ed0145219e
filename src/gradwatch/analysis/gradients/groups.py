"""How magnitude is spread over the layers, and the groups found in the model.

Layers are grouped three ways: by block, by kind of layer, by level of gradient.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.layer import known
from gradwatch.analysis.gradients.relations import (
    FEWEST_COMMON,
    CrossLevelInteraction,
    between_blocks,
    innovations,
    unit,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.checks.context import context
from gradwatch.result import Result, missing
from gradwatch.run import Run, block_of
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, thinned

Array = NDArray[np.float64]

FEWEST_LAYERS = 8
HALF_A_DECADE = 10**0.5
LEAST_RATE_CHANGE = 0.05
"""Spread of ln learning rate about a steady drift from which on its effect can be told."""
FEWEST_RATES = 16
STEADY_RATE = "the learning rate did not move, or only at one pace: record a run that changes it"

Groups = dict[str, list[int]]
"""Name of a group → columns of its layers."""


class DistributionType(StrEnum):
    """Shape of the distribution of log10 RMS over the layers."""

    NORMAL = "Normal"
    SKEWED = "Skewed"
    HEAVY_TAILED = "HeavyTailed"
    MULTIMODAL = "Multimodal"
    DEGENERATE = "Degenerate"


class Difficulty(StrEnum):
    """How many decades a group lies from the median layer."""

    EASY = "Easy"
    MODERATE = "Moderate"
    DIFFICULT = "Difficult"
    VERY_DIFFICULT = "VeryDifficult"


class GradientDistribution(Result):
    """How magnitude is spread over the layers."""

    mean_gradient_norm: float | None
    gradient_variance: float | None
    gradient_skewness: float | None
    gradient_kurtosis: float | None
    layer_gradient_ratios: dict[str, float | None]
    distribution_type: DistributionType


class GroupCharacteristics(Result):
    """What the layers of a group have in common."""

    average_gradient_norm: float | None
    gradient_synchronization: float | None
    """Mean correlation of what is new in ln norm on a step, between its members."""
    learning_rate_sensitivity: float | None
    """Per cent by which its update ratio moved when the learning rate moved by one per cent."""
    optimization_difficulty: Difficulty | None
    importance: float | None
    """Share of the squared norm of the whole gradient."""


class LayerGroup(Result):
    """Layers that belong together."""

    group_name: str
    layers: tuple[str, ...]
    group_characteristics: GroupCharacteristics
    internal_coherence: float | None
    """1 − variance of log10 RMS within the group over the variance of all layers."""


class HierarchyLevel(Result):
    """One way of dividing all layers into groups."""

    level_id: int
    level_name: str
    layer_groups: tuple[str, ...]
    level_importance: float | None
    """How much of the variance of log10 RMS this way of grouping explains."""
    optimization_impact: float | None
    """Share of the squared norm of the whole gradient that its strongest group holds."""


class GradientHierarchy(Result):
    """The groups, the ways of grouping, and blocks that move together."""

    layer_groups: tuple[LayerGroup, ...]
    hierarchy_levels: tuple[HierarchyLevel, ...]
    cross_level_interactions: tuple[CrossLevelInteraction, ...]
    """Between blocks: `from_level` and `to_level` are names of blocks."""


# -- distribution ----------------------------------------------------------------------------------


def distribution(series: LayerSeries, recent: LayerSeries) -> GradientDistribution:
    """Of the mean norms over the run; its type is that of the recent RMS."""
    means = trends.finite(series.means)
    if not len(means):
        gone = missing("no layer has a finite sample")
        return GradientDistribution(gone, gone, gone, gone, {}, DistributionType.DEGENERATE)
    mean, std, skewness, kurtosis = (float(x[0]) for x in trends.moments(means[:, None]))
    ratios = {
        name: None if not math.isfinite(value) else value / mean if mean > 0 else 1.0
        for name, value in zip(series.names, series.means.tolist(), strict=True)
    }
    return GradientDistribution(
        mean,
        std * std if math.isfinite(std * std) else missing("it is beyond the largest number"),
        skewness,
        kurtosis,
        ratios,
        distribution_type(recent.typical),
    )


def distribution_type(rms: Array) -> DistributionType:
    """On log10 RMS, with standard errors: a few layers cannot be skewed "significantly"."""
    x = np.log10(rms[np.isfinite(rms) & (rms > 0)])
    n = len(x)
    if n < FEWEST_LAYERS or float(x.std()) < 1e-12:
        return DistributionType.DEGENERATE
    if _two_groups(np.sort(x)):
        return DistributionType.MULTIMODAL
    _, _, (g1,), (g2,) = trends.moments(x[:, None])
    skew = g1 * math.sqrt(n * (n - 1)) / (n - 2)
    tails = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * g2 + 6)
    skew_error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    tails_error = 2 * skew_error * math.sqrt((n * n - 1) / ((n - 3) * (n + 5)))
    if abs(skew) / skew_error > 2:
        return DistributionType.SKEWED
    return DistributionType.HEAVY_TAILED if tails / tails_error > 2 else DistributionType.NORMAL


def _two_groups(x: Array) -> bool:
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


# -- groups ----------------------------------------------------------------------------------------


def hierarchy(run: Run, series: LayerSeries, recent: LayerSeries) -> GradientHierarchy:
    """Group the layers three ways and measure each group; shares are those over the whole run."""
    modules = {s.layer: s.module for s in run.parameters if s.module}
    levels = {
        "block": _grouped(recent.names, block_of),
        "kind": _grouped(recent.names, lambda name: modules.get(name, "")),
        "gradient level": _by_gradient(recent),
    }
    fresh = unit(innovations(recent.logs))
    sensitivities = rate_sensitivities(run, recent.names)
    groups: list[LayerGroup] = []
    described: list[HierarchyLevel] = []
    for i, (level, members) in enumerate(levels.items()):
        segments = Segments.of(members)
        coherence, explained = _coherence(segments, recent.decades)
        made = _measured(recent, series.squares, segments, fresh, *sensitivities)
        names = tuple(f"{level} {key}" for key in members)
        shares = [item.importance for item in made if item.importance is not None]
        strongest = max(shares) if shares else missing("no finite sample")
        described.append(HierarchyLevel(i, level, names, explained, strongest))
        layers = (tuple(recent.names[c] for c in columns) for columns in members.values())
        groups += map(LayerGroup, names, layers, made, coherence)
    blocks = levels["block"]
    moves = Segments.of(blocks).means(*fresh)
    return GradientHierarchy(tuple(groups), tuple(described), between_blocks(tuple(blocks), moves))


def _grouped(names: tuple[str, ...], key: Callable[[str], str]) -> Groups:
    groups: Groups = {}
    for column, name in enumerate(names):
        groups.setdefault(key(name), []).append(column)
    groups.pop("", None)
    return groups


def _by_gradient(recent: LayerSeries) -> Groups:
    """High, medium and low against the median layer, half a decade either way."""
    middle, typical = np.nan_to_num(recent.middle), recent.typical
    known = np.isfinite(typical)
    high = known & (typical / HALF_A_DECADE > middle)
    low = known & (typical < middle / HALF_A_DECADE)
    levels = {"high": high, "medium": known & ~high & ~low, "low": low}
    return {name: np.flatnonzero(level).tolist() for name, level in levels.items() if level.any()}


@dataclass(frozen=True)
class Segments:
    """Groups laid end to end, so that all of them are summed at once."""

    columns: NDArray[np.intp]
    starts: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @classmethod
    def of(cls, groups: Groups) -> "Segments":
        """The groups in their order; none of them is empty."""
        sizes = np.array([len(columns) for columns in groups.values()], np.intp)
        columns = [column for members in groups.values() for column in members]
        return cls(np.array(columns, np.intp), np.cumsum(sizes) - sizes, sizes)

    def sums(self, values: NDArray[np.generic]) -> Array:
        """Sum over each group of values [..., layer]."""
        taken = values[..., self.columns].astype(float)
        return np.asarray(np.add.reduceat(taken, self.starts, axis=-1))

    def means(self, values: Array, present: NDArray[np.bool_]) -> Array:
        """Mean over the present values [..., layer] of each group; NaN where there is none."""
        counts = self.sums(present)
        return np.where(counts > 0, self.sums(values) / np.maximum(counts, 1), np.nan)

    def known(self, values: Array, several: str) -> list[Any]:
        """As `known`; of a group of one layer the reason is that, of others `several`."""
        alone = missing("the group has one layer")
        listed = zip(known(values, several), np.isnan(values), self.sizes, strict=True)
        return [alone if unknown and size == 1 else value for value, unknown, size in listed]

    def medians(self, values: Array) -> Array:
        """Median of the finite values [layer] of each group; NaN where there is none."""
        taken = values[self.columns]
        finite = np.isfinite(taken)
        group = np.repeat(np.arange(len(self.sizes)), self.sizes)
        ordered = taken[np.lexsort((taken, ~finite, group))]
        counts = np.add.reduceat(finite, self.starts, dtype=np.intp)
        low, high = (self.starts + np.maximum(n, 0) // 2 for n in (counts - 1, counts))
        return np.where(counts > 0, (ordered[low] + ordered[high]) / 2, np.nan)


def _measured(
    recent: LayerSeries,
    squares: Array,
    segments: Segments,
    fresh: tuple[Array, NDArray[np.bool_]],
    sensitivities: Array,
    reason: str,
) -> list[GroupCharacteristics]:
    """Every group of one way of grouping; each number for all groups at once."""
    present = np.isfinite(recent.means)
    top = float(recent.means[present].max(initial=0.0)) or 1.0
    scaled = np.where(present, recent.means / top, 0.0)  # the sum of large norms leaves the range
    shares = segments.sums(squares) / (float(squares.sum()) or np.nan)
    away = np.abs(segments.medians(recent.decades) - median(recent.decades))
    gone = "no finite sample"
    return list(
        map(
            GroupCharacteristics,
            known(segments.means(scaled, present) * top, gone),
            segments.known(_synchronisation(segments, *fresh), "too few common steps"),
            known(segments.medians(sensitivities), reason),
            map(_difficulty, away.tolist()),
            known(shares, gone),
        )
    )


def _synchronisation(segments: Segments, x: Array, present: NDArray[np.bool_]) -> Array:
    """Mean product of two different members over all steps both have; NaN where these are few."""
    # All pairs at once: the square of a sum holds every product twice, and each one's own square.
    products = segments.sums(x) ** 2 - segments.sums(x * x)
    counts = segments.sums(present)
    pairs = (counts * (counts - 1)).sum(axis=0)
    enough = (counts > 1).sum(axis=0) >= FEWEST_COMMON
    together = products.sum(axis=0) / np.where(enough, np.maximum(pairs, 1), np.nan)
    return np.asarray(np.clip(together, -1, 1))


def _difficulty(away: float) -> Difficulty | None:
    """By the decades between the group and the median layer, in either direction."""
    unknown = missing("no positive sample")
    return unknown if math.isnan(away) else list(Difficulty)[bisect_left((0.5, 1.5, 3.0), away)]


def _coherence(segments: Segments, decades: Array) -> tuple[list[Any], float]:
    """How alike the layers of each group are, and how much of the variance the groups explain."""
    alike = "all layers are alike"
    present = np.isfinite(decades)
    every = decades[present]
    total = float(every.var()) if len(every) else 0.0
    if total < 1e-24 or not len(segments.sizes):
        return segments.known(np.full(len(segments.sizes), np.nan), alike), missing(alike)
    d = np.where(present, decades - every.mean(), 0.0)
    counts = segments.sums(present)
    between = segments.means(d, present) ** 2
    inside = segments.means(d * d, present) - between
    coherence = np.where(counts > 1, np.clip(1 - inside / total, 0.0, 1.0), np.nan)
    explained = float((np.nan_to_num(between) * counts).sum()) / len(every) / total
    return segments.known(coherence, alike), min(explained, 1.0)


# -- sensitivity to the learning rate --------------------------------------------------------------


def rate_sensitivities(run: Run, layers: tuple[str, ...]) -> tuple[Array, str]:
    """d ln(update ratio) / d ln(learning rate) of each layer, and why it is NaN where it is.

    Least squares beside a steady drift in time: a training slows down of itself, and a rate that
    only ever fell at one pace cannot be told from that.
    """
    out = np.full(len(layers), np.nan)
    if Stat.LR not in run.recorded:
        return out, "the learning rate was not recorded (hand the optimizer to watch)"
    if Stat.UPDATE_RATIO not in run.recorded:
        return out, "the updates were not recorded"
    ctx = context(run)
    rows = thinned(ctx.rows(Stat.UPDATE_RATIO))
    place = {layer: column for column, layer in enumerate(layers)}
    rates = ctx.values(Stat.LR, rows)
    known = range(rates.shape[1])  # a damaged run may name a group that has no rate
    held = [
        (column, subject.group, place[subject.layer])
        for column, subject in enumerate(run.parameters)
        if subject.group in known and subject.layer in place
    ]
    columns, groups, owners = np.array(held, np.intp).reshape(-1, 3).T
    rates = trends.logs(rates[:, groups])
    ratios = trends.logs(ctx.values(Stat.UPDATE_RATIO, rows)[:, columns])
    both = np.isfinite(rates) & np.isfinite(ratios)
    rates, ratios = (_beside_drift(run.steps[rows], x, both) for x in (rates, ratios))
    n, squares = both.sum(axis=0), (rates * rates).sum(axis=0)
    moved = (n >= FEWEST_RATES) & (squares > LEAST_RATE_CHANGE**2 * n)
    slopes = (rates * ratios).sum(axis=0)[moved] / squares[moved]
    counts = np.bincount(owners[moved], minlength=len(out))
    sums = np.bincount(owners[moved], slopes, minlength=len(out))
    out[counts > 0] = sums[counts > 0] / counts[counts > 0]
    return out, STEADY_RATE


def _beside_drift(steps: NDArray[np.int64], values: Array, kept: NDArray[np.bool_]) -> Array:
    """Less the line in time over the kept samples; 0 elsewhere."""
    fit = trends.lines(steps, np.where(kept, values, np.nan))
    return np.where(kept, np.nan_to_num(values - fit.intercept - fit.slope * steps[:, None]), 0.0)
