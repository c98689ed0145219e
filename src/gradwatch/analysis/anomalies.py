"""Samples that do not fit what came before them, and the steps at which the level changed.

Each ln norm is compared with the median and MAD of the clean samples before it; the tested value is
never part of its own reference, and what was flagged is not learnt. Ten flagged samples in a row
on one side are no anomaly but a new level: the step is told once and the reference starts anew.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import trends
from gradwatch.analysis.layers import LayerSeries
from gradwatch.analysis.original import streams
from gradwatch.analysis.original.history import from_run
from gradwatch.analysis.result import Result
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run

FEWEST = 10
SHIFT_AFTER = 10
SPREAD_FLOOR = 0.02
"""Smallest spread of ln norm that is believed: a series that happens to be constant is noisy."""
STAGNANT = 1e-9
SUSTAINED = 20


class AnomalyType(StrEnum):
    SUDDEN_SPIKE = "SuddenSpike"
    SUDDEN_DROP = "SuddenDrop"
    LEVEL_SHIFT = "LevelShift"
    OSCILLATION = "Oscillation"
    STAGNATION = "Stagnation"
    NON_FINITE = "NonFinite"


class AnomalyTrend(StrEnum):
    INCREASING = "Increasing"
    STABLE = "Stable"
    DECREASING = "Decreasing"


@dataclass(frozen=True)
class GradientAnomaly(Result):
    layer_name: str
    anomaly_type: AnomalyType
    step: int
    severity: float
    """1 − T/|z| where a limit T was passed; 1 for what is not finite, zero or does not move."""
    gradient_norm: float | None
    expected_range: tuple[float, float] | None
    deviation_magnitude: float
    """Robust z on ln norm; for oscillation and stagnation the number of samples."""


@dataclass(frozen=True)
class AnomalySummary(Result):
    total_anomalies: int
    anomaly_counts: dict[AnomalyType, int]
    average_severity: float | None
    recent_trend: AnomalyTrend
    """Events per step in the last quarter of the run against the rest (Poisson, 1 %)."""
    anomalies: tuple[GradientAnomaly, ...]


def detect_anomalies(
    run: Run,
    *,
    window: int = 50,
    limit: float = 6.0,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """Anomalies of every layer, by step; `limit` is the robust z beyond which a sample is one.

    `rules="original"` gives the original program's own answer, which knows neither option.
    """
    if Rules(rules) is Rules.ORIGINAL:
        return streams.detect_anomalies(from_run(run))
    if window < FEWEST or limit <= 0:
        raise GradwatchError(
            f"Expected window ≥ {FEWEST} and limit > 0, got {window} and {limit}.", Exit.USAGE
        )
    series = LayerSeries.of(run)
    found: list[tuple[int, int, GradientAnomaly]] = []
    for column in range(len(series.names)):
        listed = [*_points(series, column, window, limit), *_patterns(series, column, window)]
        found += [(anomaly.step, column, anomaly) for anomaly in listed]
    ordered = tuple(item[2] for item in sorted(found, key=lambda item: item[:2]))
    counts = {type_: sum(a.anomaly_type is type_ for a in ordered) for type_ in AnomalyType}
    severities = [anomaly.severity for anomaly in ordered]
    return AnomalySummary(
        len(ordered),
        counts,
        sum(severities) / len(severities) if severities else None,
        _trend(series.steps, [anomaly.step for anomaly in ordered]),
        ordered,
    )


@dataclass
class _Reference:
    """The clean samples before now."""

    window: int
    clean: list[float] = field(default_factory=list)

    def expected(self) -> tuple[float, float] | None:
        if len(self.clean) < FEWEST:
            return None
        ordered = sorted(self.clean[-self.window :])
        median = _middle(ordered)
        spread = 1.4826 * _middle(sorted(abs(value - median) for value in ordered))
        return median, max(spread, SPREAD_FLOOR)


def _middle(ordered: list[float]) -> float:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _points(series: LayerSeries, column: int, window: int, limit: float) -> list[GradientAnomaly]:
    name, reference = series.names[column], _Reference(window)
    found: list[GradientAnomaly] = []
    pending: list[tuple[GradientAnomaly, float]] = []
    logs, norms = series.logs[:, column].tolist(), series.norms[:, column].tolist()
    for row, step in enumerate(series.steps.tolist()):
        if series.nonfinite[row, column] > 0:
            found.append(
                GradientAnomaly(name, AnomalyType.NON_FINITE, step, 1.0, None, None, math.inf)
            )
            continue
        if math.isnan(norms[row]):
            continue
        log = logs[row] if norms[row] > 0 else -math.inf
        anomaly = _tested(name, step, norms[row], log, reference.expected(), limit)
        if anomaly is None or (pending and pending[0][0].anomaly_type != anomaly.anomaly_type):
            found += [item for item, _ in pending]
            pending = []
        if anomaly is None:
            reference.clean.append(log)
            continue
        pending.append((anomaly, log))
        if len(pending) == SHIFT_AFTER and norms[row] > 0:
            found.append(_shift(pending))
            reference.clean = [value for _, value in pending if value > -math.inf]
            pending = []
    return found + [item for item, _ in pending]


def _tested(
    name: str,
    step: int,
    norm: float,
    log: float,
    expected: tuple[float, float] | None,
    limit: float,
) -> GradientAnomaly | None:
    if expected is None:
        return None
    median, spread = expected
    z = (log - median) / spread
    if abs(z) <= limit:
        return None
    kind = AnomalyType.SUDDEN_SPIKE if z > 0 else AnomalyType.SUDDEN_DROP
    around = (math.exp(median - limit * spread), math.exp(median + limit * spread))
    return GradientAnomaly(name, kind, step, 1 - limit / abs(z), norm, around, abs(z))


def _shift(pending: list[tuple[GradientAnomaly, float]]) -> GradientAnomaly:
    first = pending[0][0]
    return GradientAnomaly(
        first.layer_name,
        AnomalyType.LEVEL_SHIFT,
        first.step,
        first.severity,
        first.gradient_norm,
        first.expected_range,
        first.deviation_magnitude,
    )


def _patterns(series: LayerSeries, column: int, window: int) -> list[GradientAnomaly]:
    """Episodes that single samples do not show: zig-zag and standstill, each told once."""
    kept = np.flatnonzero(np.isfinite(series.logs[:, column]))
    logs = series.logs[kept, column]
    found = []
    step = _first_standstill(logs)
    if step is not None:
        row = kept[step[0]]
        found.append(
            GradientAnomaly(
                series.names[column],
                AnomalyType.STAGNATION,
                int(series.steps[row]),
                1.0,
                float(series.norms[row, column]),
                None,
                float(step[1]),
            )
        )
    for begin in range(0, len(logs) - 2 * window + 1, window):
        # two windows in a row: noise passes the test now and then, hardly ever twice
        halves = (logs[begin + at : begin + at + window] for at in (0, window))
        if all(trends.oscillates(half) for half in halves):
            row = kept[begin]
            turns = trends.turning_points(logs[begin : begin + window])
            found.append(
                GradientAnomaly(
                    series.names[column],
                    AnomalyType.OSCILLATION,
                    int(series.steps[row]),
                    turns / (window - 2),
                    float(series.norms[row, column]),
                    None,
                    float(turns),
                )
            )
            break
    return found


def _first_standstill(logs: NDArray[np.float64]) -> tuple[int, int] | None:
    """Where `SUSTAINED` samples in a row differ by less than rounding, and how many they are."""
    still = np.concatenate([[False], np.abs(np.diff(logs)) < STAGNANT, [False]])
    edges = np.flatnonzero(np.diff(still.astype(np.int8)))
    for begin, end in edges.reshape(-1, 2):
        if end - begin + 1 >= SUSTAINED:
            return int(begin), int(end - begin + 1)
    return None


def _trend(steps: NDArray[np.int64], events: list[int]) -> AnomalyTrend:
    if len(steps) < 4 * FEWEST or not events:
        return AnomalyTrend.STABLE
    cut = int(steps[len(steps) - len(steps) // 4])
    late = sum(step >= cut for step in events)
    expected = len(events) / 4
    z = (late - expected) / math.sqrt(len(events) * 0.25 * 0.75)
    if abs(z) < 2.58:
        return AnomalyTrend.STABLE
    return AnomalyTrend.INCREASING if z > 0 else AnomalyTrend.DECREASING
