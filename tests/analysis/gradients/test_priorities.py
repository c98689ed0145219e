"""What to look at first: the urgent before the rest, what the diagnosis names before others."""

import math

import numpy as np
import pytest
from tests.analysis.gradients import made
from tests.making import make_run

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.layer import LayerHealth
from gradwatch.analysis.gradients.priorities import OptimizationTarget, Urgency, score, urgency
from gradwatch.diagnosis import diagnose
from gradwatch.run import Run


def test_a_critical_layer_is_never_behind_a_lesser_one() -> None:
    rng = np.random.default_rng(0)
    run = Run.from_norms(
        {
            "dead": np.zeros(100),
            "faint": 1e-6 * rng.lognormal(0, 1, 100),
            "ok": rng.lognormal(0, 0.3, 100),
            "ok2": rng.lognormal(0, 0.3, 100),
        }
    )
    first, second = analyze_gradients(run).optimization_priorities[:2]
    assert (first.target_name, first.urgency_level) == ("dead", Urgency.CRITICAL)
    assert (second.target_name, second.urgency_level) == ("faint", Urgency.MEDIUM)


def random_run(seed: int) -> Run:
    rng = np.random.default_rng(seed)
    steps, layers = int(rng.integers(12, 80)), int(rng.integers(2, 9))
    norms = {}
    for i in range(layers):
        series = rng.lognormal(0, rng.uniform(0.05, 1.5), steps) * 10.0 ** rng.integers(-8, 6)
        trouble = rng.integers(0, 8)
        if trouble == 0:
            series[rng.integers(0, steps) :] = 0
        elif trouble == 1:
            series *= 10 ** np.linspace(0, rng.uniform(-9, 9), steps)
        elif trouble == 2 and rng.random() < 0.5:
            series[rng.integers(1, steps) :] = math.nan
        norms[f"b.{i // 2}.layer{i}"] = series
    loss = rng.choice([0.0, 1.0]) * np.linspace(2, rng.uniform(0, 3), steps)
    return Run.from_norms(norms, scalars={"loss": loss} if rng.random() < 0.6 else None)


@pytest.mark.parametrize("seed", range(60))
def test_the_first_priority_is_what_the_diagnosis_names_first(seed: int) -> None:
    run = random_run(seed)
    analysis = analyze_gradients(run)
    ranked = analysis.optimization_priorities
    order = list(Urgency)
    levels = [order.index(item.urgency_level) for item in ranked]
    assert levels == sorted(levels, reverse=True)
    assert all(0 <= item.priority_score <= 1 for item in ranked)
    findings = diagnose(run).findings
    if findings and findings[0].layers:
        assert ranked[0].target_name == findings[0].layers[0]
    elif findings and findings[0].severity > 1:
        assert ranked[0].target_type is OptimizationTarget.NETWORK_LEVEL


def test_a_layer_without_parameters_is_named_too() -> None:
    """NaN that begins in an activation: there is no gradient of it, and yet it comes first."""
    steps = 20
    bad = np.zeros((steps, 2))
    bad[15:, 0] = 1
    outputs = np.zeros((steps, 1))
    outputs[15:, :] = 1
    run = make_run(
        {
            "grad_norm": np.where(bad > 0, np.nan, 1.0),
            "grad_nan": bad,
            "probe_nonfinite": outputs,
        },
        names=["fc1.weight", "fc2.weight"],
        layers=["act"],
    )
    first = diagnose(run).findings[0].layers[0]
    assert first == "act"
    analysis = analyze_gradients(run)
    assert analysis.optimization_priorities[0].target_name == "act"
    assert "act" not in analysis.layer_details


def targets(run: Run) -> dict[str, OptimizationTarget]:
    found = analyze_gradients(run).optimization_priorities
    return {item.target_name: item.target_type for item in found}


def test_a_block_most_of_whose_layers_share_a_trouble_is_a_target() -> None:
    sick = analyze_gradients(made.blocks(sick=2)).optimization_priorities
    group = next(item for item in sick if item.target_type is OptimizationTarget.LAYER_GROUP)
    assert group.target_name == "blocks.1"
    assert group.reasons == ("Vanishing",)
    assert group.layers == ("blocks.1.in", "blocks.1.mid", "blocks.1.out")
    assert group.recommended_actions[0].expected_impact < 1
    assert OptimizationTarget.LAYER_GROUP not in targets(made.blocks(sick=1)).values()


def test_what_most_layers_share_is_the_networks() -> None:
    assert targets(made.deep(sick=5))["network"] is OptimizationTarget.NETWORK_LEVEL
    assert "network" not in targets(made.deep(sick=3))


def test_a_finding_without_layers_is_the_networks() -> None:
    first = analyze_gradients(made.overfitting()).optimization_priorities[0]
    assert first.target_type is OptimizationTarget.NETWORK_LEVEL
    assert first.layers == ()
    assert "network" not in targets(made.overfitting(rises=False))


def test_what_is_not_known_of_a_sick_layer_counts_as_the_worst() -> None:
    known = score(LayerHealth.CRITICAL, 0.5, 0.5, 0.1)
    assert score(LayerHealth.CRITICAL, None, None, 0.1) > known
    assert score(LayerHealth.CRITICAL, 0.0, 1.0, 0.1) == score(
        LayerHealth.CRITICAL, None, None, 0.1
    )
    assert score(LayerHealth.HEALTHY, None, None, 0.0) == pytest.approx(0.25)
    assert score(LayerHealth.CRITICAL, 0.0, 1.0, 1.0) == pytest.approx(1.0)


def test_every_urgency() -> None:
    assert urgency(LayerHealth.CRITICAL) is Urgency.CRITICAL
    assert urgency(LayerHealth.WARNING, 0.2) is Urgency.HIGH
    assert urgency(LayerHealth.WARNING, 0.6) is Urgency.MEDIUM
    assert urgency(LayerHealth.WARNING, 0.6, named_first=True) is Urgency.HIGH
    assert urgency(LayerHealth.UNKNOWN) is Urgency.MEDIUM
    assert urgency(LayerHealth.HEALTHY, 0.9) is Urgency.LOW


def test_every_urgency_comes_from_data() -> None:
    levels = {
        item.urgency_level
        for run in (made.dead(), made.vanishing(), made.deep())
        for item in analyze_gradients(run).optimization_priorities
    }
    assert levels == set(Urgency)
    calm = analyze_gradients(made.healthy()).optimization_priorities
    assert {item.urgency_level for item in calm} == {Urgency.LOW}
