"""Anomalies of a stream of norms against a baseline that is set once."""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import AnomalyTrend, AnomalyType, GeneralAnomaly, Level
from gradwatch.analysis.original.statistics import statistics
from gradwatch.analysis.result import Result

CAPACITY, LEAST_BASELINE, PATTERN, RECENT = 1000, 10, 10, 10

ADVICE = {
    AnomalyType.SUDDEN_SPIKE: (
        3,
        "Lower the learning rate: gradients keep jumping up.",
        "Clip gradients so that one step cannot throw the weights.",
    ),
    AnomalyType.SUDDEN_DROP: (
        3,
        "Look for vanishing gradients.",
        "Try residual paths or another initialisation.",
    ),
    AnomalyType.OSCILLATION: (
        2,
        "Lower the learning rate to calm the oscillation.",
        "Try momentum or an adaptive optimizer.",
    ),
    AnomalyType.STAGNATION: (
        2,
        "Learning may stand still: try a learning-rate schedule.",
        "Check the data and whether training has already converged.",
    ),
}
NORMAL = "Nothing unusual repeats in these gradients."

_GENERAL = {
    AnomalyType.SUDDEN_SPIKE: GeneralAnomaly.GRADIENT_EXPLOSION,
    AnomalyType.SUDDEN_DROP: GeneralAnomaly.GRADIENT_VANISHING,
    AnomalyType.STAGNATION: GeneralAnomaly.GRADIENT_VANISHING,
    AnomalyType.OSCILLATION: GeneralAnomaly.NUMERICAL_INSTABILITY,
}


@dataclass(frozen=True)
class Baseline(Result):
    mean: float
    std: float
    median: float
    percentile_95: float
    percentile_5: float
    samples: int


@dataclass(frozen=True)
class Context(Result):
    step: int
    gradient_norm: float
    expected_range: tuple[float, float]
    deviation_magnitude: float


@dataclass(frozen=True)
class Anomaly(Result):
    layer_name: str
    anomaly_type: AnomalyType
    severity: float
    context: Context


@dataclass(frozen=True)
class ReportedAnomaly(Result):
    """The general form, with its numbers as text."""

    anomaly_type: GeneralAnomaly
    location: str
    description: str
    severity: Level
    metadata: dict[str, str]


@dataclass(frozen=True)
class AnomalySummary(Result):
    layer_name: str | None
    total_anomalies: int
    anomaly_type_counts: dict[AnomalyType, int]
    average_severity: float
    recent_trend: AnomalyTrend
    recommendations: tuple[str, ...]
    anomalies: tuple[ReportedAnomaly, ...]


