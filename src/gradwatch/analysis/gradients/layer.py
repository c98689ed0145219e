"""One layer: its norms, how they move, its health, its place among the others.

The numbers describe, and none has a limit of its own: how well a layer is says the diagnosis.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.advice import (
    LayerOptimizationSuggestion,
    Reason,
    own_numbers,
    suggestions,
)
from gradwatch.analysis.layers import LayerSeries, column_blocks
from gradwatch.checks.context import context
from gradwatch.diagnosis.verdict import Verdicts
from gradwatch.finding import Severity
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

Array = NDArray[np.float64]

FEWEST = 3
"""Finite samples below which nothing is known about a layer's health."""
UNSTABLE = 0.5
"""Stability below which a layer is described as unstable."""
SIMILAR = float(np.log(1.2))
MOST_SIMILAR = 16
"""Similar layers that are listed by name; all are counted."""
STAGES = 3
BATCHES = 10
"""Parts of the window whose means give the interval of the mean."""
STUDENT_9 = 2.262
"""97.5 % quantile of Student's distribution with `BATCHES` − 1 degrees of freedom."""
TOO_FEW = "fewer finite samples than needed"
NO_SAMPLE = "no finite sample"
OUT_OF_RANGE = "outside the range of floating point numbers"


class LayerHealth(StrEnum):
    """A layer's health; unknown where it has too few samples."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"


HEALTH = {Severity.WARNING: LayerHealth.WARNING, Severity.CRITICAL: LayerHealth.CRITICAL}
"""What a finding makes of the layers it names."""


class Trait(StrEnum):
    """How a layer's norms move: worth knowing, no trouble in itself."""

    UNSTABLE = "Unstable"
    OSCILLATING = "Oscillating"


class GradientStatistics(Result):
    """Of the finite norms; percentiles interpolate linearly at q(n−1)."""

    mean: float | None
    std: float | None
    median: float | None
    percentile_95: float | None
    percentile_5: float | None
    samples: int
    variance: float | None
    skewness: float | None
    kurtosis: float | None
    non_finite_samples: int
    """Steps of the whole run on which the gradient held a NaN or Inf."""


class FlowCharacteristics(Result):
    """Free of units: all of it is computed on ln norm."""

    consistency_score: float | None
    smoothness_index: float | None
    trend_strength: float | None
    oscillation_frequency: float | None
    stability_measure: float | None
    volatility: float | None
    """Mean |Δ ln norm|: what the original called information flow rate."""


class LayerHealthMetrics(Result):
    """How well a layer is by the diagnosis, and why not."""

    overall_health: LayerHealth
    gradient_stability: float | None
    neuron_activity_ratio: float | None
    """Share of output units whose gradient was not zero at the end."""
    convergence_indicator: float | None
    """max(0, −τ_b) of ln norm over the window where the trend is significant, else 0."""
    risk_factors: tuple[str, ...]
    """Findings at warning or above: the troubles by name, then other checks by theirs."""
    traits: tuple[Trait, ...]


class ComparativeAnalysis(Result):
    """One layer among the others."""

    relative_performance: float | None
    """The layer's mean norm over the average of the others': a magnitude, not a merit."""
    rank_among_layers: int | None
    similar_layers: tuple[str, ...]
    """Those whose mean norm is within a factor of 1.2, at most the sixteen nearest."""
    similar_layers_count: int
    performance_gap: float | None
    optimization_potential: float | None
    """Decades between this layer's RMS and the median layer's, halved, at most 1."""


class LayerDetail(Result):
    """Everything the analysis has about one layer; None what its depth does not compute."""

    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics | None
    health_metrics: LayerHealthMetrics
    optimization_suggestions: tuple[LayerOptimizationSuggestion, ...] | None
    comparative_analysis: ComparativeAnalysis | None
    mean_interval: tuple[float, float] | None
    """Where the mean norm of the window lies with 95 % certainty."""
    stages: tuple[GradientStatistics, ...] | None
    """The statistics of the first, second and last third of the run."""
    tensors: dict[str, GradientStatistics] | None
    """The statistics of each parameter of the layer."""


# -- numbers ---------------------------------------------------------------------------------------


def statistics(norms: Array, non_finite: Sequence[int]) -> Iterator[GradientStatistics]:
    """Of every column; `non_finite` counts the steps on which each was NaN or Inf."""
    for columns, part in column_blocks(norms):
        mean, std, *shape = trends.moments(part)
        low, middle, high = trends.percentiles(part, (0.05, 0.5, 0.95))
        with np.errstate(over="ignore", under="ignore"):
            variance = std * std
        variance[(variance == 0) & (std > 0)] = np.inf  # too small to be told from zero
        yield from map(
            GradientStatistics,
            *(known(x, NO_SAMPLE) for x in (mean, std, middle, high, low)),
            np.isfinite(part).sum(axis=0).tolist(),
            *(known(x, NO_SAMPLE) for x in (variance, *shape)),
            non_finite[columns],
        )


