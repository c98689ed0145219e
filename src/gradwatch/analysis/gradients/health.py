"""Is one layer well? Worst-of rules on ratios: to its own past and to the other layers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.gradients.levels import CRITICAL_RISKS, LayerHealth, Risk
from gradwatch.analysis.gradients.statistics import TOO_FEW, FlowCharacteristics
from gradwatch.analysis.layers import LayerSeries
from gradwatch.result import Result, missing

FEWEST = 3
DEAD_FOR = 10
GROWTH = 1e3
FADED = 1e-4
ABOVE_OTHERS = 1e4
UNSTABLE = 0.5


@dataclass(frozen=True)
class LayerHealthMetrics(Result):
    overall_health: LayerHealth
    gradient_stability: float | None
    neuron_activity_ratio: float | None
    """Share of output units whose gradient was not zero in the window."""
    convergence_indicator: float | None
    """max(0, −τ_b) of ln norm over the window where the trend is significant, else 0."""
    risk_factors: tuple[Risk, ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a layer is compared with: typical RMS of every layer in the window."""

    typical: NDArray[np.float64]

    @property
    def largest(self) -> float:
        known = trends.finite(self.typical)
        return float(known.max()) if len(known) else float("nan")

    @property
    def middle(self) -> float:
        known = self.typical[self.typical > 0]
        return float(np.median(known)) if len(known) else float("nan")


def surroundings(recent: LayerSeries) -> Surroundings:
    """Median RMS of each layer over its finite recent samples."""
    return Surroundings(column_medians(recent.rms))


def column_medians(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Median of the finite values of each column; NaN where there is none. Sorts once."""
    ordered = np.sort(table, axis=0)  # NaN goes to the end
    n = np.isfinite(table).sum(axis=0)
    columns = np.arange(table.shape[1])
    if not len(table):
        return np.full(table.shape[1], np.nan)
    low, high = np.maximum(n - 1, 0) // 2, np.maximum(n, 1) // 2
    middle = (ordered[low, columns] + ordered[np.minimum(high, len(table) - 1), columns]) / 2
    return np.where(n > 0, middle, np.nan)


def risks(series: LayerSeries, column: int, around: Surroundings, window: int) -> list[Risk]:
    """Every reason that holds, gravest first; nothing here has a unit."""
    norms = trends.finite(series.norms[:, column])
    found = []
    if series.nonfinite[:, column].any():
        found.append(Risk.NON_FINITE)
    if len(norms) < FEWEST:
        return found
    if len(norms) >= DEAD_FOR and not norms[-DEAD_FOR:].any():
        return [*found, Risk.DEAD]
    typical = around.typical[column]
    if _grew(norms) or typical > ABOVE_OTHERS * around.middle:
        found.append(Risk.EXPLODING)
    if typical < FADED * around.largest:
        found.append(Risk.VANISHING)
    logs = series.logs[-window:, column]
    fit = trends.line(series.steps[-window:], logs)
    if fit and 1 / (1 + fit.spread) < UNSTABLE:
        found.append(Risk.UNSTABLE)
    if trends.oscillates(logs):
        found.append(Risk.OSCILLATING)
    return found


def judge(
    flow: FlowCharacteristics,
    found: list[Risk],
    samples: int,
    trend: trends.Trend | None,
    activity: float | None,
) -> LayerHealthMetrics:
    return LayerHealthMetrics(
        level(found, samples),
        missing(TOO_FEW) if flow.stability_measure is None else flow.stability_measure,
        missing("rows of the gradient were not recorded") if activity is None else activity,
        indicator(trend),
        tuple(found),
    )


def level(found: list[Risk], samples: int) -> LayerHealth:
    if any(risk in CRITICAL_RISKS for risk in found):
        return LayerHealth.CRITICAL
    if found:
        return LayerHealth.WARNING
    return LayerHealth.HEALTHY if samples >= FEWEST else LayerHealth.UNKNOWN


def indicator(found: trends.Trend | None) -> float:
    if found is None:
        return missing(TOO_FEW)  # type: ignore[no-any-return]
    return -found.tau if found.falling else 0.0


def _grew(norms: NDArray[np.float64]) -> bool:
    """The last tenth against the first: three decades more, and still rising to the end."""
    tenth = max(len(norms) // 10, 1)
    early, late = float(np.median(norms[:tenth])), float(np.median(norms[-tenth:]))
    return early > 0 and late >= GROWTH * early
