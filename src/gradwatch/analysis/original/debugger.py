"""The original's debugger: norms in, alerts, status and a quick verdict out.

It holds the other systems together: histories, adaptive thresholds, monitors, anomalies.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.alerts import (
    Alert,
    DeadNeurons,
    GradientOscillation,
    NoGradientFlow,
)
from gradwatch.analysis.original.anomalies import AnomalyDetector
from gradwatch.analysis.original.history import History
from gradwatch.analysis.original.levels import LayerHealth
from gradwatch.analysis.original.monitoring import AdaptiveThresholds, RealTimeMonitor
from gradwatch.analysis.result import Result

VANISHING, EXPLODING, DEAD, SILENT = 1e-7, 10.0, 0.1, 10
KEPT_ALERTS, SHOWN_ALERTS, BASELINE_AT = 100, 10, 50
_SCORES = ((1e-4, 1.0, 1.0), (1e-6, 10.0, 0.7), (1e-8, 100.0, 0.3))


class Problem(StrEnum):
    VANISHING = "vanishing"
    EXPLODING = "exploding"


@dataclass(frozen=True)
class LayerStatus(Result):
    health: LayerHealth
    latest_gradient_norm: float
    gradient_trend: float
    alert_count: int
    steps_recorded: int


@dataclass(frozen=True)
class Status(Result):
    current_step: int
    overall_health: LayerHealth
    layer_statuses: dict[str, LayerStatus]
    recent_alerts: tuple[Alert, ...]
    total_alerts: int
    active_layers: int


@dataclass(frozen=True)
class LayerFlow(Result):
    gradient_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_consistency: float


@dataclass(frozen=True)
class QuickAnalysis(Result):
    overall_health: LayerHealth
    active_layers: int
    problematic_layers: dict[str, Problem]
    average_gradient_norm: float
    recent_alerts_count: int
    vanishing_risk: float
    exploding_risk: float


class Debugger:
    """Limits are the original's defaults; every anomaly becomes an oscillation alert, as there."""

    def __init__(self) -> None:
        self.step = 0
        self.histories: dict[str, History] = {}
        self.alerts: deque[Alert] = deque()
        self.anomalies = AnomalyDetector()
        self._thresholds: dict[str, AdaptiveThresholds] = {}
        self._monitors: dict[str, RealTimeMonitor] = {}
        self._silent: dict[str, int] = {}

    def record(self, layer: str, norm: float) -> None:
        """One norm of one layer at the current step."""
        history = self.histories.setdefault(layer, History(layer))
        history.add(norm, self.step)
        limits = self._thresholds.setdefault(layer, AdaptiveThresholds(layer, VANISHING, EXPLODING))
        limits.update(norm)
        monitor = self._monitors.setdefault(layer, RealTimeMonitor(layer))
        monitor.update(norm)
        self.alerts.extend(limits.check(norm))
        ratio = dead_neurons_ratio(norm)
        if ratio > DEAD:
            self.alerts.append(DeadNeurons(layer, ratio, DEAD))
        if monitor.is_oscillating:
            self.alerts.append(GradientOscillation(layer, monitor.stability_score))
        for anomaly in self.anomalies.detect(layer, norm, self.step):
            self.alerts.append(GradientOscillation(layer, anomaly.severity))
        if len(history.gradient_norms) == BASELINE_AT:
            self.anomalies.establish_baseline(layer, list(history.gradient_norms))

    def next_step(self) -> None:
        """Old alerts go only here; a silent layer is reported again every step."""
        self.step += 1
        while len(self.alerts) > KEPT_ALERTS:
            self.alerts.popleft()
        for layer, norm in self._latest().items():
            self._silent[layer] = self._silent.get(layer, 0) + 1 if norm < 1e-8 else 0
        for layer, steps in self._silent.items():
            if steps >= SILENT:
                self.alerts.append(NoGradientFlow(layer, steps))

    def start(self) -> None:
        """Step and alerts begin anew, thresholds come from the histories, which stay."""
        self.step = 0
        self.alerts.clear()
        self._thresholds = {
            layer: AdaptiveThresholds.from_history(layer, list(history.gradient_norms))
            for layer, history in self.histories.items()
        }

    def reset(self) -> None:
        """Forget everything."""
        vars(self).update(vars(Debugger()))

    def _latest(self) -> dict[str, float]:
        found = self.histories.items()
        return {layer: h.gradient_norms[-1] for layer, h in found if h.gradient_norms}

    def status(self) -> Status:
        """By retained alerts and the latest norm; NaN is Critical here and only here."""
        layers = {layer: self._layer(layer, norm) for layer, norm in self._latest().items()}
        return Status(
            current_step=self.step,
            overall_health=_overall([status.health for status in layers.values()]),
            layer_statuses=layers,
            recent_alerts=tuple(self.alerts)[::-1][:SHOWN_ALERTS],
            total_alerts=len(self.alerts),
            active_layers=len(self.histories),
        )

    def _layer(self, layer: str, norm: float) -> LayerStatus:
        count = sum(alert.layer_name == layer for alert in self.alerts)
        health = LayerHealth.HEALTHY
        if not 1e-5 <= norm <= 10.0 or count > 0:
            health = LayerHealth.WARNING
        if not 1e-7 <= norm <= 100.0 or count > 3:
            health = LayerHealth.CRITICAL
        history = self.histories[layer]
        trend = history.trend_slope
        return LayerStatus(
            health, norm, 0.0 if trend is None else trend, count, len(history.gradient_norms)
        )

    def flow(self) -> dict[str, LayerFlow]:
        """Vanishing and exploding by the last few norms."""
        return {layer: _flow(list(h.gradient_norms)) for layer, h in self.histories.items()}

    def quick(self) -> QuickAnalysis:
        """One pass over the latest norms."""
        latest = self._latest()
        problems = {layer: found for layer, norm in latest.items() if (found := _problem(norm))}
        scores = [_score(norm) for norm in latest.values()]
        mean = floats.mean(scores) if scores else 0.0
        health = LayerHealth.WARNING if mean > 0.5 else LayerHealth.CRITICAL
        count = max(len(latest), 1)
        return QuickAnalysis(
            overall_health=LayerHealth.HEALTHY if mean > 0.8 else health,
            active_layers=len(latest),
            problematic_layers=problems,
            average_gradient_norm=floats.mean(list(latest.values())) if latest else 0.0,
            recent_alerts_count=len(self.alerts),
            vanishing_risk=list(problems.values()).count(Problem.VANISHING) / count,
            exploding_risk=list(problems.values()).count(Problem.EXPLODING) / count,
        )


