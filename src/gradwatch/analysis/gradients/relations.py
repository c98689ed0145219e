"""Which layers, and which blocks of layers, move with each other, at once or some steps later.

They are compared by what is new in ln norm at each step, less what a layer's own past foretells:
two layers that merely fall together, or noise that remembers itself, would else seem related.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result
from gradwatch.stats.medians import medians

Array = NDArray[np.float64]

FEWEST_COMMON = 8
FEWEST_STEPS = FEWEST_COMMON + 2
"""Of which the first two have too little before them to be foretold."""
STRONGEST = 20
MOST_SEARCHED = 2048
"""Layers up to which every pair is looked at; of more, only neighbours in forward order."""
TILE = 512
LAGS = range(-5, 6)
"""By how many recorded steps one layer may follow another; positive where the first leads."""
CHANCE = 0.005
"""Of all pairs and lags searched, the chance that any passes although nothing is related."""
SPENT = 9
"""Steps that tell nothing: Fisher's three, four of the cubic and the two that foretell."""
OUTLIER = 3.0
SMOOTH = 0.5
SPIKE = 5.0


class InteractionType(StrEnum):
    """How the norms of two layers move with each other."""

    COOPERATIVE = "Cooperative"
    COMPETITIVE = "Competitive"
    NEUTRAL = "Neutral"
    DISRUPTIVE = "Disruptive"


class InteractionDirection(StrEnum):
    """Which of two blocks moves first: the later in forward order, the earlier, or neither."""

    TOP_DOWN = "TopDown"
    BOTTOM_UP = "BottomUp"
    BIDIRECTIONAL = "Bidirectional"


class LayerInteraction(Result):
    """Between layers only the norms can be compared: their gradients share no space."""

    layer1: str
    layer2: str
    interaction_strength: float
    """|correlation| of what is new in the two ln norms, at the lag where it is largest."""
    interaction_type: InteractionType
    impact_score: float
    """The share of variance they have in common: correlation squared."""
    common_steps: int
    lag: int
    """Recorded steps by which layer1 leads layer2; negative where it follows."""
    confidence: float
    """1 − the chance of such a correlation anywhere among the pairs and lags searched."""


class CrossLevelInteraction(Result):
    """Two blocks that move with each other; `from_level` is the earlier in forward order."""

    from_level: str
    to_level: str
    interaction_strength: float
    """|correlation| of what is new in the mean ln norm of the blocks, at the best lag."""
    interaction_direction: InteractionDirection
    lag: int
    """Recorded steps by which `from_level` leads; negative where it follows."""
    confidence: float
    """1 − the chance of such a correlation anywhere among the pairs and lags searched."""
    opposed: bool
    """Whether one rises where the other falls."""


def interactions(recent: LayerSeries) -> tuple[LayerInteraction, ...]:
    """Neighbours in forward order, and the strongest related pairs beside them, by position."""
    pairs = _pairs(innovations(recent.logs))
    disrupted = _disrupted(recent.logs, pairs)
    found = []
    for pair, disrupts in zip(pairs, disrupted, strict=True):
        type_ = InteractionType.NEUTRAL
        if disrupts:
            type_ = InteractionType.DISRUPTIVE
        elif pair.chance < CHANCE:
            positive = pair.correlation > 0
            type_ = InteractionType.COOPERATIVE if positive else InteractionType.COMPETITIVE
        if pair.common >= FEWEST_COMMON:
            found.append(
                LayerInteraction(
                    recent.names[pair.first],
                    recent.names[pair.second],
                    abs(pair.correlation),
                    type_,
                    pair.correlation**2,
                    pair.common,
                    pair.lag,
                    1 - pair.chance,
                )
            )
    return tuple(found)


def between_blocks(names: Sequence[str], moves: Array) -> tuple[CrossLevelInteraction, ...]:
    """The strongest related pairs of blocks, by the mean of what is new in their layers."""
    related = [
        CrossLevelInteraction(
            names[pair.first],
            names[pair.second],
            abs(pair.correlation),
            _direction(pair.by_lag, pair.lag),
            pair.lag,
            1 - pair.chance,
            pair.correlation < 0,
        )
        for pair in _pairs(innovations(moves))
        if pair.chance < CHANCE
    ]
    related.sort(key=lambda item: -item.interaction_strength)
    return tuple(related[:STRONGEST])


def _direction(by_lag: Array, lag: int) -> InteractionDirection:
    follows, leads = float(by_lag[:5].max()), float(by_lag[6:].max())
    if lag == 0 or 2 * min(follows, leads) > max(follows, leads):
        return InteractionDirection.BIDIRECTIONAL
    return InteractionDirection.BOTTOM_UP if lag > 0 else InteractionDirection.TOP_DOWN


