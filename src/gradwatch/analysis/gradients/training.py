"""The network over time: does it converge, where does the training stand, how steady is it?

Gradient, parameters and loss are each judged from their own data; what was not recorded is missing.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.layer import LayerHealthMetrics, Risk
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, medians

TARGET = 0.01
"""Converged: the whole gradient's norm is this share of what it was at the start."""
Z = 1.96
NO_LOSS = "the loss was not logged (watcher.log(loss=loss))"
PATIENCE = 20
"""Steps without an improvement before one speaks of a plateau; 3 × and 10 × grade it."""
IMPROVEMENT = 1e-4
EARLY, LATE = 0.5, 0.9
PIECES = 12
"""The run is cut into at most this many stretches; a trend needs `trends.FEWEST` of them."""
STAGNANT = 1e-9


class ConvergenceTrend(StrEnum):
    """Where the norm of the whole gradient is heading."""

    CONVERGING = "Converging"
    STABLE = "Stable"
    DIVERGING = "Diverging"
    OSCILLATING = "Oscillating"
    UNKNOWN = "Unknown"


class LearningPhase(StrEnum):
    """How far the training has come, by its loss."""

    INITIAL_LEARNING = "InitialLearning"
    RAPID_LEARNING = "RapidLearning"
    REFINEMENT = "Refinement"
    CONVERGENCE = "Convergence"
    PLATEAU = "Plateau"
    OVERFITTING = "Overfitting"


class PlateauSeverity(StrEnum):
    """How long a plateau lasts."""

    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"


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


@dataclass(frozen=True)
class ConvergenceIndicators(Result):
    """Gradient, parameters and loss: does each of them settle?"""

    gradient_convergence_score: float | None
    parameter_convergence_score: float | None
    loss_convergence_score: float | None
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: tuple[int, int] | None
    """An interval of steps until the gradient has fallen to 1 % of its start."""


@dataclass(frozen=True)
class PlateauDetection(Result):
    """Whether the loss stands still, and since when."""

    is_plateau: bool | None
    plateau_start: int | None
    plateau_duration: int | None
    plateau_severity: PlateauSeverity | None
    suggested_actions: tuple[str, ...]


@dataclass(frozen=True)
class TrainingDynamics(Result):
    """Where the training stands."""

    learning_phase: LearningPhase | None
    gradient_momentum: float | None
    """Mean cosine between successive gradients, over layers and the window."""
    learning_velocity: float | None
    """Fall of the loss per step over the window (least squares)."""
    adaptation_rate: float | None
    """Relative change of the update ratio from the first to the second half of the window."""
    plateau_detection: PlateauDetection


@dataclass(frozen=True)
class InstabilitySource(Result):
    """A layer that disturbs the training, and how much."""

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
    """How steady the gradients are, whether that changes, what disturbs them."""

    overall_stability: float | None
    stability_trend: StabilityTrend | None
    stability_forecast: StabilityForecast | None
    instability_sources: tuple[InstabilitySource, ...]


# -- convergence -----------------------------------------------------------------------------------


def convergence(
    run: Run, series: LayerSeries, indicators: list[float | None], window: int
) -> ConvergenceIndicators:
    """`indicators`: each layer's own; `window` recorded steps count as "now"."""
    judged = [value for value in indicators if value is not None]
    logs = np.full(len(series.steps), np.nan)
    np.log(series.total, out=logs, where=series.total > 0)
    trend = trends.trend(logs[-window:])
    updates = _update_ratios(run)
    _, losses = _logged_loss(run)
    return ConvergenceIndicators(
        sum(judged) / len(judged) if judged else missing("no layer has enough samples"),
        _fall(np.log(updates[updates > 0])[-window:], "updates were not recorded often enough"),
        _fall(losses[-window:], "the loss was not logged often enough"),
        _convergence_trend(logs[-window:], trend),
        _steps_left(series.steps, logs, trend, window),
    )


def _fall(values: NDArray[np.float64], reason: str) -> float:
    trend = trends.trend(values)
    return missing(reason) if trend is None else trend.fall


