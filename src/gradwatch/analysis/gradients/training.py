"""The network over time: does it converge, where does the training stand?

Gradient, parameters and loss are each described from their own data, up to the step on which the
run stopped being finite; what was not recorded is missing.
"""

import math
from bisect import bisect
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.checks.context import context
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import median, medians

Array = NDArray[np.float64]

TARGET = 0.01
"""Converged: the whole gradient's norm is this share of what it was at the start."""
NO_LOSS = "the loss was not logged (watcher.log(loss=loss))"
PATIENCE = 20
"""Steps, and logged values, without an improvement before one speaks of a plateau."""
GRADES = (3, 10)
"""So many times `PATIENCE` a plateau is moderate, and severe."""
IMPROVEMENT = 1e-4
STRETCHES = 12
"""Stretches of the last quarter of the losses whose scatter says what counts as level."""
BEYOND_SCATTER = 3.5
EARLY, LATE = 0.5, 0.1
BEGUN = 0.05
ROWS = 1 << 14


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


class ConvergenceIndicators(Result):
    """Gradient, parameters and loss: does each of them settle?"""

    gradient_convergence_score: float | None
    parameter_convergence_score: float | None
    loss_convergence_score: float | None
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: tuple[int, int] | None
    """A 95 % interval of the steps until the gradient has fallen to 1 % of its start."""


class PlateauDetection(Result):
    """Whether the loss stands still, and since when."""

    is_plateau: bool | None
    plateau_start: int | None
    plateau_duration: int | None
    plateau_severity: PlateauSeverity | None
    suggested_actions: tuple[str, ...]


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


# -- convergence -----------------------------------------------------------------------------------


def convergence(
    run: Run, series: LayerSeries, indicators: list[float | None], window: int
) -> ConvergenceIndicators:
    """`indicators`: each layer's own; `window` recorded steps count as "now"."""
    known = [value for value in indicators if value is not None]
    logs = _log_total(series.norms)
    updates = _update_ratios(run, window)
    loss = Loss.of(run)
    return ConvergenceIndicators(
        sum(known) / len(known) if known else missing("no layer has enough samples"),
        _fall(np.log(updates[updates > 0]), "updates were not recorded often enough"),
        _fall(loss.values[-window:], loss.too_few),
        _convergence_trend(logs[-window:]),
        steps_left(series.steps, logs, window),
    )


def _log_total(norms: Array) -> Array:
    """ln norm of the whole gradient; NaN on steps that lack a layer which has samples elsewhere."""
    logs = np.full(len(norms), np.nan)
    some = np.isfinite(norms).any(axis=0)
    for begin in range(0, len(norms) if some.any() else 0, ROWS):  # bounded memory on long runs
        part = norms[begin : begin + ROWS, some]
        # Over the largest: squares of norms beyond 1e±154 leave the range.
        largest = np.where((part > 0).any(axis=1), part.max(axis=1), np.nan)
        squares = ((part / largest[:, None]) ** 2).sum(axis=1)
        logs[begin : begin + ROWS] = np.log(largest) + np.log(squares) / 2
    return logs


def _fall(values: Array, reason: str) -> float:
    trend = trends.trend(values)
    return missing(reason) if trend is None else float(trend.fall)


def _convergence_trend(logs: Array) -> ConvergenceTrend:
    trend = trends.trend(logs)
    if trend is None:
        return ConvergenceTrend.UNKNOWN
    if trend.falling:
        return ConvergenceTrend.CONVERGING
    if trend.rising:
        return ConvergenceTrend.DIVERGING
    return ConvergenceTrend.OSCILLATING if trends.oscillates(logs) else ConvergenceTrend.STABLE


