"""Thresholds that do not chase the signal: fixed by the first clean samples, with a drift detector.

A limit that follows the mean lets a slow explosion pass without a word. Here the reference is
learnt once from the first `learn` samples and then kept; a value is tested before anything is
updated; and a two-sided CUSUM on standardised ln norm finds slow drifts that no single value shows.
Its slack is 1 and its limit 10, wider than the textbook's 0.5 and 5, because centre and spread are
themselves estimated from few samples.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gradwatch.analysis.layers import LayerSeries
from gradwatch.analysis.original import streams
from gradwatch.analysis.original.history import from_run
from gradwatch.analysis.result import Result
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run

SPREAD_FLOOR = 0.05
SLACK, DECISION = 1.0, 10.0


class AlertKind(StrEnum):
    VANISHING = "Vanishing"
    EXPLODING = "Exploding"
    DRIFTING_DOWN = "DriftingDown"
    DRIFTING_UP = "DriftingUp"
    NON_FINITE = "NonFinite"


@dataclass(frozen=True)
class ThresholdAlert(Result):
    """One episode: raised once, with its length, whether it still goes on."""

    layer_name: str
    kind: AlertKind
    first_step: int
    last_step: int
    samples: int
    norm: float | None
    """The value that raised it."""
    threshold: float | None
    continuing: bool


@dataclass(frozen=True)
class LayerThresholds(Result):
    layer_name: str
    vanishing_threshold: float | None
    exploding_threshold: float | None
    alerts: tuple[ThresholdAlert, ...]


class Limits:
    """The state of one layer; `test` answers for one value and never learns from a flagged one."""

    def __init__(self, *, learn: int, decades: float) -> None:
        self._learn, self._decades = learn, decades
        self._first: list[float] = []
        self._centre = self._spread = math.nan
        self._up = self._down = 0.0

    @property
    def vanishing(self) -> float | None:
        return None if math.isnan(self._centre) else math.exp(self._centre) * 10**-self._decades

    @property
    def exploding(self) -> float | None:
        return None if math.isnan(self._centre) else math.exp(self._centre) * 10**self._decades

    def test(self, norm: float) -> AlertKind | None:
        if not math.isfinite(norm):
            return AlertKind.NON_FINITE
        if math.isnan(self._centre):
            self._take(norm)
            return None
        low, high = self.vanishing, self.exploding
        assert low is not None
        assert high is not None
        if norm < low:
            return AlertKind.VANISHING
        if norm > high:
            return AlertKind.EXPLODING
        z = (math.log(norm) - self._centre) / self._spread
        z = max(min(z, 3.0), -3.0)  # one outlier is not a drift
        self._up = max(0.0, self._up + z - SLACK)
        self._down = max(0.0, self._down - z - SLACK)
        if self._up > DECISION:
            return AlertKind.DRIFTING_UP
        return AlertKind.DRIFTING_DOWN if self._down > DECISION else None

    def _take(self, norm: float) -> None:
        if norm > 0:
            self._first.append(math.log(norm))
        if len(self._first) == self._learn:
            ordered = sorted(self._first)
            self._centre = _middle(ordered)
            off = sorted(abs(value - self._centre) for value in ordered)
            self._spread = max(1.4826 * _middle(off), SPREAD_FLOOR)


def _middle(ordered: list[float]) -> float:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def watch_thresholds(
    run: Run,
    *,
    learn: int = 50,
    decades: float = 3.0,
    rules: Rules | str = Rules.GRADWATCH,
) -> Any:
    """Per layer the limits (so many decades around the first `learn` samples) and the alerts.

    `rules="original"` gives the alerts of the original's limits, which follow what they watch.
    """
    if Rules(rules) is Rules.ORIGINAL:
        return streams.watch_thresholds(from_run(run))
    if learn < 5 or decades <= 0:
        raise GradwatchError(
            f"Expected learn ≥ 5 and decades > 0, got {learn} and {decades}.", Exit.USAGE
        )
    series = LayerSeries.of(run)
    return {
        name: _watched(series, column, learn, decades) for column, name in enumerate(series.names)
    }


def _watched(series: LayerSeries, column: int, learn: int, decades: float) -> LayerThresholds:
    limits = Limits(learn=learn, decades=decades)
    name = series.names[column]
    alerts: list[ThresholdAlert] = []
    open_: dict[AlertKind, list[tuple[int, float]]] = {}
    for row, step in enumerate(series.steps.tolist()):
        bad = series.nonfinite[row, column] > 0
        norm = math.nan if bad else float(series.norms[row, column])
        if not bad and math.isnan(norm):
            continue
        kind = limits.test(norm)
        over = [k for k in open_ if k is not kind]
        alerts += [_closed(name, k, open_.pop(k), limits, continuing=False) for k in over]
        if kind is not None:
            open_.setdefault(kind, []).append((step, norm))
    alerts += [_closed(name, k, steps, limits, continuing=True) for k, steps in open_.items()]
    alerts.sort(key=lambda alert: alert.first_step)
    return LayerThresholds(name, limits.vanishing, limits.exploding, tuple(alerts))


def _closed(
    name: str,
    kind: AlertKind,
    steps: list[tuple[int, float]],
    limits: Limits,
    *,
    continuing: bool,
) -> ThresholdAlert:
    limit = {AlertKind.VANISHING: limits.vanishing, AlertKind.EXPLODING: limits.exploding}.get(kind)
    norm = None if math.isnan(steps[0][1]) else steps[0][1]
    return ThresholdAlert(
        name, kind, steps[0][0], steps[-1][0], len(steps), norm, limit, continuing
    )
