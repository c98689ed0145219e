"""How steady the gradients are over time, where that is heading, and what disturbs them.

Explosion and vanishing are the diagnosis's; the rest is described from the norms.
"""

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.diagnosis import Trouble, Verdict, verdicts
from gradwatch.finding import Severity
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, medians

Array = NDArray[np.float64]

ROWS = 1 << 14
"""Steps of a stretch that are looked at."""
PIECES = 12
"""The run is cut into at most this many stretches; a trend needs `trends.FEWEST` of them."""
CLEAR, USUAL = 0.01, 0.05
STAGNANT = 1e-9
STAGNANT_SAMPLES = 10
CHAOTIC = 0.5
"""Stability below which the samples lie about their line by more than a factor of e."""


class StabilityTrend(StrEnum):
    """Whether the gradients grow steadier over the run."""

    IMPROVING = "Improving"
    STABLE = "Stable"
    DEGRADING = "Degrading"


class StabilityOutlook(StrEnum):
    """Where the stability is heading."""

    STABLE = "Stable"
    IMPROVING = "Improving"
    DETERIORATING = "Deteriorating"
    UNCERTAIN = "Uncertain"


class InstabilityType(StrEnum):
    """What makes a layer's gradient unsteady."""

    GRADIENT_EXPLOSION = "GradientExplosion"
    GRADIENT_VANISHING = "GradientVanishing"
    OSCILLATION = "Oscillation"
    STAGNATION = "Stagnation"
    CHAOS = "Chaos"


_TROUBLES = {
    Trouble.EXPLODING: ("explodes", InstabilityType.GRADIENT_EXPLOSION),
    Trouble.VANISHING: ("vanishes", InstabilityType.GRADIENT_VANISHING),
    Trouble.DEAD: ("vanishes", InstabilityType.GRADIENT_VANISHING),
}


class Monitoring(AdviceCode):
    """What to record or to watch next."""

    LOG_LOSS = "LogLoss", "Log the loss: watcher.log(loss=loss)."
    LOG_VALIDATION_LOSS = "LogValidationLoss", "Log the validation loss: watcher.log(val_loss=…)."
    RECORD_MORE_STEPS = "RecordMoreSteps", "Record more steps: a trend needs about forty samples."
    RECORD_UPDATES = "RecordUpdates", "Record the updates: they tell whether the weights settle."
    RECORD_DIRECTIONS = "RecordDirections", "Record gradients: cosines tell where they point."
    WATCH_LAYERS = "WatchLayers", "Watch these layers: they are the unsteady ones."


class InstabilitySource(Result):
    """A layer that disturbs the training, and how much."""

    source_type: InstabilityType
    affected_layers: tuple[str, ...]
    severity: float
    """Of explosion and vanishing the diagnosis's word: ½ warning, 1 critical. Else measured, 0 … 1:
    share of steps that turn, share of samples that stand still, 1 − e^(−spread of Δ ln norm)."""
    description: str


class MonitoringAdvice(Result):
    """Something to record or to watch, and for which layers (none: for the whole run)."""

    what: Monitoring
    layers: tuple[str, ...]
    description: str


class StabilityForecast(Result):
    """Extrapolated from all stretches of the run, and kept only if the last ones bore it out."""

    short_term_outlook: StabilityOutlook | None
    long_term_outlook: StabilityOutlook | None
    confidence_level: float | None
    """Share of held-back stretches that fell into their interval."""
    expected_stability: tuple[float, float] | None
    """95 % interval of the stability over the next stretch, a twelfth of the run."""
    recommended_monitoring: tuple[MonitoringAdvice, ...]


class StabilityAssessment(Result):
    """How steady the gradients are, whether that changes, what disturbs them."""

    overall_stability: float | None
    stability_trend: StabilityTrend | None
    stability_forecast: StabilityForecast
    instability_sources: tuple[InstabilitySource, ...]