def steps_left(steps: NDArray[np.int64], logs: Array, window: int) -> tuple[int, int] | None:
    """When the line through the last `window` of `logs` meets the start + ln 1 %, 95 % interval.

    Line and start are both weighted sums of the samples, so the variance of their distance is known
    for every step to come (Fieller); serial correlation of the residuals widens it.
    """
    kept = np.isfinite(logs)
    t, y = steps[kept].astype(float), logs[kept]
    recent = slice(max(len(y) - window, 0), None)
    trend = trends.trend(y[recent])
    if trend is None:
        return missing("too few steps with a whole gradient")  # type: ignore[no-any-return]
    start, now, slope = np.zeros((3, len(y)))
    now[recent], slope[recent] = trends.line_weights(t[recent], t[-1])
    early = slice(0, min(window, max(10, len(y) // 10)))
    start[early] = trends.line_weights(t[early], t[0])[0]
    rest = y[recent] - now @ y - (slope @ y) * (t[recent] - t[-1])
    variance, freedom = _serial_variance(rest)
    allowed = variance * trends.student_95(freedom) ** 2
    gap, fall = (now - start) @ y - math.log(TARGET), slope @ y
    a = fall**2 - allowed * (slope @ slope)
    b = gap * fall - allowed * ((now - start) @ slope)
    c = gap**2 - allowed * ((now - start) @ (now - start))
    root = max(float(b * b - a * c), 0.0)  # negative only by rounding: the line itself lies inside
    if not trend.falling or fall >= 0 or a <= 0:
        return missing("the gradient does not fall significantly")  # type: ignore[no-any-return]
    low, high = (float((-b + sign * math.sqrt(root)) / a) for sign in (-1, 1))
    # Rounded outwards only where nothing else widens the interval: 95 % are to remain 95 %.
    whole = (math.floor(low), math.ceil(high)) if high - low < 1 else (round(low), round(high))
    return max(whole[0], 0), max(whole[1], 0)


def _serial_variance(rest: Array) -> tuple[float, float]:
    """Variance of residuals of a line as slow sums see it, and its degrees of freedom.

    White noise has its variance at every pace. With memory the slow waves have more: as much as the
    sample before foretells (AR(1)), or as 1/f noise has by the power of the waves 2 to 7, whichever
    is more.
    """
    n = len(rest)
    variance = float(rest @ rest) / (n - 2)
    r = float(trends.autocorrelations(rest[:, None])[0])
    r = min(max(r + (1 + 4 * r) / n, 0.0), 0.95)  # estimated from residuals, it comes out too low
    inflation = (1 + r) / (1 - r)
    freedom = max(n / inflation - 2, 2.0)
    if n >= 2 * trends.FEWEST and variance > 0:
        waves = np.arange(2, 8)
        angles = np.pi * (np.arange(n) + 0.5) / n
        slow = float(((np.cos(waves[:, None] * angles) @ rest) ** 2).mean()) * 2 / n / variance
        steepness = np.clip(math.log(max(slow, 1.0)) / math.log(n / 2 / waves.mean()), 0, 1)
        # A line is slower still, like a wave of 0.8: the noise is extrapolated to there.
        inflation = max(inflation, slow * float((waves.mean() / 0.8) ** steepness))
    return variance * inflation, freedom


def _update_ratios(run: Run, window: int) -> Array:
    """Median update ratio over the parameters on each of the last steps that have any."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_RATIO)[-window:]
    return trends.finite(medians(ctx.values(Stat.UPDATE_RATIO, rows).T))


# -- dynamics --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """The finite losses of the finite part of a run; `lost` says since when there are none."""

    steps: NDArray[np.int64]
    values: Array
    lost: str

    @classmethod
    def of(cls, run: Run) -> "Loss":
        """The loss as logged; the run's last tenth without a finite value counts as lost."""
        ctx = context(run)
        logged = run.scalars.get("loss", np.empty(0))[: ctx.end]
        rows = np.flatnonzero(np.isfinite(logged))
        steps, lost = run.steps[rows], ""
        if ctx.went_bad:
            lost = f"the run is not finite from step {run.steps[ctx.end]} on"
        elif len(rows) > 1:
            usual = 5 * float(np.median(np.diff(rows[-trends.MOST :])))
            if len(logged) - rows[-1] > max(usual, len(logged) / 10):
                lost = f"the loss has no finite value after step {steps[-1]}"
        return cls(steps, logged[rows], lost)

    @property
    def too_few(self) -> str:
        """Why nothing can be said of the loss."""
        n = len(self.values)
        return f"the loss was logged {n} times; {trends.FEWEST} are needed" if n else NO_LOSS


def dynamics(run: Run, window: int) -> TrainingDynamics:
    """Phase and plateau come from the loss, momentum from the gradients."""
    loss = Loss.of(run)
    fit = trends.line(loss.steps[-window:], loss.values[-window:])
    plateau = plateau_of(loss)
    phase = phase_of(loss, plateau, overfits(run, loss))
    if loss.lost:
        before = f"; until then {phase}" if isinstance(phase, LearningPhase) else ""
        phase = missing(loss.lost + before)
    return TrainingDynamics(
        phase,
        _momentum(run, window),
        missing(loss.too_few) if fit is None else -float(fit.slope),
        _adaptation(run, window),
        plateau,
    )


def plateau_of(loss: Loss) -> PlateauDetection:
    """Since when the loss stays where it is now, within the scatter of its last quarter.

    Nothing that rises, falls or oscillates is a plateau, nor what was logged too seldom to tell.
    """
    n = len(loss.values)
    if n < trends.FEWEST or loss.lost:
        gone = missing(loss.lost or loss.too_few)
        return PlateauDetection(gone, gone, gone, gone, ())
    first = _level_since(loss.values)
    length = int(loss.steps[-1] - loss.steps[first])
    if min(length, n - first) < PATIENCE or _moves(loss.values, first):
        return PlateauDetection(False, None, None, None, ())
    severity = list(PlateauSeverity)[bisect(GRADES, length // PATIENCE)]
    actions = (
        "If the loss is good enough, stop here.",
        "Otherwise try another learning rate: both a smaller and a larger one.",
    )
    return PlateauDetection(True, int(loss.steps[first]), length, severity, actions)


def _level_since(losses: Array) -> int:
    """The first value after which the averaged loss never again lies off its last level."""
    last = losses[-max(PATIENCE, len(losses) // 4) :]
    width = max(len(last) // STRETCHES, 1)
    begins = np.arange(len(losses) % width, len(losses), width)  # the last stretch is a whole one
    levels = np.add.reduceat(losses, begins) / width
    ending = levels[-(len(last) // width) :]
    fit = trends.line(np.arange(len(ending)), ending)
    scatter = fit.spread if fit else 0.0
    extent = float(losses.max() - losses.min())
    off = np.abs(levels - last.mean()) > max(BEYOND_SCATTER * scatter, IMPROVEMENT * extent)
    away = np.flatnonzero(off)
    return int(begins[min(away[-1] + 1, len(begins) - 1)]) if len(away) else 0


def _moves(losses: Array, first: int) -> bool:
    """Whether a loss rises, falls or swings from `first` on, or may still move as it did before."""
    if _drifts(losses[first:]) or _swings(losses[first:]):
        return True
    if not _drifts(losses):
        return False
    before = losses[max(2 * first - len(losses), 0) : first]
    past, now = (trends.line(np.arange(len(x)), x) for x in (before, losses[first:]))
    # Noise hides a drift in few values: what cannot be told from half the old speed may go on.
    return bool(past and now and abs(now.slope) + 2 * now.slope_error > abs(past.slope) / 2)


def _drifts(losses: Array) -> bool:
    trend = trends.trend(losses)
    return bool(trend and (trend.rising or trend.falling))


def _swings(losses: Array) -> bool:
    return trends.oscillates(losses) or trends.periodic(losses)


def phase_of(loss: Loss, plateau: PlateauDetection, overfitting: bool) -> LearningPhase | None:
    """From the share of the whole fall that is behind us, and how fast it falls now."""
    losses = loss.values
    if len(losses) < trends.FEWEST:
        return missing(loss.too_few)  # type: ignore[no-any-return]
    if overfitting:
        return LearningPhase.OVERFITTING
    if plateau.is_plateau:
        return LearningPhase.PLATEAU
    parts = np.array_split(np.arange(len(losses)), trends.FEWEST)
    levels = np.array([np.median(losses[part]) for part in parts])
    centres = np.array([loss.steps[part].mean() for part in parts])
    # Over a quarter of the run, which is two of the eight parts.
    speeds = (levels[:-2] - levels[2:]) / (centres[2:] - centres[:-2])
    now, steepest = float(speeds[-1]), float(speeds.max())
    lowest = int(parts[int(np.argmin(levels))][0])
    rise = trends.trend(losses[lowest:])
    if rise and rise.rising:
        since = loss.steps[lowest]
        return missing(f"the loss rises since step {since}: no phase of learning")  # type: ignore[no-any-return]
    if _swings(losses) and not _drifts(losses):
        return missing("the loss oscillates and does not fall")  # type: ignore[no-any-return]
    if levels[0] - levels[-1] < BEGUN * abs(levels[0]):
        return LearningPhase.INITIAL_LEARNING
    if now > EARLY * steepest:
        return LearningPhase.RAPID_LEARNING
    return LearningPhase.CONVERGENCE if now <= LATE * steepest else LearningPhase.REFINEMENT


def overfits(run: Run, loss: Loss) -> bool:
    """The validation loss rises significantly since its minimum while the training loss falls."""
    validation = trends.finite(run.scalars.get("val_loss", np.empty(0))[: context(run).end])
    if not len(validation):
        return False
    rise = trends.trend(validation[int(np.argmin(validation)) :])
    fall = trends.trend(loss.values[-1000:])
    return bool(rise and rise.rising and fall and fall.falling)


def _momentum(run: Run, window: int) -> float | None:
    if Stat.GRAD_COSINE not in run.recorded:
        return missing("no cosines between gradients were recorded")  # type: ignore[no-any-return]
    ctx = context(run)
    rows = ctx.rows(Stat.GRAD_COSINE)[-window:]
    cosines = trends.finite(ctx.values(Stat.GRAD_COSINE, rows))
    reason = "fewer than two gradients were recorded"
    return float(cosines.mean()) if len(cosines) else missing(reason)


def _adaptation(run: Run, window: int) -> float | None:
    ratios = _update_ratios(run, window)
    half = len(ratios) // 2
    early = median(ratios[:half])
    if len(ratios) < 4 or not early > 0:
        return missing("the update ratio was not recorded often enough")  # type: ignore[no-any-return]
    return median(ratios[half:]) / early - 1