# -- what is new -----------------------------------------------------------------------------------


def innovations(logs: Array) -> Array:
    """What is new in each column [step, layer] on each step, in units of its usual size.

    A column's values less their smooth course (a cubic) and less what the last two foretell: noise
    without memory, so that a correlation over n steps is worth n steps. Sizes above three are cut.
    NaN where a sample or one of the two before it is absent, and throughout a column that is
    foretold exactly.
    """
    out = np.full(logs.shape, np.nan)
    if len(logs) < FEWEST_STEPS:
        return out
    rest = _without_course(logs)
    present = np.isfinite(rest[2:] + rest[1:-1] + rest[:-2])
    n = present.sum(axis=0)
    x, y, z = (trends.centred(part, present)[1] for part in (rest[1:-1], rest[:-2], rest[2:]))
    xx, yy, xy, xz, yz = ((a * b).sum(axis=0) for a, b in ((x, x), (y, y), (x, y), (x, z), (y, z)))
    xx, yy = xx * (1 + 1e-9), yy * (1 + 1e-9)  # on a straight line the two would be the same
    determinant = xx * yy - xy * xy
    scale = np.divide(1.0, determinant, out=np.zeros(len(n)), where=determinant > 0)
    fresh = z - x * ((yy * xz - xy * yz) * scale) - y * ((xx * yz - xy * xz) * scale)
    usual = 1.4826 * np.nan_to_num(medians(np.where(present, np.abs(fresh), np.nan)))
    # Of what is foretold to the rounding, mostly stands still or follows a smooth curve of its own,
    # nothing is ever new.
    size = np.nan_to_num(np.fmax.reduce(np.abs(logs), axis=0)) + np.sqrt((z * z).mean(axis=0))
    smooth = np.abs(trends.autocorrelations(fresh)) > SMOOTH
    known = (usual > 1e-9 * size) & (n >= FEWEST_COMMON) & ~smooth
    cut = np.clip(fresh / np.where(known, usual, 1.0), -OUTLIER, OUTLIER)
    out[2:] = np.where(present & known, cut, np.nan)
    return out


def _without_course(logs: Array) -> Array:
    """Each column less its cubic over time, by least squares over the samples it has."""
    present = np.isfinite(logs)
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, len(logs)), 3)
    squares = (powers[:, :, None] * powers[:, None, :]).reshape(len(logs), 16)
    table = (squares.T @ present.astype(float)).T.reshape(-1, 4, 4) + 1e-9 * np.eye(4)
    _, centred = trends.centred(logs, present)
    fitted = np.linalg.solve(table, (powers.T @ centred).T[:, :, None])[:, :, 0]
    return np.where(present, centred - powers @ fitted.T, np.nan)


