"""Whole histories through the original's streaming parts, as its debugger feeds them."""

from gradwatch.analysis.original.alerts import Alert
from gradwatch.analysis.original.anomalies import AnomalyDetector, AnomalySummary
from gradwatch.analysis.original.history import Histories
from gradwatch.analysis.original.monitoring import AdaptiveThresholds

BASELINE_AT = 50
FIRST_LIMITS = (1e-7, 10.0)


def detect_anomalies(histories: Histories) -> AnomalySummary:
    """Layer by layer; the baseline is set once, at the fiftieth sample."""
    detector = AnomalyDetector()
    for name, history in histories.items():
        norms = list(history.gradient_norms)
        for count, (norm, step) in enumerate(zip(norms, history.step_numbers, strict=True), 1):
            detector.detect(name, norm, step)
            if count == BASELINE_AT:
                detector.establish_baseline(name, norms[:count])
    return detector.summary()


def watch_thresholds(histories: Histories) -> dict[str, tuple[Alert, ...]]:
    """Every alert of every sample: the limits learn from a value, then test it."""
    found = {}
    for name, history in histories.items():
        limits = AdaptiveThresholds(name, *FIRST_LIMITS)
        alerts: list[Alert] = []
        for norm in history.gradient_norms:
            limits.update(norm)
            alerts += limits.check(norm)
        found[name] = tuple(alerts)
    return found
