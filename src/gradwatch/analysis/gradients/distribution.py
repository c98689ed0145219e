"""How gradient magnitude is spread over the layers, and which layers move together."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.gradients.levels import DistributionType, InteractionType
from gradwatch.analysis.gradients.statistics import shape
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing

FEWEST_LAYERS = 8
FEWEST_COMMON = 8
STRONGEST = 20
SPIKE = 5.0


@dataclass(frozen=True)
class GradientDistribution(Result):
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


def distribution(
    names: tuple[str, ...], means: NDArray[np.float64], rms: NDArray[np.float64]
) -> GradientDistribution:
    known = means[np.isfinite(means)]
    if not len(known):
        gone = missing("no layer has a finite sample")
        return GradientDistribution(gone, gone, gone, gone, {}, DistributionType.DEGENERATE)
    mean, std = float(known.mean()), float(known.std())
    skewness, kurtosis = shape(known, mean, std)
    ratios = {
        name: None if math.isnan(value) else value / mean if mean > 0 else 1.0
        for name, value in zip(names, means.tolist(), strict=True)
    }
    return GradientDistribution(mean, std * std, skewness, kurtosis, ratios, kind(rms))


def kind(rms: NDArray[np.float64]) -> DistributionType:
    """On log10 RMS, with standard errors: a few layers cannot be skewed "significantly"."""
    x = np.log10(rms[np.isfinite(rms) & (rms > 0)])
    n = len(x)
    if n < FEWEST_LAYERS or float(x.std()) < 1e-12:
        return DistributionType.DEGENERATE
    if _two_groups(np.sort(x)):
        return DistributionType.MULTIMODAL
    g1, g2 = shape(x, float(x.mean()), float(x.std()))
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


def interactions(recent: LayerSeries) -> tuple[LayerInteraction, ...]:
    """Neighbours in forward order and the strongest pairs beside them, by position."""
    changes = recent.changes
    if len(changes) < FEWEST_COMMON or len(recent.names) < 2:
        return ()
    correlation, common = correlations(changes)
    strength = np.triu(np.abs(np.nan_to_num(correlation)), 1)
    chosen = {(i, i + 1) for i in range(len(recent.names) - 1)}
    ranked = np.argsort(-strength, axis=None, kind="stable")[:STRONGEST]
    chosen |= {
        (int(i), int(j)) for i, j in zip(*np.unravel_index(ranked, strength.shape), strict=True)
    }
    spikes = _spikes(changes)
    return tuple(
        _interaction(recent, i, j, correlation[i, j], int(common[i, j]), spikes, len(chosen))
        for i, j in sorted(chosen)
        if i < j and common[i, j] >= FEWEST_COMMON and np.isfinite(correlation[i, j])
    )


def correlations(
    changes: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of every two columns over the rows both have, and how many those are: four products."""
    known = np.isfinite(changes)
    mask = known.astype(float)
    x = np.where(known, changes, 0.0)
    x = np.where(known, x - x.sum(axis=0) / np.maximum(mask.sum(axis=0), 1), 0.0)
    common = mask.T @ mask
    with np.errstate(invalid="ignore", divide="ignore"):
        first, second = (x.T @ mask) / common, (mask.T @ x) / common
        covariance = (x.T @ x) / common - first * second
        squares = (x * x).T @ mask / common - first**2
        found = covariance / np.sqrt(squares * squares.T)
    return np.clip(found, -1, 1), common


def _interaction(
    recent: LayerSeries,
    i: int,
    j: int,
    correlation: float,
    common: int,
    spikes: NDArray[np.bool_],
    pairs: int,
) -> LayerInteraction:
    if _disrupts(spikes[:, i], spikes[:, j]) or _disrupts(spikes[:, j], spikes[:, i]):
        type_ = InteractionType.DISRUPTIVE
    elif _p_value(correlation, common) * pairs >= 0.01:
        type_ = InteractionType.NEUTRAL
    elif correlation > 0:
        type_ = InteractionType.COOPERATIVE
    else:
        type_ = InteractionType.COMPETITIVE
    names = recent.names
    return LayerInteraction(
        names[i], names[j], abs(float(correlation)), type_, float(correlation) ** 2, common
    )


def _p_value(correlation: float, n: int) -> float:
    """Fisher's z."""
    bounded = max(min(float(correlation), 1 - 1e-12), -1 + 1e-12)
    return math.erfc(abs(math.atanh(bounded)) * math.sqrt(max(n - 3, 1)) / math.sqrt(2))


def _spikes(changes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Changes far outside the column's own usual ones."""
    size = np.abs(changes)
    usual = np.nanmedian(np.where(np.isfinite(size).any(axis=0), size, 0.0), axis=0)
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
