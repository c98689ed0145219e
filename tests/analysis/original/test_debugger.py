"""The debugger that holds the original's systems together, by facts known about the program."""

import math

import numpy as np
import pytest

from gradwatch.analysis.original.alerts import (
    DeadNeurons,
    ExplodingGradients,
    GradientOscillation,
    NoGradientFlow,
    VanishingGradients,
)
from gradwatch.analysis.original.debugger import Debugger, Problem, dead_neurons_ratio
from gradwatch.analysis.original.levels import LayerHealth


def fed(norms, layer: str = "a") -> Debugger:
    debugger = Debugger()
    for norm in norms:
        debugger.record(layer, float(norm))
        debugger.next_step()
    return debugger


def counted(norms, kind: type) -> int:
    """Alerts of a kind over a whole stream, before old ones are dropped."""
    debugger, count = Debugger(), 0
    for norm in norms:
        before = len(debugger.alerts)
        debugger.record("a", float(norm))
        count += sum(isinstance(alert, kind) for alert in list(debugger.alerts)[before:])
        debugger.next_step()
    return count


def test_a_constant_norm_of_50_alerts_on_every_step() -> None:
    assert counted([50.0] * 300, ExplodingGradients) == 300


def test_a_slow_explosion_raises_no_alert() -> None:
    assert counted(10.0 ** (np.arange(4001) / 400), ExplodingGradients) == 0


def test_gaussian_norms_raise_false_alarms() -> None:
    norms = np.random.default_rng(0).normal(1.0, 0.1, 5000)
    assert 90 <= counted(norms, VanishingGradients) + counted(norms, ExplodingGradients) <= 190


def test_a_healthy_noisy_layer_is_soon_critical() -> None:
    steps = []
    for seed in range(15):
        norms = np.random.default_rng(seed).normal(1.0, 0.1, 60)
        debugger = Debugger()
        for step, norm in enumerate(norms):
            debugger.record("a", float(norm))
            debugger.next_step()
            if debugger.status().layer_statuses["a"].health is LayerHealth.CRITICAL:
                steps.append(step + 1)
                break
    assert 8 <= np.median(steps) <= 25


def test_alerts_come_in_the_original_s_order() -> None:
    debugger = fed([1.0, 2.0] * 30)
    debugger.alerts.clear()
    debugger.record("a", 1e-9)
    kinds = [type(alert) for alert in debugger.alerts]
    assert kinds == [VanishingGradients, DeadNeurons, GradientOscillation, GradientOscillation]


def test_a_silent_layer_is_reported_every_step_from_the_tenth() -> None:
    debugger = fed([0.0] * 12)
    silent = [alert for alert in debugger.alerts if isinstance(alert, NoGradientFlow)]
    assert [alert.steps_without_gradient for alert in silent] == [10, 11, 12]


@pytest.mark.parametrize(
    ("norm", "health"),
    [
        (1.0, LayerHealth.HEALTHY),
        (20.0, LayerHealth.WARNING),
        (1000.0, LayerHealth.CRITICAL),
        (math.nan, LayerHealth.CRITICAL),
    ],
)
def test_status_judges_the_latest_norm(norm: float, health: LayerHealth) -> None:
    debugger = Debugger()
    debugger.record("a", norm)
    assert debugger.status().layer_statuses["a"].health is health


def test_status_counts_and_shows_the_newest_alerts_first() -> None:
    debugger = fed([50.0] * 200)
    status = debugger.status()
    assert (status.current_step, status.active_layers) == (200, 1)
    assert len(status.recent_alerts) == 10
    assert status.total_alerts == 100
    assert status.layer_statuses["a"].steps_recorded == 200
    assert status.overall_health is LayerHealth.CRITICAL
    assert Debugger().status().overall_health is LayerHealth.HEALTHY


def test_overall_needs_more_than_half_warned_to_be_critical() -> None:
    debugger = Debugger()
    for layer, norm in {"a": 1.0, "b": 1.0, "c": 5e-5}.items():
        debugger.record(layer, norm)
    assert debugger.status().overall_health is LayerHealth.WARNING
    debugger.record("b", 20.0)
    assert debugger.status().overall_health is LayerHealth.CRITICAL


def test_flow_and_quick_verdict() -> None:
    debugger = Debugger()
    for layer, norm in {"a": 0.5, "b": 1e-9, "c": 500.0}.items():
        debugger.record(layer, norm)
    flow = debugger.flow()
    assert (flow["b"].is_vanishing, flow["c"].is_exploding) == (True, True)
    assert flow["a"].flow_consistency == 1.0
    quick = debugger.quick()
    assert quick.problematic_layers == {"b": Problem.VANISHING, "c": Problem.EXPLODING}
    assert quick.vanishing_risk == quick.exploding_risk == 1 / 3
    assert quick.overall_health is LayerHealth.CRITICAL
    assert fed([0.5]).quick().overall_health is LayerHealth.HEALTHY
    assert fed([5.0]).quick().overall_health is LayerHealth.WARNING


def test_start_keeps_histories_and_reset_does_not() -> None:
    debugger = fed([1.0] * 20)
    debugger.start()
    assert (debugger.step, len(debugger.alerts)) == (0, 0)
    assert debugger.status().layer_statuses["a"].steps_recorded == 20
    debugger.reset()
    assert debugger.histories == {}


@pytest.mark.parametrize(("norm", "ratio"), [(1e-7, 0.9), (1e-5, 0.3), (1.0, 0.05)])
def test_dead_neurons_are_guessed(norm: float, ratio: float) -> None:
    assert dead_neurons_ratio(norm) == ratio