def known(values: Array, reason: str) -> list[Any]:
    """As floats; NaN becomes missing for this reason, Inf because no number can hold it."""
    listed: list[Any] = values.tolist()
    finite = np.isfinite(values)
    if not finite.all():
        gone, beyond = missing(reason), missing(OUT_OF_RANGE)
        for at in np.flatnonzero(~finite).tolist():
            listed[at] = gone if np.isnan(values[at]) else beyond
    return listed


def flows(recent: LayerSeries) -> tuple[list[Any], ...]:
    """How every layer moved in the window: characteristics, stability, fall, traits."""
    logs = recent.logs
    samples = np.isfinite(logs).sum(axis=0)
    volatility = trends.volatilities(logs)
    stability = trends.lines(recent.steps, logs).stability
    trend = trends.trends(logs)
    turns = np.where(samples < 4, np.nan, trends.turns(logs) / np.maximum(samples - 2, 1))
    consistency, smoothness = 1 / (1 + volatility), trends.smoothnesses(logs)
    numbers = consistency, smoothness, np.abs(trend.tau), turns, stability, volatility
    columns = [known(x, TOO_FEW) for x in numbers]
    traits = [
        (Trait.UNSTABLE,) * bool(shaky) + (Trait.OSCILLATING,) * bool(turning)
        for shaky, turning in zip(stability < UNSTABLE, trends.oscillating(logs), strict=True)
    ]
    return list(map(FlowCharacteristics, *columns)), columns[4], known(trend.fall, TOO_FEW), traits


def activity(run: Run) -> dict[str, float]:
    """Share of rows (output units) with a gradient at the end, from the layer's largest tensor."""
    if Stat.GRAD_DEAD_ROWS not in run.recorded:
        return {}
    dead_rows = context(run).last(Stat.GRAD_DEAD_ROWS).tolist()
    tensors = sorted(zip(run.parameters, dead_rows, strict=True), key=lambda item: -item[0].count)
    shares: dict[str, float] = {}
    for subject, dead in tensors:
        if len(subject.shape) >= 2 and subject.count and dead == dead:
            shares.setdefault(subject.layer, 1 - dead / subject.shape[0])
    return shares


def potentials(recent: LayerSeries) -> Array:
    """Decades between each layer's RMS and the median layer's, halved, at most 1."""
    if len(recent.names) < 2:
        return np.full(len(recent.names), np.nan)
    return np.minimum(recent.away / 2, 1.0)


def mean_intervals(recent: LayerSeries) -> list[Any]:
    """From the means of `BATCHES` parts of the window: what hangs together lies in one of them.

    Not less wide than what each sample foretells of the next asks for: of a short window the parts
    hang together too.
    """
    too_few = missing(f"fewer than {4 * BATCHES} samples in the window")
    size = len(recent.steps) // BATCHES
    if size < 4:
        return [too_few] * len(recent.names)
    norms = recent.norms[-size * BATCHES :]
    with np.errstate(over="ignore", invalid="ignore"):
        means = norms.reshape(BATCHES, size, -1).mean(axis=1)
        mean, std, _, _ = trends.moments(means)
        half = np.maximum(STUDENT_9 * std / np.sqrt(BATCHES - 1), _with_memory(norms))
    whole = np.isfinite(means).all(axis=0) & np.isfinite(mean + half)
    bounds = zip((mean - half).tolist(), (mean + half).tolist(), strict=True)
    return [pair if complete else too_few for pair, complete in zip(bounds, whole, strict=True)]


def _with_memory(norms: Array) -> Array:
    """Half the width of the interval of each mean, by how much a sample foretells the next."""
    mean, std, _, _ = trends.moments(norms)
    count = len(norms)
    r = trends.autocorrelations((norms - mean) / np.where(std > 0, std, 1.0))
    r = np.clip(r + (2 + 4 * r) / count, 0.0, 0.95)  # of few samples it comes out too low
    inflation = (1 + r) / (1 - r)
    freedom = np.maximum(count / inflation - 1, 2.0)
    quantile = np.array([trends.student_95(value) for value in freedom.tolist()])
    half: Array = quantile * std * np.sqrt(inflation / (count - 1))
    return half


def stages(series: LayerSeries) -> list[tuple[GradientStatistics, ...]]:
    """The statistics of each third of the run, by layer."""
    ends = np.linspace(0, len(series.steps), STAGES + 1).astype(int)
    none = [0] * len(series.names)
    by_stage = (statistics(series.norms[begin:end], none) for begin, end in pairwise(ends))
    return list(zip(*by_stage, strict=True))


def tensor_statistics(run: Run) -> dict[str, dict[str, GradientStatistics]]:
    """Layer → parameter → the statistics of its norms, over the finite part of the run."""
    ctx = context(run)
    rows = ctx.rows(Stat.GRAD_NORM)
    rows = rows[~ctx.skipped[rows]]
    norms = run.at(Stat.GRAD_NORM, rows)
    made = statistics(norms, [0] * norms.shape[1])
    by_layer: dict[str, dict[str, GradientStatistics]] = {}
    for subject, item in zip(run.parameters, made, strict=True):
        by_layer.setdefault(subject.layer, {})[subject.name] = item
    return by_layer