def stability(
    run: Run, series: LayerSeries, recent: LayerSeries, threshold: float
) -> StabilityAssessment:
    """How steady the gradients are, whether that changes, and what disturbs them."""
    fits = trends.lines(recent.steps, recent.logs)
    measures = trends.finite(fits.stability)
    overall = float(measures.mean()) if len(measures) else None
    pieces = _stretches(series.norms)
    sources = (*_troubles(run, series), *_unsteady(recent, fits.stability))
    return StabilityAssessment(
        missing("no layer has enough samples") if overall is None else overall,
        _stability_trend(pieces, overall, threshold),
        _forecast(run, pieces, sources),
        sources,
    )


def _stretches(norms: Array) -> Array:
    """Mean stability over layers in each stretch of the run: 1/(1 + spread of Δ ln norm/√2)."""
    size = max((len(norms) - 1) // PIECES, 5)
    stretches = []
    for begin in range(0, len(norms) - size, size):
        piece = norms[begin : begin + min(size, ROWS) + 1]  # of a long stretch, its beginning
        changes = np.diff(trends.logs(piece), axis=0)
        rows = np.isfinite(changes).sum(axis=0)
        squares = np.nansum(changes**2, axis=0)[rows >= 3] / rows[rows >= 3]
        if len(squares):
            stretches.append(float((1 / (1 + np.sqrt(squares / 2))).mean()))
    return np.array(stretches)


def _stability_trend(
    pieces: Array, overall: float | None, threshold: float
) -> StabilityTrend | None:
    """Below the threshold a change at the usual 5 % counts, above it only a clear one."""
    trend = trends.trend(pieces)
    if trend is None or overall is None:
        return missing("the run is too short for a trend")  # type: ignore[no-any-return]
    if trend.p >= (CLEAR if overall > threshold else USUAL):
        return StabilityTrend.STABLE
    return StabilityTrend.IMPROVING if trend.tau > 0 else StabilityTrend.DEGRADING


def _forecast(run: Run, pieces: Array, sources: tuple[InstabilitySource, ...]) -> StabilityForecast:
    """Predict each of the last stretches from those before it; a forecast that failed is null."""
    advice = _monitoring(run, pieces, sources)
    if len(pieces) < trends.FEWEST:
        gone = missing("the run is too short for a forecast")
        return StabilityForecast(gone, gone, gone, gone, advice)
    hits = 0
    for held_back in range(len(pieces) - 3, len(pieces)):
        low, high = expected(pieces[:held_back], 1)
        hits += low <= pieces[held_back] <= high
    if hits < 2:
        gone = missing("held-back steps did not bear the forecast out")
        return StabilityForecast(gone, gone, hits / 3, gone, advice)
    short, far = (_outlook(pieces, ahead) for ahead in (1, len(pieces)))
    return StabilityForecast(short, far, hits / 3, expected(pieces, 1), advice)


def expected(pieces: Array, ahead: int) -> tuple[float, float]:
    """95 % interval of the value `ahead` stretches on, by the line through all of them."""
    at = np.arange(len(pieces), dtype=float)
    value, slope = trends.line_weights(at, at[-1] + ahead)
    rest = pieces - pieces.mean() - (slope @ pieces) * (at - at.mean())
    variance = max(float(rest @ rest) / (len(pieces) - 2), 1e-12)
    width = trends.student_95(len(pieces) - 2) * math.sqrt(variance * (1 + value @ value))
    middle = float(value @ pieces)
    return max(middle - width, 0.0), min(middle + width, 1.0)


def _outlook(pieces: Array, ahead: int) -> StabilityOutlook:
    now = median(pieces[-3:])
    low, high = expected(pieces, ahead)
    if low > now:
        return StabilityOutlook.IMPROVING
    if high < now:
        return StabilityOutlook.DETERIORATING
    steady = high - low < 0.5 and abs((low + high) / 2 - now) < 0.25
    return StabilityOutlook.STABLE if steady else StabilityOutlook.UNCERTAIN


def _monitoring(
    run: Run, pieces: Array, sources: tuple[InstabilitySource, ...]
) -> tuple[MonitoringAdvice, ...]:
    """What is missing for a better forecast, and the layers that make it worse."""
    wanted = {
        Monitoring.RECORD_MORE_STEPS: len(pieces) < trends.FEWEST,
        Monitoring.LOG_LOSS: "loss" not in run.scalars,
        Monitoring.LOG_VALIDATION_LOSS: "val_loss" not in run.scalars,
        Monitoring.RECORD_UPDATES: Stat.UPDATE_RATIO not in run.recorded,
        Monitoring.RECORD_DIRECTIONS: Stat.GRAD_COSINE not in run.recorded,
    }
    unsteady = tuple(dict.fromkeys(layer for item in sources for layer in item.affected_layers))
    watched = ((Monitoring.WATCH_LAYERS, unsteady),) if unsteady else ()
    asked = ((what, ()) for what, needed in wanted.items() if needed)
    return tuple(MonitoringAdvice(what, layers, what.advice) for what, layers in (*watched, *asked))


def _troubles(run: Run, series: LayerSeries) -> list[InstabilitySource]:
    """What the diagnosis calls exploding, vanishing or dead, held against the layer's own past."""
    found = verdicts(run)
    said = [(verb, kind, found.layers_with(trouble)) for trouble, (verb, kind) in _TROUBLES.items()]
    if not any(layers for *_, layers in said):
        return []
    moments = {
        "at the start": medians(series.norms[:5]),
        "at most": np.fmax.reduce(series.norms, axis=0, initial=np.nan),
        "at the end": medians(series.norms[-5:]),
    }
    sources = []
    for column, name in enumerate(series.names):
        for verb, kind, layers in said:
            if name in layers:
                past = {when: float(norms[column]) for when, norms in moments.items()}
                text = f"the gradient of {name} {verb} {_told(kind, layers[name], past)}"
                severity = 1.0 if layers[name].severity >= Severity.CRITICAL else 0.5
                sources.append(InstabilitySource(kind, (name,), severity, text))
    return sources


def _told(kind: InstabilityType, verdict: Verdict, past: dict[str, float]) -> str:
    known = {when: norm for when, norm in past.items() if math.isfinite(norm)}
    if kind is InstabilityType.GRADIENT_VANISHING and len(known) == 3:
        del known["at most"]
    told = ", ".join(f"{x:.1e} {when}" if x else f"0 {when}" for when, x in known.items())
    return f"since step {verdict.first_step}" + (f": {told}" if told else "")


def _unsteady(recent: LayerSeries, steadiness: Array) -> list[InstabilitySource]:
    """Layers that swing, jump about or stand still, in forward order."""
    logs = trends.packed(recent.logs)
    n = np.isfinite(logs).sum(axis=0)
    swings, turns = trends.oscillating(logs), trends.turns(logs) / np.maximum(n - 2, 1)
    _, spread, *_ = trends.moments(np.diff(logs, axis=0))
    still = _standing(logs, n)
    sources = []
    for column in np.flatnonzero(swings | (steadiness < CHAOTIC) | (still >= STAGNANT_SAMPLES)):
        name = recent.names[column]
        if swings[column]:
            share = float(turns[column])
            text = f"the norm of {name} turns on {share:.0%} of its steps"
            sources.append(InstabilitySource(InstabilityType.OSCILLATION, (name,), share, text))
        elif steadiness[column] < CHAOTIC:
            size = float(spread[column])
            factor = math.exp(min(size, 700.0))
            text = f"the norm of {name} jumps by a factor of {factor:.1f} from step to step"
            sources.append(
                InstabilitySource(InstabilityType.CHAOS, (name,), 1 - math.exp(-size), text)
            )
        if still[column] >= STAGNANT_SAMPLES:
            share = float(still[column] / n[column])
            text = f"the norm of {name} has not changed over the last {still[column]} samples"
            sources.append(InstabilitySource(InstabilityType.STAGNATION, (name,), share, text))
    return sources


def _standing(logs: Array, n: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many samples at the end of each packed column are alike."""
    if not len(logs):
        return n
    last = np.take_along_axis(logs, np.maximum(n - 1, 0)[None], 0)
    apart = np.abs(logs - last) >= STAGNANT
    final = len(logs) - np.argmax(apart[::-1], axis=0)
    return np.where(apart.any(axis=0), n - final, n)
