"""Does it converge? Gradient, parameters and loss, each judged from its own data."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.levels import ConvergenceTrend
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

TARGET = 0.01
"""Converged: the whole gradient's norm is this share of what it was at the start."""
Z = 1.96


@dataclass(frozen=True)
class ConvergenceIndicators(Result):
    gradient_convergence_score: float | None
    parameter_convergence_score: float | None
    loss_convergence_score: float | None
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: tuple[int, int] | None
    """An interval of steps until the gradient has fallen to 1 % of its start."""


def convergence(
    run: Run, series: LayerSeries, indicators: list[float | None], window: int
) -> ConvergenceIndicators:
    known = [value for value in indicators if value is not None]
    total = np.full(len(series.steps), np.nan)
    np.log(series.total, out=total, where=series.total > 0)
    return ConvergenceIndicators(
        sum(known) / len(known) if known else missing("no layer has enough samples"),
        _score(_update_level(run)[-window:], "updates were not recorded often enough"),
        _score(loss_of(run)[-window:], "the loss was not logged often enough"),
        _trend(total[-window:]),
        _steps_left(series.steps, total, window),
    )


def loss_of(run: Run) -> NDArray[np.float64]:
    """The logged losses in time order, finite ones only."""
    return trends.finite(run.scalars["loss"]) if "loss" in run.scalars else np.empty(0)


def _update_level(run: Run) -> NDArray[np.float64]:
    """ln of the median update ratio over the parameters, where it was recorded."""
    if Stat.UPDATE_RATIO not in run.recorded:
        return np.empty(0)
    ratios = run.series[Stat.UPDATE_RATIO]
    ratios = ratios[np.isfinite(ratios).any(axis=1)]
    level = np.nanmedian(ratios, axis=1) if len(ratios) else np.empty(0)
    return np.log(level[level > 0])


def _score(values: NDArray[np.float64], reason: str) -> float:
    found = trends.trend(values)
    if found is None:
        return missing(reason)  # type: ignore[no-any-return]
    return -found.tau if found.falling else 0.0


def _trend(logs: NDArray[np.float64]) -> ConvergenceTrend:
    found = trends.trend(logs)
    if found is None:
        return ConvergenceTrend.UNKNOWN
    if found.falling:
        return ConvergenceTrend.CONVERGING
    if found.rising:
        return ConvergenceTrend.DIVERGING
    return ConvergenceTrend.OSCILLATING if trends.oscillates(logs) else ConvergenceTrend.STABLE


def _steps_left(
    steps: NDArray[np.int64], logs: NDArray[np.float64], window: int
) -> tuple[int, int] | None:
    """From ln x = a − t/τ over the window, where the decay is significant."""
    found = trends.trend(logs[-window:])
    fit = trends.line(steps[-window:], logs[-window:])
    if found is None or fit is None:
        return missing("too few steps with a whole gradient")  # type: ignore[no-any-return]
    slowest = -(fit.slope + Z * fit.slope_error)
    if not found.falling or slowest <= 0:
        return missing("the gradient does not fall significantly")  # type: ignore[no-any-return]
    now = fit.intercept + fit.slope * float(steps[-1])
    start = float(np.median(trends.finite(logs)[: max(len(logs) // 10, 1)]))
    left = max(now - (start + math.log(TARGET)), 0.0)
    fastest = -(fit.slope - Z * fit.slope_error)
    return math.ceil(left / fastest), math.ceil(left / slowest)
