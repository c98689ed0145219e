"""Adaptive thresholds, the real-time monitor and its results, one layer each."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.alerts import (
    Alert,
    ExplodingGradients,
    NoGradientFlow,
    VanishingGradients,
)
from gradwatch.analysis.original.levels import LayerHealth

RECENT, PREFILLED, WINDOW = 100, 50, 10


@dataclass
class AdaptiveThresholds:
    """Limits that follow the mean of what they watch."""

    layer_name: str
    vanishing_threshold: float
    exploding_threshold: float
    adaptation_rate: float = 0.1
    recent_gradients: deque[float] = field(default_factory=deque)

    @classmethod
    def from_history(cls, layer: str, norms: Sequence[float]) -> "AdaptiveThresholds":
        """From all norms; the last 50 go into the queue, newest first."""
        if not norms:
            return cls(layer, 1e-6, 10.0)
        low, high = _limits(norms)
        newest_first = list(norms)[::-1][:PREFILLED]
        return cls(layer, low, high, recent_gradients=deque(newest_first))

    def update(self, norm: float) -> None:
        """Learn from the value before anything is tested against it."""
        if len(self.recent_gradients) >= RECENT:
            self.recent_gradients.popleft()
        self.recent_gradients.append(norm)
        if len(self.recent_gradients) >= 10:
            low, high = _limits(self.recent_gradients)
            rate = self.adaptation_rate
            self.vanishing_threshold = self.vanishing_threshold * (1.0 - rate) + low * rate
            self.exploding_threshold = self.exploding_threshold * (1.0 - rate) + high * rate

    def check(self, norm: float) -> list[Alert]:
        """Both limits are tested, the lower first."""
        found: list[Alert] = []
        if norm < self.vanishing_threshold:
            found.append(VanishingGradients(self.layer_name, norm, self.vanishing_threshold))
        if norm > self.exploding_threshold:
            found.append(ExplodingGradients(self.layer_name, norm, self.exploding_threshold))
        return found


def _limits(norms: Sequence[float]) -> tuple[float, float]:
    centre = floats.mean(norms)
    spread = floats.root(floats.variance(norms, centre))
    return floats.greatest(centre - 2.0 * spread, 1e-8), centre + 3.0 * spread


@dataclass
class RealTimeMonitor:
    """The last ten norms of a layer."""

    layer_name: str
    current_gradient_norm: float = 0.0
    gradient_velocity: float = 0.0
    gradient_acceleration: float = 0.0
    stability_window: deque[float] = field(default_factory=deque)
    anomaly_score: float = 0.0

    def update(self, norm: float) -> None:
        """The first velocity is a jump from 0."""
        before = self.gradient_velocity
        self.gradient_velocity = norm - self.current_gradient_norm
        self.gradient_acceleration = self.gradient_velocity - before
        self.current_gradient_norm = norm
        if len(self.stability_window) >= WINDOW:
            self.stability_window.popleft()
        self.stability_window.append(norm)
        self.anomaly_score = self._score()

    def _score(self) -> float:
        """Distance from the mean of a window that contains the value itself."""
        window = self.stability_window
        if len(window) < 5:
            return 0.0
        centre = floats.mean(window)
        spread = floats.root(floats.variance(window, centre))
        if spread == 0.0:
            return 0.0
        return floats.least(floats.divide(abs(self.current_gradient_norm - centre), spread), 5) / 5

    @property
    def stability_score(self) -> float:
        """1 below three values; spread about the current value, in its own unit."""
        if len(self.stability_window) < 3:
            return 1.0
        return 1.0 / (1.0 + floats.variance(self.stability_window, self.current_gradient_norm))

    def is_stable(self, threshold: float) -> bool:
        return self.stability_score > threshold

    @property
    def is_oscillating(self) -> bool:
        """More than half of the window are turning points."""
        x = list(self.stability_window)
        if len(x) < 6:
            return False
        turns = sum((x[i] - x[i - 1]) * (x[i - 1] - x[i - 2]) < 0 for i in range(2, len(x)))
        return turns > len(x) // 2


@dataclass
class MonitoringResults:
    """Status of a layer from its alerts; not refreshed when only the score changes."""

    layer_name: str
    current_status: LayerHealth = LayerHealth.HEALTHY
    stability_score: float = 1.0
    anomaly_score: float = 0.0
    alerts: list[Alert] = field(default_factory=list)
    recommendations: list[str] = field(default_factory=list)

    def add_alert(self, alert: Alert) -> None:
        self.alerts.append(alert)
        if any(isinstance(a, ExplodingGradients | NoGradientFlow) for a in self.alerts):
            self.current_status = LayerHealth.CRITICAL
        elif self.alerts or self.anomaly_score > 0.7:
            self.current_status = LayerHealth.WARNING