# -- one among the others --------------------------------------------------------------------------


def compared(series: LayerSeries, recent: LayerSeries) -> list[ComparativeAnalysis]:
    """All layers at once: one sort instead of a pass over the others for each."""
    means = series.means
    size = int(np.isfinite(means).sum())
    if size < 2:
        gone, alone = missing(NO_SAMPLE), missing("there is no other layer to compare with")
        nothing = ComparativeAnalysis(gone, gone, (), 0, gone, gone)
        single = ComparativeAnalysis(1.0, 1, (), 0, 0.0, alone)
        return [single if has else nothing for has in np.isfinite(means)]
    unit = float(np.nanmax(means)) or 1.0  # the sum of large means would leave the range
    others = (np.nansum(means / unit) - means / unit) / (size - 1) * unit
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        relative = np.where(others > 0, means / others, np.where(np.isnan(others), np.nan, 1.0))
    ordered = np.sort(means[np.isfinite(means)])
    ranks: list[Any] = (1 + size - np.searchsorted(ordered, means, side="right")).tolist()
    for column in np.flatnonzero(np.isnan(means)).tolist():
        ranks[column] = missing(NO_SAMPLE)
    names, counts = _similar(series.names, means)
    return list(
        map(
            ComparativeAnalysis,
            known(relative, NO_SAMPLE),
            ranks,
            names,
            counts,
            known(np.abs(means - others), NO_SAMPLE),
            known(potentials(recent), "the layer has no gradient in the window"),
        )
    )


def _similar(names: Sequence[str], means: Array) -> tuple[list[tuple[str, ...]], list[int]]:
    """The nearest layers within a factor of 1.2, in forward order, and how many there are."""
    logs = np.full(len(means), -1e6)  # zero: like zero, far from everything else
    np.log(means, out=logs, where=means > 0)
    order = [column for column in np.argsort(logs, kind="stable").tolist() if means[column] >= 0]
    ordered, reach = logs[order], SIMILAR + 1e-12
    first = np.searchsorted(ordered, ordered - reach).tolist()
    last = np.searchsorted(ordered, ordered + reach, side="right").tolist()
    listed: list[tuple[str, ...]] = [()] * len(means)
    counts = [0] * len(means)
    at = logs.tolist()
    for place, column in enumerate(order):
        # The nearest ones stand beside a layer in the order, so only so many need a look.
        begin, end = max(first[place], place - MOST_SIMILAR), place + MOST_SIMILAR + 1
        near = order[begin : min(last[place], end)]
        near.remove(column)
        near.sort(key=lambda other, here=at[column]: abs(at[other] - here))  # type: ignore[misc]
        listed[column] = tuple(names[other] for other in sorted(near[:MOST_SIMILAR]))
        counts[column] = last[place] - first[place] - 1
    return listed, counts


# -- health ----------------------------------------------------------------------------------------


def health(
    run: Run, said: Verdicts, details: Iterable[tuple[str, GradientStatistics, Any, Any, Any]]
) -> list[LayerHealthMetrics]:
    """How well each layer is; of each its name, statistics, stability, fall and traits."""
    active = activity(run)
    no_rows = missing("rows of the gradient were not recorded")
    return [
        LayerHealthMetrics(
            _health(said, name, own.samples),
            stability,
            active.get(name, no_rows),
            fall,
            _risks(said, name),
            traits,
        )
        for name, own, stability, fall, traits in details
    ]


def _health(said: Verdicts, layer: str, samples: int) -> LayerHealth:
    """What the diagnosis says of a layer; where it says nothing, it takes samples to be healthy."""
    silent = LayerHealth.HEALTHY if samples >= FEWEST else LayerHealth.UNKNOWN
    return HEALTH.get(said.severity(layer) or Severity.INFO, silent)


def _risks(said: Verdicts, layer: str) -> tuple[str, ...]:
    """The troubles of a layer, then the other checks that name it at warning or above."""
    grave = [item for item in said.by_layer.get(layer, ()) if item.severity >= Severity.WARNING]
    grave.sort(key=lambda item: item.trouble is None)
    return tuple(dict.fromkeys(str(item.trouble or item.check) for item in grave))


def layer_suggestions(
    recent: LayerSeries, because: dict[str, list[Reason]]
) -> list[tuple[LayerOptimizationSuggestion, ...]]:
    """What to try for each layer, from the findings that name it."""
    numbers = zip(recent.names, recent.typical.tolist(), recent.away.tolist(), strict=True)
    return [
        suggestions(because[name], own_numbers(typical, recent.middle), away)
        if name in because
        else ()
        for name, typical, away in numbers
    ]