class AnomalyDetector:
    """`window` is accepted and, as in the original, never used."""

    def __init__(self, sensitivity: float = 0.8, window: int = 50, *, enabled: bool = True) -> None:
        self.sensitivity = sensitivity
        self.window = window
        self.enabled = enabled
        self.baselines: dict[str, Baseline] = {}
        self.history: deque[Anomaly] = deque(maxlen=CAPACITY)

    def establish_baseline(self, layer: str, norms: Sequence[float]) -> None:
        """Needs ten values; fewer are ignored."""
        if len(norms) < LEAST_BASELINE:
            return
        found = statistics(norms)
        self.baselines[layer] = Baseline(
            found.mean,
            found.std,
            found.median,
            found.percentile_95,
            found.percentile_5,
            found.samples,
        )

    def detect(self, layer: str, norm: float, step: int) -> list[Anomaly]:
        """The value against the baseline, then the pattern of past anomalies."""
        baseline = self.baselines.get(layer)
        if not self.enabled or baseline is None:
            return []
        tests = (
            self._statistical(baseline, layer, norm, step),
            self._pattern(layer, norm, step),
        )
        found = [anomaly for anomaly in tests if anomaly is not None]
        self.history.extend(found)
        return found

    def _statistical(
        self, baseline: Baseline, layer: str, norm: float, step: int
    ) -> Anomaly | None:
        z = floats.divide(norm - baseline.mean, baseline.std)
        limit = 2.0 + (1.0 - self.sensitivity) * 2.0
        if not abs(z) > limit:
            return None
        kind = AnomalyType.SUDDEN_SPIKE if z > 0 else AnomalyType.SUDDEN_DROP
        expected = (baseline.percentile_5, baseline.percentile_95)
        severity = floats.least(floats.divide(abs(z), limit), 1.0)
        return Anomaly(layer, kind, severity, Context(step, norm, expected, abs(z)))

    def _pattern(self, layer: str, norm: float, step: int) -> Anomaly | None:
        past = [anomaly for anomaly in reversed(self.history) if anomaly.layer_name == layer]
        past = past[:PATTERN]
        pairs = list(itertools.pairwise(past))
        swings = sum(_opposed(a.anomaly_type, b.anomaly_type) for a, b in pairs)
        if len(past) >= 3 and swings >= 2:
            return _patterned(layer, AnomalyType.OSCILLATION, 0.7, (step, norm, float(swings)))
        norms = [(a.context.gradient_norm, b.context.gradient_norm) for a, b in pairs]
        if len(past) >= 5 and all(abs(a - b) < 1e-6 for a, b in norms):
            return _patterned(layer, AnomalyType.STAGNATION, 0.8, (step, norm, 0.0))
        return None

    def summary(self, layer: str | None = None) -> AnomalySummary:
        """Of one layer or of all."""
        found = [a for a in self.history if layer is None or a.layer_name == layer]
        counts: dict[AnomalyType, int] = {}
        for anomaly in found:
            counts[anomaly.anomaly_type] = counts.get(anomaly.anomaly_type, 0) + 1
        return AnomalySummary(
            layer_name=layer,
            total_anomalies=len(found),
            anomaly_type_counts=counts,
            average_severity=_severity(found) if found else 0.0,
            recent_trend=_trend(found),
            recommendations=_advice(counts),
            anomalies=tuple(_reported(anomaly) for anomaly in found),
        )


def _opposed(a: AnomalyType, b: AnomalyType) -> bool:
    return {a, b} == {AnomalyType.SUDDEN_SPIKE, AnomalyType.SUDDEN_DROP}


def _patterned(
    layer: str, kind: AnomalyType, severity: float, seen: tuple[int, float, float]
) -> Anomaly:
    step, norm, deviation = seen
    return Anomaly(layer, kind, severity, Context(step, norm, (0.0, 1.0), deviation))


def _severity(found: Iterable[Anomaly]) -> float:
    return floats.mean([anomaly.severity for anomaly in found])


def _trend(found: list[Anomaly]) -> AnomalyTrend:
    before = found[-2 * RECENT : -RECENT]
    if len(found) < 5 or not before:
        return AnomalyTrend.STABLE
    change = _severity(found[-RECENT:]) - _severity(before)
    if change > 0.1:
        return AnomalyTrend.INCREASING
    return AnomalyTrend.DECREASING if change < -0.1 else AnomalyTrend.STABLE


def _advice(counts: dict[AnomalyType, int]) -> tuple[str, ...]:
    given: list[str] = []
    for kind, (more_than, *sentences) in ADVICE.items():
        if counts.get(kind, 0) > more_than:
            given += sentences
    return tuple(given) or (NORMAL,)


def _reported(anomaly: Anomaly) -> ReportedAnomaly:
    context, severity = anomaly.context, anomaly.severity
    low, high = context.expected_range
    return ReportedAnomaly(
        anomaly_type=_GENERAL[anomaly.anomaly_type],
        location=anomaly.layer_name,
        description=f"{anomaly.anomaly_type} of the gradient norm, severity {severity:.2f}.",
        severity=_level(severity),
        metadata={
            "step": str(context.step),
            "gradient_norm": floats.displayed(context.gradient_norm),
            "expected_range_min": floats.displayed(low),
            "expected_range_max": floats.displayed(high),
            "deviation_magnitude": floats.displayed(context.deviation_magnitude),
            "original_anomaly_type": str(anomaly.anomaly_type),
        },
    )


def _level(severity: float) -> Level:
    if severity >= 0.8:
        return Level.CRITICAL
    if severity >= 0.6:
        return Level.HIGH
    return Level.MEDIUM if severity >= 0.3 else Level.LOW
