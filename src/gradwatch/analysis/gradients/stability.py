"""How steady the gradients are, whether that changes, and what disturbs them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.levels import (
    InstabilityType,
    Risk,
    StabilityOutlook,
    StabilityTrend,
)
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing

PIECES = 12
"""The run is cut into at most this many stretches; a trend needs `trends.FEWEST` of them."""
STAGNANT = 1e-9


@dataclass(frozen=True)
class InstabilitySource(Result):
    source_type: InstabilityType
    affected_layers: tuple[str, ...]
    severity: float
    """0 … 1, alike for every type: 1 − 10^(−decades beyond the limit), or the share of steps."""
    description: str


@dataclass(frozen=True)
class StabilityForecast(Result):
    """Extrapolated from all stretches but the last, and kept only if the last one bore it out."""

    short_term_outlook: StabilityOutlook
    long_term_outlook: StabilityOutlook
    confidence_level: float | None
    """Share of held-back stretches that fell into their interval."""


@dataclass(frozen=True)
class StabilityAssessment(Result):
    overall_stability: float | None
    stability_trend: StabilityTrend | None
    stability_forecast: StabilityForecast | None
    instability_sources: tuple[InstabilitySource, ...]


def stability(
    series: LayerSeries,
    measures: list[float | None],
    risks: list[list[Risk]],
    around: NDArray[np.float64],
    threshold: float,
) -> StabilityAssessment:
    known = [value for value in measures if value is not None]
    overall = sum(known) / len(known) if known else None
    pieces = windowed(series)
    return StabilityAssessment(
        missing("no layer has enough samples") if overall is None else overall,
        _trend(pieces, overall, threshold),
        forecast(pieces),
        tuple(sources(series, risks, around)),
    )


def windowed(series: LayerSeries) -> NDArray[np.float64]:
    """Mean stability over layers in each stretch of the run: 1/(1 + spread of Δ ln norm/√2)."""
    changes = series.changes
    size = max(len(changes) // PIECES, 5)
    found = []
    for begin in range(0, len(changes) - size + 1, size):
        piece = changes[begin : begin + size]
        rows = np.isfinite(piece).sum(axis=0)
        squares = np.nansum(piece**2, axis=0)[rows >= 3] / rows[rows >= 3]
        if len(squares):
            found.append(float((1 / (1 + np.sqrt(squares / 2))).mean()))
    return np.array(found)


def _trend(
    pieces: NDArray[np.float64], overall: float | None, threshold: float
) -> StabilityTrend | None:
    """Below the threshold a fall at the usual 5 % counts, above it only a clear one."""
    found = trends.trend(pieces)
    if found is None or overall is None:
        return missing("the run is too short for a trend")  # type: ignore[no-any-return]
    limit = trends.SIGNIFICANT if overall > threshold else 0.05
    if found.p >= limit:
        return StabilityTrend.STABLE
    return StabilityTrend.IMPROVING if found.tau > 0 else StabilityTrend.DEGRADING


def forecast(pieces: NDArray[np.float64]) -> StabilityForecast | None:
    """Predict each of the last stretches from those before it; a forecast that failed is null."""
    if len(pieces) < trends.FEWEST:
        return missing("the run is too short for a forecast")  # type: ignore[no-any-return]
    held = range(len(pieces) - 3, len(pieces))
    hits = [_inside(pieces[:k], pieces[k]) for k in held]
    if sum(hits) < 2:
        return missing("held-back steps did not bear the forecast out")  # type: ignore[no-any-return]
    short, far = (_outlook(pieces, ahead) for ahead in (1, len(pieces)))
    return StabilityForecast(short, far, sum(hits) / len(hits))


def _extrapolated(pieces: NDArray[np.float64], ahead: int) -> tuple[float, float, float]:
    """Value and interval `ahead` stretches on."""
    at = np.arange(len(pieces))
    fit = trends.line(at, pieces)
    assert fit is not None
    n = len(pieces)
    t = n - 1 + ahead
    spread = max(fit.spread * math.sqrt(n / (n - 2)), 1e-6)
    width = 3 * spread * math.sqrt(1 + 1 / n + (t - at.mean()) ** 2 / ((at - at.mean()) ** 2).sum())
    value = fit.intercept + fit.slope * t
    return value, value - width, value + width


def _inside(before: NDArray[np.float64], value: float) -> bool:
    _, low, high = _extrapolated(before, 1)
    return low <= value <= high


def _outlook(pieces: NDArray[np.float64], ahead: int) -> StabilityOutlook:
    now = float(np.median(pieces[-3:]))
    value, low, high = _extrapolated(pieces, ahead)
    if low > now:
        return StabilityOutlook.IMPROVING
    if high < now:
        return StabilityOutlook.DETERIORATING
    narrow = high - low < 0.5
    return (
        StabilityOutlook.STABLE
        if narrow and abs(value - now) < 0.25
        else StabilityOutlook.UNCERTAIN
    )


def sources(
    series: LayerSeries, risks: list[list[Risk]], around: NDArray[np.float64]
) -> list[InstabilitySource]:
    """In forward order; what is measured in decades is mapped to 0 … 1 the same way for all."""
    positive = around[around > 0]
    middle = float(np.median(positive)) if len(positive) else float("nan")
    found = []
    for column, name in enumerate(series.names):
        for risk in risks[column]:
            source = _source(series, column, name, risk, float(around[column]), middle)
            if source:
                found.append(source)
        logs = trends.finite(series.logs[:, column])
        if len(logs) >= 10 and float(np.ptp(logs[-10:])) < STAGNANT:
            text = f"the norm of {name} has not changed over the last 10 samples"
            found.append(InstabilitySource(InstabilityType.STAGNATION, (name,), 1.0, text))
    return found


def _source(
    series: LayerSeries, column: int, name: str, risk: Risk, typical: float, middle: float
) -> InstabilitySource | None:
    if risk in (Risk.EXPLODING, Risk.NON_FINITE):
        severity = 1.0 if risk is Risk.NON_FINITE else _graded(typical / middle)
        text = f"the gradient of {name} explodes: {typical:.1e} against a usual {middle:.1e}"
        return InstabilitySource(InstabilityType.GRADIENT_EXPLOSION, (name,), severity, text)
    if risk in (Risk.VANISHING, Risk.DEAD):
        severity = 1.0 if typical == 0 or risk is Risk.DEAD else _graded(middle / typical)
        text = f"the gradient of {name} vanishes: {typical:.1e} against a usual {middle:.1e}"
        return InstabilitySource(InstabilityType.GRADIENT_VANISHING, (name,), severity, text)
    logs = trends.finite(series.logs[:, column])
    turns = trends.turning_points(logs) / max(len(logs) - 2, 1)
    if risk is Risk.OSCILLATING:
        text = f"the norm of {name} turns on {turns:.0%} of its steps"
        return InstabilitySource(InstabilityType.OSCILLATION, (name,), turns, text)
    spread = float(np.std(np.diff(logs))) if len(logs) > 1 else 0.0
    text = f"the norm of {name} jumps by a factor of {math.exp(spread):.1f} from step to step"
    return InstabilitySource(InstabilityType.CHAOS, (name,), 1 - math.exp(-spread), text)


def _graded(ratio: float) -> float:
    return 1 - min(1 / ratio, 1.0) if ratio > 0 else 1.0
