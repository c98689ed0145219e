"""Where the training stands: phase and plateau from the loss, momentum from the gradients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.convergence import loss_of
from gradwatch.analysis.gradients.levels import LearningPhase, PlateauSeverity
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

NO_LOSS = "the loss was not logged (watcher.log(loss=loss))"
PATIENCE = 20
"""Steps without an improvement before one speaks of a plateau; 3 × and 10 × grade it."""
IMPROVEMENT = 1e-4
EARLY, LATE = 0.5, 0.9


@dataclass(frozen=True)
class PlateauDetection(Result):
    is_plateau: bool | None
    plateau_start: int | None
    plateau_duration: int | None
    plateau_severity: PlateauSeverity | None
    suggested_actions: tuple[str, ...]


@dataclass(frozen=True)
class TrainingDynamics(Result):
    learning_phase: LearningPhase | None
    gradient_momentum: float | None
    """Mean cosine between successive gradients, over layers and the window."""
    learning_velocity: float | None
    """Fall of the loss per step over the window (least squares)."""
    adaptation_rate: float | None
    """Relative change of the update ratio from the first to the second half of the window."""
    plateau_detection: PlateauDetection


def dynamics(run: Run, series: LayerSeries, window: int) -> TrainingDynamics:
    return TrainingDynamics(
        phase(run),
        _momentum(run, window),
        _velocity(run, window),
        _adaptation(run, window),
        plateau(run),
    )


def plateau(run: Run) -> PlateauDetection:
    """Since when the smoothed loss has not improved by more than a ten-thousandth of its range."""
    steps, loss = _logged(run)
    if len(loss) < trends.FEWEST:
        gone = missing(NO_LOSS)
        return PlateauDetection(gone, gone, gone, gone, ())
    level = _smoothed(loss)
    best = np.minimum.accumulate(level)
    needed = IMPROVEMENT * max(float(level[0] - best[-1]), 1e-12)
    last = int(np.flatnonzero(best <= best[-1] + needed)[0])
    length = int(steps[-1] - steps[last])
    found = trends.trend(loss[last:])
    if length < PATIENCE or (found and found.falling):
        return PlateauDetection(False, None, None, None, ())
    severity = (
        PlateauSeverity.SEVERE
        if length >= 10 * PATIENCE
        else PlateauSeverity.MODERATE
        if length >= 3 * PATIENCE
        else PlateauSeverity.MILD
    )
    actions = (
        "If the loss is good enough, stop here.",
        "Otherwise try another learning rate: both a smaller and a larger one.",
    )
    return PlateauDetection(True, int(steps[last]), length, severity, actions)


def phase(run: Run) -> LearningPhase | None:
    """From the share of the whole fall that is behind us, and how fast it falls now."""
    _, loss = _logged(run)
    if len(loss) < 2 * trends.FEWEST:
        return missing(NO_LOSS)  # type: ignore[no-any-return]
    if _overfits(run):
        return LearningPhase.OVERFITTING
    level = _smoothed(loss)
    if plateau(run).is_plateau:
        return LearningPhase.PLATEAU
    quarter = max(len(level) // 4, 1)
    falls = np.array(
        [level[i] - level[min(i + quarter, len(level) - 1)] for i in range(len(level))]
    )
    steepest, now = float(falls.max()), float(level[-quarter - 1] - level[-1])
    if steepest <= 0 or level[0] - level[-1] < 0.05 * abs(level[0]):
        return LearningPhase.INITIAL_LEARNING
    speed = now / steepest
    if speed > EARLY:
        return LearningPhase.RAPID_LEARNING
    return LearningPhase.REFINEMENT if speed > 1 - LATE else LearningPhase.CONVERGENCE


def _overfits(run: Run) -> bool:
    """The validation loss rises significantly since its minimum while the training loss falls."""
    if "val_loss" not in run.scalars:
        return False
    validation = trends.finite(run.scalars["val_loss"])
    since = validation[int(np.argmin(validation)) :] if len(validation) else validation
    rise = trends.trend(since)
    fall = trends.trend(loss_of(run)[-1000:])
    return bool(rise and rise.rising and fall and fall.falling)


def _momentum(run: Run, window: int) -> float | None:
    if Stat.GRAD_COSINE not in run.recorded:
        return missing("no sketch of the gradient was recorded")  # type: ignore[no-any-return]
    cosines = trends.finite(run.series[Stat.GRAD_COSINE][-window:].ravel())
    if not len(cosines):
        return missing("fewer than two gradients were recorded")  # type: ignore[no-any-return]
    return float(cosines.mean())


def _velocity(run: Run, window: int) -> float | None:
    steps, loss = _logged(run)
    fit = trends.line(steps[-window:], loss[-window:])
    return missing(NO_LOSS) if fit is None else -fit.slope


def _adaptation(run: Run, window: int) -> float | None:
    reason = "the update ratio was not recorded often enough"
    if Stat.UPDATE_RATIO not in run.recorded:
        return missing(reason)  # type: ignore[no-any-return]
    table = run.series[Stat.UPDATE_RATIO][-window:]
    table = table[np.isfinite(table).any(axis=1)]
    if len(table) < 4:
        return missing(reason)  # type: ignore[no-any-return]
    level = np.nanmedian(table, axis=1)
    early, late = np.median(level[: len(level) // 2]), np.median(level[len(level) // 2 :])
    return float(late / early - 1) if early > 0 else missing(reason)


def _logged(run: Run) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if "loss" not in run.scalars:
        return np.empty(0, np.int64), np.empty(0)
    loss = run.scalars["loss"]
    kept = np.isfinite(loss)
    return run.steps[kept], loss[kept]


def _smoothed(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the last few values: a twentieth of the run, at least one, at most fifty."""
    width = min(max(len(loss) // 20, 1), 50)
    sums = np.cumsum(np.concatenate([np.zeros(1), loss]))
    at = np.arange(1, len(loss) + 1)
    begin = np.maximum(at - width, 0)
    smoothed: NDArray[np.float64] = (sums[at] - sums[begin]) / (at - begin)
    return smoothed
