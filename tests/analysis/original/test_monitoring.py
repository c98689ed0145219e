"""Adaptive thresholds, the real-time monitor and its results against every golden case."""

from typing import Any

import pytest
from tests.golden.reading import Sentences, cases, differences, numbers

from gradwatch.analysis.original import alerts
from gradwatch.analysis.original.levels import LayerHealth
from gradwatch.analysis.original.monitoring import (
    AdaptiveThresholds,
    MonitoringResults,
    RealTimeMonitor,
)
from gradwatch.analysis.result import plain

CASES = cases("monitoring")
PAYLOADS = {
    "VanishingGradients": alerts.VanishingGradients("layer", 1e-9, 1e-7),
    "ExplodingGradients": alerts.ExplodingGradients("layer", 50.0, 10.0),
    "DeadNeurons": alerts.DeadNeurons("layer", 0.5, 0.1),
}


def _state(holder: Any) -> dict[str, Any]:
    return {
        name: plain(list(v) if hasattr(v, "popleft") else v) for name, v in vars(holder).items()
    }


def _adaptive(thresholds: AdaptiveThresholds, values: list[float]) -> dict[str, Any]:
    initial, steps = _state(thresholds), []
    for value in values:
        before = thresholds.check(value)
        thresholds.update(value)
        steps.append(
            {
                "vanishing_threshold": thresholds.vanishing_threshold,
                "exploding_threshold": thresholds.exploding_threshold,
                "alerts_before_update": [alert.to_dict() for alert in before],
                "alerts_after_update": [alert.to_dict() for alert in thresholds.check(value)],
            }
        )
    return {"initial": initial, "steps": steps, "final": _state(thresholds)}


def _realtime(values: list[float], threshold: float) -> dict[str, Any]:
    monitor, steps = RealTimeMonitor("layer"), []
    fields = "current_gradient_norm gradient_velocity gradient_acceleration anomaly_score"
    for value in values:
        monitor.update(value)
        steps.append(
            {
                **{name: getattr(monitor, name) for name in fields.split()},
                "stability_score": monitor.stability_score,
                "is_stable": monitor.is_stable(threshold),
                "is_oscillating": monitor.is_oscillating,
            }
        )
    return {"steps": steps, "final": _state(monitor)}


def monitored(case):
    given = numbers(case["input"])
    if case["name"].startswith("results_"):
        results = MonitoringResults("layer", anomaly_score=given["anomaly_score"])
        for kind in given["alerts"]:
            results.add_alert(PAYLOADS[kind])
        results.recommendations.append("note")
        return _state(results)
    values = given["values"]
    new = AdaptiveThresholds("layer", given["initial_vanishing"], given["initial_exploding"])
    return {
        "adaptive_new": _adaptive(new, values),
        "adaptive_from_history": _adaptive(
            AdaptiveThresholds.from_history("layer", given["history"]), values
        ),
        "realtime": _realtime(values, given["stable_threshold"]),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_monitoring_is_the_original_one(case) -> None:
    assert not list(differences(case["output"], monitored(case), Sentences()))


def test_every_alert_has_its_kind_as_the_only_key() -> None:
    silent = alerts.NoGradientFlow("a", 12)
    assert silent.to_dict() == {"NoGradientFlow": {"layer_name": "a", "steps_without_gradient": 12}}
    swinging = alerts.GradientOscillation("a", 0.5)
    assert swinging.to_dict() == {"GradientOscillation": {"layer_name": "a", "variance": 0.5}}
    results = MonitoringResults("a")
    assert results.current_status is LayerHealth.HEALTHY
    results.add_alert(silent)
    assert results.current_status is LayerHealth.CRITICAL
