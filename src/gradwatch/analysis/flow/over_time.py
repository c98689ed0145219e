"""Each layer by itself over time: its magnitudes, and how they move over the last samples."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.flow.directions import Directions, GradientDirection, Recent, mean_cosines
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run

MOST_LISTED, ALL_LISTED, FEWEST_LISTED = 256, 1 << 14, 32
"""Norms listed: at most of one layer, of all together, but so many of each in any case.

Writing more of them as text would take longer than the analysis.
"""

Array = NDArray[np.float64]
Samples = tuple[tuple[int, ...], tuple[float, ...]]
"""Steps, and the norms on them."""


class FlowDirection(StrEnum):
    """How the magnitude moves in time (the original said Forward and Backward)."""

    GROWING = "Growing"
    SHRINKING = "Shrinking"
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"
    UNKNOWN = "Unknown"


class GradientLayerFlow(Result):
    """The gradient of one layer over the run."""

    layer_name: str
    gradient_magnitudes: tuple[float, ...]
    """Every norm; of a long series the first, the last, and the extremes of equal stretches."""
    magnitude_steps: tuple[int, ...]
    """The steps of these norms."""
    gradient_directions: tuple[GradientDirection, ...]
    """Of the last `temporal_window` samples; made when they are asked for."""
    direction_consistency: float | None
    """Mean cosine of its gradients on these samples with the ones before them."""
    flow_consistency: float | None
    """1 / (1 + volatility)."""
    bottleneck_score: float | None
    """Decades of gradient lost across this layer beyond the usual, halved, 0 … 1."""
    volatility: float | None
    """Mean change of ln norm from one sample to the next, without its sign."""


class TemporalGradientFlow(Result):
    """How the magnitude of one layer's gradient moves over the last samples."""

    layer_name: str
    step: int
    gradient_magnitude: float
    flow_direction: FlowDirection
    stability_score: float | None
    """1/(1 + spread of ln norm about its line over the steps)."""


def layer_flows(
    run: Run, series: LayerSeries, last: Recent, bottlenecks: Sequence[float]
) -> dict[str, GradientLayerFlow]:
    """Every layer, by name."""
    few = missing("fewer than two positive samples")
    alone = missing("the layer has no neighbours with a gradient on both sides")
    most = min(MOST_LISTED, max(FEWEST_LISTED, ALL_LISTED // max(len(series.names), 1)))
    volatilities: list[float] = []
    magnitudes: list[Samples] = []
    for _, norms in series.blocks():
        volatilities += trends.volatilities(trends.logs(norms)).tolist()
        magnitudes += _listed(series.steps, norms, most)
    agreement = mean_cosines(run, series, last)
    flows = {}
    rows = zip(series.names, magnitudes, bottlenecks, volatilities, strict=True)
    for column, (name, (steps, listed), bottleneck, volatility) in enumerate(rows):
        known = volatility == volatility
        flows[name] = GradientLayerFlow(
            name,
            listed,
            steps,
            # Behaves as a tuple: what is made of it is read back as one.
            cast("tuple[GradientDirection, ...]", Directions(last, column)),
            agreement[column],
            1 / (1 + volatility) if known else few,
            bottleneck if bottleneck == bottleneck else alone,
            volatility if known else few,
        )
    return flows


def _listed(steps: NDArray[np.int64], norms: Array, most: int) -> Iterator[Samples]:
    """The norms of each column with their steps; of more than `most` those that tell it."""
    whole = len(steps) <= most
    every = tuple(steps.tolist()) if whole else ()  # shared by all layers
    rows = np.arange(len(steps))[:, None] if whole else np.sort(_telling_rows(norms, most), axis=0)
    values = (norms if whole else np.take_along_axis(norms, rows, 0)).T
    kept = np.isfinite(values)
    kept[:, 1:] &= (rows[1:] != rows[:-1]).T  # a row may be both the first and an extreme
    places = np.broadcast_to(rows, values.T.shape).T
    for at, column, chosen in zip(places, values, kept, strict=True):
        shared = whole and chosen.all()
        yield every if shared else tuple(steps[at[chosen]].tolist()), tuple(column[chosen].tolist())


def _telling_rows(norms: Array, most: int) -> NDArray[np.intp]:
    """Rows of each column's first and last sample, and of the extremes of equal stretches."""
    stretches = most // 2 - 1
    size = -(-len(norms) // stretches)
    padded = np.full((stretches * size, norms.shape[1]), np.nan)
    padded[: len(norms)] = norms
    finite = np.isfinite(padded)
    begins = np.arange(0, len(padded), size)[:, None]
    shape = (stretches, size, norms.shape[1])
    lows = np.where(finite, padded, np.inf).reshape(shape).argmin(axis=1) + begins
    highs = np.where(finite, padded, -np.inf).reshape(shape).argmax(axis=1) + begins
    ends = np.stack([finite.argmax(axis=0), len(padded) - 1 - finite[::-1].argmax(axis=0)])
    rows: NDArray[np.intp] = np.concatenate([lows, highs, ends])
    return np.minimum(rows, len(norms) - 1)


# -- the last samples ------------------------------------------------------------------------------


def temporal_flows(series: LayerSeries, last: Recent) -> tuple[TemporalGradientFlow, ...]:
    """Of every layer that has a finite sample."""
    few = missing("fewer than three positive samples on different steps")
    logs = trends.logs(last.norms)
    stability = (1 / (1 + trends.lines(last.steps.T, logs.T).spread)).tolist()
    directions = _directions(last.norms, logs)
    flows = []
    for column, (name, first) in enumerate(zip(series.names, last.first.tolist(), strict=True)):
        if first < last.norms.shape[1]:
            stable = stability[column] if stability[column] == stability[column] else few
            step, norm = last.steps[column, -1], last.norms[column, -1]
            flows.append(TemporalGradientFlow(name, step, norm, directions[column], stable))
    return tuple(flows)


def _directions(norms: Array, logs: Array) -> list[FlowDirection]:
    trend = trends.trends(logs.T)
    # Zeros have no logarithm to test, but they stay where they are.
    silent = ((norms == 0).sum(axis=1) >= trends.FEWEST) & ~(norms > 0).any(axis=1)
    cases = [trends.oscillating(logs.T), trend.rising, trend.falling, silent | ~np.isnan(trend.tau)]
    words = [
        FlowDirection.OSCILLATING,
        FlowDirection.GROWING,
        FlowDirection.SHRINKING,
        FlowDirection.STAGNANT,
        FlowDirection.UNKNOWN,
    ]
    which = np.select(cases, range(len(cases)), len(cases))
    return [words[i] for i in which.tolist()]