def _convergence_trend(logs: NDArray[np.float64], trend: trends.Trend | None) -> ConvergenceTrend:
    if trend is None:
        return ConvergenceTrend.UNKNOWN
    if trend.falling:
        return ConvergenceTrend.CONVERGING
    if trend.rising:
        return ConvergenceTrend.DIVERGING
    return ConvergenceTrend.OSCILLATING if trends.oscillates(logs) else ConvergenceTrend.STABLE


def _steps_left(
    steps: NDArray[np.int64], logs: NDArray[np.float64], trend: trends.Trend | None, window: int
) -> tuple[int, int] | None:
    """From ln x = a − t/τ over the window, where the decay is significant."""
    fit = trends.line(steps[-window:], logs[-window:])
    if trend is None or fit is None:
        return missing("too few steps with a whole gradient")  # type: ignore[no-any-return]
    slowest = -(fit.slope + Z * fit.slope_error)
    if not trend.falling or slowest <= 0:
        return missing("the gradient does not fall significantly")  # type: ignore[no-any-return]
    now = fit.intercept + fit.slope * float(steps[-1])
    start = median(trends.finite(logs)[: max(len(logs) // 10, 1)])
    left = max(now - (start + math.log(TARGET)), 0.0)
    fastest = -(fit.slope - Z * fit.slope_error)
    return math.ceil(left / fastest), math.ceil(left / slowest)


def _logged_loss(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and losses, finite ones only."""
    if "loss" not in run.scalars:
        return np.empty(0, np.int64), np.empty(0)
    losses = run.scalars["loss"]
    finite = np.isfinite(losses)
    return run.steps[finite], losses[finite]


def _update_ratios(run: Run, last: int = 0) -> NDArray[np.float64]:
    """Median update ratio over the parameters on each step (of the last ones) that has any."""
    if Stat.UPDATE_RATIO not in run.recorded:
        return np.empty(0)
    return trends.finite(medians(run.series[Stat.UPDATE_RATIO][-last:].T))


# -- dynamics --------------------------------------------------------------------------------------


def dynamics(run: Run, window: int) -> TrainingDynamics:
    """Phase and plateau come from the loss, momentum from the gradients."""
    steps, losses = _logged_loss(run)
    fit = trends.line(steps[-window:], losses[-window:])
    plateau = _plateau(steps, losses)
    return TrainingDynamics(
        _phase(run, losses, plateau),
        _momentum(run, window),
        missing(NO_LOSS) if fit is None else -fit.slope,
        _adaptation(run, window),
        plateau,
    )


def _plateau(steps: NDArray[np.int64], losses: NDArray[np.float64]) -> PlateauDetection:
    """Since when the smoothed loss has not improved by more than a ten-thousandth of its range."""
    if len(losses) < trends.FEWEST:
        gone = missing(NO_LOSS)
        return PlateauDetection(gone, gone, gone, gone, ())
    level = _smoothed(losses)
    best = np.minimum.accumulate(level)
    needed = IMPROVEMENT * max(float(level[0] - best[-1]), 1e-12)
    last = int(np.flatnonzero(best <= best[-1] + needed)[0])
    length = int(steps[-1] - steps[last])
    trend = trends.trend(losses[last:])
    if length < PATIENCE or (trend and trend.falling):
        return PlateauDetection(False, None, None, None, ())
    severity = PlateauSeverity.MILD
    if length >= 3 * PATIENCE:
        severity = PlateauSeverity.MODERATE
    if length >= 10 * PATIENCE:
        severity = PlateauSeverity.SEVERE
    actions = (
        "If the loss is good enough, stop here.",
        "Otherwise try another learning rate: both a smaller and a larger one.",
    )
    return PlateauDetection(True, int(steps[last]), length, severity, actions)


def _phase(
    run: Run, losses: NDArray[np.float64], plateau: PlateauDetection
) -> LearningPhase | None:
    """From the share of the whole fall that is behind us, and how fast it falls now."""
    if len(losses) < 2 * trends.FEWEST:
        return missing(NO_LOSS)  # type: ignore[no-any-return]
    if _overfits(run, losses):
        return LearningPhase.OVERFITTING
    if plateau.is_plateau:
        return LearningPhase.PLATEAU
    level = _smoothed(losses)
    quarter = max(len(level) // 4, 1)
    later = np.minimum(np.arange(len(level)) + quarter, len(level) - 1)
    steepest, now = float((level - level[later]).max()), float(level[-quarter - 1] - level[-1])
    if steepest <= 0 or level[0] - level[-1] < 0.05 * abs(level[0]):
        return LearningPhase.INITIAL_LEARNING
    speed = now / steepest
    if speed > EARLY:
        return LearningPhase.RAPID_LEARNING
    return LearningPhase.REFINEMENT if speed > 1 - LATE else LearningPhase.CONVERGENCE


def _overfits(run: Run, losses: NDArray[np.float64]) -> bool:
    """The validation loss rises significantly since its minimum while the training loss falls."""
    if "val_loss" not in run.scalars:
        return False
    validation = trends.finite(run.scalars["val_loss"])
    if not len(validation):
        return False
    rise = trends.trend(validation[int(np.argmin(validation)) :])
    fall = trends.trend(losses[-1000:])
    return bool(rise and rise.rising and fall and fall.falling)


def _momentum(run: Run, window: int) -> float | None:
    if Stat.GRAD_COSINE not in run.recorded:
        return missing("no sketch of the gradient was recorded")  # type: ignore[no-any-return]
    cosines = trends.finite(run.series[Stat.GRAD_COSINE][-window:].ravel())
    if not len(cosines):
        return missing("fewer than two gradients were recorded")  # type: ignore[no-any-return]
    return float(cosines.mean())


def _adaptation(run: Run, window: int) -> float | None:
    ratios = _update_ratios(run, window)
    half = len(ratios) // 2
    early = median(ratios[:half])
    if len(ratios) < 4 or not early > 0:
        return missing("the update ratio was not recorded often enough")  # type: ignore[no-any-return]
    return median(ratios[half:]) / early - 1


def _smoothed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the last few values: a twentieth of the run, at least one, at most fifty."""
    width = min(max(len(losses) // 20, 1), 50)
    sums = np.cumsum(np.concatenate([np.zeros(1), losses]))
    at = np.arange(1, len(losses) + 1)
    begin = np.maximum(at - width, 0)
    smoothed: NDArray[np.float64] = (sums[at] - sums[begin]) / (at - begin)
    return smoothed


# -- stability -------------------------------------------------------------------------------------


def stability(
    series: LayerSeries, recent: LayerSeries, health: list[LayerHealthMetrics], threshold: float
) -> StabilityAssessment:
    """How steady the gradients are, whether that changes, and what disturbs them."""
    measures = [i.gradient_stability for i in health if i.gradient_stability is not None]
    overall = sum(measures) / len(measures) if measures else None
    pieces = _stretches(series)
    return StabilityAssessment(
        missing("no layer has enough samples") if overall is None else overall,
        _stability_trend(pieces, overall, threshold),
        _forecast(pieces),
        tuple(_sources(series, recent, health)),
    )


def _stretches(series: LayerSeries) -> NDArray[np.float64]:
    """Mean stability over layers in each stretch of the run: 1/(1 + spread of Δ ln norm/√2)."""
    changes = series.changes
    size = max(len(changes) // PIECES, 5)
    stretches = []
    for begin in range(0, len(changes) - size + 1, size):
        piece = changes[begin : begin + size]
        rows = np.isfinite(piece).sum(axis=0)
        squares = np.nansum(piece**2, axis=0)[rows >= 3] / rows[rows >= 3]
        if len(squares):
            stretches.append(float((1 / (1 + np.sqrt(squares / 2))).mean()))
    return np.array(stretches)


def _stability_trend(
    pieces: NDArray[np.float64], overall: float | None, threshold: float
) -> StabilityTrend | None:
    """Below the threshold a fall at the usual 5 % counts, above it only a clear one."""
    trend = trends.trend(pieces)
    if trend is None or overall is None:
        return missing("the run is too short for a trend")  # type: ignore[no-any-return]
    limit = trends.SIGNIFICANT if overall > threshold else 0.05
    if trend.p >= limit:
        return StabilityTrend.STABLE
    return StabilityTrend.IMPROVING if trend.tau > 0 else StabilityTrend.DEGRADING


def _forecast(pieces: NDArray[np.float64]) -> StabilityForecast | None:
    """Predict each of the last stretches from those before it; a forecast that failed is null."""
    if len(pieces) < trends.FEWEST:
        return missing("the run is too short for a forecast")  # type: ignore[no-any-return]
    hits = 0
    for held_back in range(len(pieces) - 3, len(pieces)):
        _, low, high = _extrapolated(pieces[:held_back], 1)
        hits += low <= pieces[held_back] <= high
    if hits < 2:
        return missing("held-back steps did not bear the forecast out")  # type: ignore[no-any-return]
    short, far = (_outlook(pieces, ahead) for ahead in (1, len(pieces)))
    return StabilityForecast(short, far, hits / 3)


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


def _outlook(pieces: NDArray[np.float64], ahead: int) -> StabilityOutlook:
    now = median(pieces[-3:])
    value, low, high = _extrapolated(pieces, ahead)
    if low > now:
        return StabilityOutlook.IMPROVING
    if high < now:
        return StabilityOutlook.DETERIORATING
    steady = high - low < 0.5 and abs(value - now) < 0.25
    return StabilityOutlook.STABLE if steady else StabilityOutlook.UNCERTAIN


def _sources(
    series: LayerSeries, recent: LayerSeries, health: list[LayerHealthMetrics]
) -> list[InstabilitySource]:
    """In forward order; what is measured in decades is mapped to 0 … 1 the same way for all."""
    sources = []
    for column, name in enumerate(series.names):
        logs = trends.finite(series.logs[:, column])
        typical = float(recent.typical[column])
        sources += [
            InstabilitySource(type_, (name,), severity, text)
            for type_, severity, text in (
                _source(name, risk, logs, typical, recent.middle)
                for risk in health[column].risk_factors
            )
        ]
        if len(logs) >= 10 and float(np.ptp(logs[-10:])) < STAGNANT:
            text = f"the norm of {name} has not changed over the last 10 samples"
            sources.append(InstabilitySource(InstabilityType.STAGNATION, (name,), 1.0, text))
    return sources


def _source(
    name: str, risk: Risk, logs: NDArray[np.float64], typical: float, middle: float
) -> tuple[InstabilityType, float, str]:
    """Type, severity and description of what a risk does to the stability."""
    against = f"{typical:.1e} against a usual {middle:.1e}"
    if risk in (Risk.EXPLODING, Risk.NON_FINITE):
        severity = 1.0 if risk is Risk.NON_FINITE else _graded(typical / middle)
        text = f"the gradient of {name} explodes: {against}"
        return InstabilityType.GRADIENT_EXPLOSION, severity, text
    if risk in (Risk.VANISHING, Risk.DEAD):
        severity = 1.0 if typical == 0 or risk is Risk.DEAD else _graded(middle / typical)
        text = f"the gradient of {name} vanishes: {against}"
        return InstabilityType.GRADIENT_VANISHING, severity, text
    if risk is Risk.OSCILLATING:
        turns = trends.turning_points(logs) / max(len(logs) - 2, 1)
        text = f"the norm of {name} turns on {turns:.0%} of its steps"
        return InstabilityType.OSCILLATION, turns, text
    spread = float(np.std(np.diff(logs))) if len(logs) > 1 else 0.0
    text = f"the norm of {name} jumps by a factor of {math.exp(spread):.1f} from step to step"
    return InstabilityType.CHAOS, 1 - math.exp(-spread), text


def _graded(ratio: float) -> float:
    return 1 - min(1 / ratio, 1.0) if ratio > 0 else 1.0