def dead_neurons_ratio(norm: float) -> float:
    """Guessed from the norm."""
    return 0.9 if norm < 1e-6 else 0.3 if norm < 1e-4 else 0.05


def _overall(layers: list[LayerHealth]) -> LayerHealth:
    warned = floats.divide(layers.count(LayerHealth.WARNING), len(layers))
    if LayerHealth.CRITICAL in layers or warned > 0.5:
        return LayerHealth.CRITICAL
    return LayerHealth.WARNING if LayerHealth.WARNING in layers else LayerHealth.HEALTHY


def _flow(x: list[float]) -> LayerFlow:
    latest = x[-1] if x else 0.0
    return LayerFlow(
        gradient_norm=latest,
        is_vanishing=latest < 1e-8 or (len(x) > 5 and all(value < 1e-6 for value in x[-5:])),
        is_exploding=latest > 100.0 or (len(x) > 3 and any(value > 50.0 for value in x[-3:])),
        flow_consistency=(1.0 if len(x) <= 1 else 1.0 / (1.0 + floats.variance(x, floats.mean(x)))),
    )


def _problem(norm: float) -> Problem | None:
    return Problem.VANISHING if norm < 1e-8 else Problem.EXPLODING if norm > 100.0 else None


def _score(norm: float) -> float:
    return next((score for low, high, score in _SCORES if low <= norm <= high), 0.0)
