"""The door: what it takes and refuses, what each depth computes, where a bad run is cut."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from tests.analysis.gradients import made
from tests.making import make_run

from gradwatch.analysis.gradients import AnalysisDepth, GradientAnalysis, analyze_gradients
from gradwatch.analysis.gradients.layer import LayerHealth
from gradwatch.diagnosis import diagnose
from gradwatch.errors import GradwatchError
from gradwatch.run import Run

# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        {"window": 2},
        {"window": 1, "rules": "original"},
        {"window": "ten"},
        {"rules": "other"},
        {"depth": "deep"},
        {"depth": None},
        {"stability_threshold": 1.5},
        {"stability_threshold": math.nan},
        {"stability_threshold": "high"},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_in_a_sentence(option: dict[str, Any]) -> None:
    name = next(iter(option))
    with pytest.raises(GradwatchError, match=rf"^Expected .*{name}.*\.$"):
        analyze_gradients(made.healthy(), **option)


def test_the_original_takes_a_window_of_two() -> None:
    run = Run.from_norms({"a": [3.0, 2.0, 1.0], "b": [1.0, 1.0, 1.0]})
    details = analyze_gradients(run, window=2, rules="original").layer_details
    assert set(details) == {"a", "b"}


def test_plain_data_need_no_run() -> None:
    norms = {"a": [1.0, 2.0, 3.0], "x.weight": [3.0] * 3, "x.bias": [4.0] * 3}
    analysis = analyze_gradients(norms)
    assert list(analysis.layer_details) == ["a", "x.weight", "x.bias"]
    assert analysis == analyze_gradients(Run.from_norms(norms))


def test_the_original_rules_give_the_originals_answer() -> None:
    run = Run.from_norms({f"block.{i}": (i + 1) * made.noise(i, 150) for i in range(6)})
    ours, theirs = (analyze_gradients(run, rules=rules) for rules in ("gradwatch", "original"))
    name = "block.0"
    statistics = [a.layer_details[name].gradient_statistics for a in (ours, theirs)]
    assert statistics[1].mean == pytest.approx(statistics[0].mean, rel=1e-12)
    assert theirs.layer_details[name].health_metrics.overall_health == "Warning"  # noise, it says
    assert ours.layer_details[name].health_metrics.overall_health is LayerHealth.HEALTHY


# -- depth -----------------------------------------------------------------------------------------

BY_DEPTH = {
    "standard": {
        "flow_characteristics",
        "optimization_suggestions",
        "comparative_analysis",
        "gradient_distribution",
        "layer_interactions",
        "convergence_indicators",
        "training_dynamics",
        "stability_assessment",
        "gradient_hierarchy",
    },
    "comprehensive": {"mean_interval", "stages"},
    "expert": {"tensors"},
}
"""Depth → the fields it is the first to compute."""


def left_out(analysis: GradientAnalysis) -> set[str]:
    """Fields that are None because of the depth."""
    detail = analysis.layer_details["fc0"]
    return {
        name
        for result in (analysis, analysis.network_level_analysis, detail)
        for name, reason in result.missing.items()
        if reason.startswith("depth=")
    }


def recorded() -> Run:
    """Layers of two tensors each."""
    names = [f"fc{i}.{part}" for i in range(3) for part in ("weight", "bias")]
    norms = np.column_stack([made.noise(i, 80) for i in range(6)])
    return make_run({"grad_norm": norms}, names=names)


def test_each_depth_computes_more_than_the_one_before() -> None:
    run = recorded()
    rest: set[str] = set()
    for depth in reversed(AnalysisDepth):
        analysis = analyze_gradients(run, depth=depth)
        assert left_out(analysis) == rest
        assert len(analysis.optimization_priorities) == 3
        assert analysis.layer_details["fc1"].gradient_statistics.samples == 80
        rest = rest | BY_DEPTH.get(depth, set())


def test_what_depths_share_is_the_same() -> None:
    run = recorded()
    plain, deep = (
        analyze_gradients(run, depth=d).layer_details["fc2"] for d in ("standard", "expert")
    )
    changed = {"mean_interval", "stages", "tensors"}
    for field in dataclasses.fields(plain):
        if field.name not in changed:
            assert getattr(plain, field.name) == getattr(deep, field.name)


def test_the_deepest_looks_at_thirds_and_tensors() -> None:
    run = recorded()
    detail = analyze_gradients(run, depth="expert").layer_details["fc1"]
    weight, bias = run.column("grad_norm", "fc1.weight"), run.column("grad_norm", "fc1.bias")
    assert detail.tensors["fc1.bias"].mean == pytest.approx(math.fsum(bias) / 80)
    merged = [math.hypot(w, b) for w, b in zip(weight, bias, strict=True)]
    ends = [0, 26, 53, 80]
    for stage, begin, end in zip(detail.stages, ends, ends[1:], strict=False):
        assert stage.samples == end - begin
        assert stage.mean == pytest.approx(math.fsum(merged[begin:end]) / (end - begin))
    low, high = detail.mean_interval
    assert low < math.fsum(merged) / 80 < high


@pytest.mark.parametrize("length", [40, 100])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_the_interval_of_the_mean_holds_it(memory: float, length: int) -> None:
    rng = np.random.default_rng(4)
    logs = rng.normal(size=(length, 1000))
    for step in range(1, length):
        logs[step] = memory * logs[step - 1] + math.sqrt(1 - memory**2) * logs[step]
    run = Run.from_norms({f"l{i}": np.exp(0.3 * column) for i, column in enumerate(logs.T)})
    details = analyze_gradients(run, depth="comprehensive").layer_details.values()
    truth = math.exp(0.3**2 / 2)
    held = [low < truth < high for low, high in (detail.mean_interval for detail in details)]
    assert 0.90 <= np.mean(held) <= 0.99


# -- a run that went bad ---------------------------------------------------------------------------


def test_a_run_that_went_nan_is_described_up_to_there() -> None:
    norms = {f"l{i}": made.noise(i, 60) for i in range(4)}
    cut = analyze_gradients(Run.from_norms({n: x[:40] for n, x in norms.items()}))
    for x in norms.values():
        x[40:] = math.nan
    analysis = analyze_gradients(Run.from_norms(norms))
    assert analysis.non_finite_since == 40
    assert cut.non_finite_since is None
    for name, detail in analysis.layer_details.items():
        assert detail.flow_characteristics == cut.layer_details[name].flow_characteristics
        assert detail.comparative_analysis == cut.layer_details[name].comparative_analysis
        assert detail.gradient_statistics.samples == 40
        assert detail.gradient_statistics.non_finite_samples == 20
    network = analysis.network_level_analysis
    assert network.overall_gradient_health is LayerHealth.CRITICAL
    assert network.gradient_distribution == cut.network_level_analysis.gradient_distribution


def test_where_nothing_finite_was_measured_everything_is_none_with_the_reason() -> None:
    analysis = analyze_gradients({"a": [math.nan] * 20, "b": [1.0] * 20}, depth="expert")
    assert analysis.non_finite_since == 0
    got = analysis.layer_details["b"]
    assert got.gradient_statistics.mean is None
    assert got.gradient_statistics.missing["mean"] == "no finite sample"
    assert got.flow_characteristics.trend_strength is None
    assert analysis.layer_details["a"].health_metrics.overall_health is LayerHealth.CRITICAL


def test_steps_that_a_scaler_skipped_are_no_samples() -> None:
    norms = np.column_stack([made.noise(i, 40) for i in range(2)])
    bad, skipped = np.zeros((40, 2)), np.zeros(40)
    bad[[5, 9], 0], skipped[[5, 9]] = 1, 1
    norms[[5, 9]] = np.nan, 1e4  # what overflows in one layer is merely huge in the next
    run = make_run(
        {"grad_norm": norms, "grad_inf": bad},
        names=["a.weight", "b.weight"],
        scalars={"skipped": skipped},
        states={"grad_norm": np.zeros((40, 2)), "grad_inf": np.zeros((40, 2))},
    )
    analysis = analyze_gradients(run)
    assert analysis.non_finite_since is None
    for name in ("a", "b"):
        statistics = analysis.layer_details[name].gradient_statistics
        assert (statistics.samples, statistics.non_finite_samples) == (38, 0)
        assert statistics.percentile_95 < 2


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_small_runs_are_analysed_too(layers: int, steps: int) -> None:
    for depth in AnalysisDepth:
        run = Run.from_norms({f"l{i}": [1.0] * steps for i in range(layers)})
        analysis = analyze_gradients(run, depth=depth)
        assert len(analysis.layer_details) == layers
        health = analysis.network_level_analysis.overall_gradient_health
        assert health is (LayerHealth.HEALTHY if steps >= 3 and layers else LayerHealth.UNKNOWN)


def test_the_network_is_as_well_as_the_worst_finding() -> None:
    for run in (made.dead(), made.vanishing(), made.overfitting(), made.healthy(), made.deep()):
        worst = diagnose(run).worst
        word = analyze_gradients(run).network_level_analysis.overall_gradient_health.value
        assert word == (worst.word.capitalize() if worst and worst > 1 else "Healthy")