def unit(fresh: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Innovations with mean square 1 and zeros where absent, and where they are present."""
    present = np.isfinite(fresh)
    x = np.where(present, fresh, 0.0)
    squares = (x * x).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return x / np.sqrt(np.where(squares > 0, squares, 1.0)), present


# -- correlation at each lag -----------------------------------------------------------------------


class Pair(NamedTuple):
    """Two columns, compared at the lag that chance explains least."""

    first: int
    second: int
    lag: int
    correlation: float
    common: int
    """Steps that both have at this lag."""
    chance: float
    """That any of the pairs and lags searched correlates so although nothing is related."""
    by_lag: Array
    """|correlation| at each lag, 0 where it may be chance."""


def _pairs(fresh: Array) -> list[Pair]:
    """Neighbours, and the strongest related pairs beside them, in order of their columns."""
    columns = fresh.shape[1]
    if columns < 2 or len(fresh) < FEWEST_STEPS:
        return []
    tests = (columns * (columns - 1) // 2 if columns <= MOST_SEARCHED else columns - 1) * len(LAGS)
    limit = -NormalDist().inv_cdf(CHANCE / tests / 2)
    chosen = {(i, i + 1) for i in range(columns - 1)}
    if 2 < columns <= MOST_SEARCHED:
        chosen.update(_strongest(fresh, limit))
    ordered = np.array(sorted(chosen), np.intp).T
    correlations, common = _correlations(*(fresh[:, side] for side in ordered))
    # Fisher's z: a standard normal number where nothing is related.
    z = np.arctanh(np.clip(np.abs(correlations), 0, 1 - 1e-12))
    z *= np.where(common < FEWEST_COMMON, 0.0, np.sqrt(np.maximum(common - SPENT, 0)))
    by_lag = np.where(z > limit, np.abs(correlations), 0).T
    best = np.argmax(z, axis=0)
    correlation, steps, most = (
        np.take_along_axis(x, best[None], 0)[0] for x in (correlations, common, z)
    )
    chances = (min(math.erfc(x / math.sqrt(2)) * tests, 1.0) for x in most.tolist())
    lags = np.array(LAGS)[best]
    numbers = (x.tolist() for x in (*ordered, lags, correlation, steps))
    return list(map(Pair, *numbers, chances, by_lag))


def _correlations(first: Array, second: Array) -> tuple[Array, NDArray[np.int64]]:
    """Of innovations, column by column [lag, pair]; and over how many steps."""
    correlations, common = [], []
    for later in _later(second, np.nan):
        both = np.isfinite(first) & np.isfinite(later)
        x, y = np.where(both, first, 0.0), np.where(both, later, 0.0)
        size = np.sqrt((x * x).sum(axis=0) * (y * y).sum(axis=0))
        product = (x * y).sum(axis=0)
        correlations.append(np.divide(product, size, out=np.zeros(len(size)), where=size > 0))
        common.append(both.sum(axis=0))
    return np.stack(correlations), np.stack(common)


def _later(x: NDArray[Any], beyond: float) -> list[NDArray[Any]]:
    """The columns as they are by each of `LAGS` later, with this value beyond their ends."""
    reach = max(LAGS)
    padded = np.pad(x, ((reach, reach), (0, 0)), constant_values=beyond)
    return [padded[reach + lag :][: len(x)] for lag in LAGS]


def _strongest(fresh: Array, limit: float) -> list[tuple[int, int]]:
    """At most `STRONGEST` pairs of columns whose z exceeds the limit at some lag.

    Tile by tile, so that no table of all pairs is ever held.
    """
    values, present = unit(fresh)
    x, mask = values.astype(np.float32), present.astype(np.float32)
    # Columns that have the same steps need no counting pair by pair; one without any does no harm.
    some = mask.max(axis=1, keepdims=True)
    alike = bool((mask == some)[:, present.any(axis=0)].all())
    # [step, lag, column]
    shifted, counted = (np.stack(_later(a, 0), axis=1) for a in (x, some if alike else mask))
    found: list[tuple[float, int, int]] = []
    for begin in range(0, x.shape[1], TILE):
        tile = slice(begin, begin + TILE)
        products = _products(x[:, tile], shifted[:, :, begin:])
        np.abs(products, out=products)
        if alike:
            common = _products(some, counted)
        else:
            common = _products(mask[:, tile], counted[:, :, begin:])
        common = np.maximum(common, SPENT + 1)
        products /= common * np.tanh(limit / np.sqrt(common - SPENT))
        best = products.max(axis=1)
        i, j = np.nonzero(np.triu(best > 1, 1))
        top = np.argsort(-best[i, j], kind="stable")[:STRONGEST]
        i, j = i[top], j[top]
        found += zip((-best[i, j]).tolist(), i + begin, j + begin, strict=True)
    return [(first, second) for _, first, second in sorted(found)[:STRONGEST]]


def _products(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
    """[column of x, lag, column of y]; one product of matrices is far cheaper than eleven."""
    return np.asarray((x.T @ y.reshape(len(y), -1)).reshape(x.shape[1], *y.shape[1:]))


# -- disruption ------------------------------------------------------------------------------------


def _disrupted(logs: Array, pairs: Sequence[Pair]) -> NDArray[np.bool_]:
    """Pairs of which one's spikes follow a step after the other's, beyond chance.

    Spikes on the same step have a common cause (a bad batch), so they are no disruption.
    """
    out = np.zeros(len(pairs), bool)
    if not pairs:
        return out
    size = np.abs(np.diff(logs, axis=0))
    usual = 1.4826 * np.nan_to_num(medians(size))
    spikes = np.nan_to_num(size) > SPIKE * np.maximum(usual, 1e-12)
    first, second = np.array([(pair.first, pair.second) for pair in pairs]).T
    for a, b in ((first, second), (second, first)):
        lone, follows = spikes[:-1, a] & ~spikes[:-1, b], spikes[1:, b] & ~spikes[1:, a]
        hits, tries, rate = (lone & follows).sum(axis=0), lone.sum(axis=0), follows.mean(axis=0)
        for k in np.flatnonzero((hits >= 3) & (2 * hits >= tries)):
            out[k] |= (
                _binomial(int(hits[k]), int(tries[k]), float(rate[k])) * 2 * len(pairs) < CHANCE
            )
    return out


def _binomial(hits: int, tries: int, rate: float) -> float:
    """The chance of at least so many hits."""
    return sum(
        math.comb(tries, k) * rate**k * (1 - rate) ** (tries - k) for k in range(hits, tries + 1)
    )
