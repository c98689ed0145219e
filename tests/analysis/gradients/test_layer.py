"""Layer details against plain loops, invariances, and every level of health."""

import itertools
import math

import numpy as np
import pytest
from tests.analysis.gradients import loops

from gradwatch.analysis.gradients import analyze_gradients, overall_health
from gradwatch.analysis.gradients.layer import LayerHealth, Risk, Suggestion, Urgency, urgency
from gradwatch.errors import GradwatchError
from gradwatch.result import dumps
from gradwatch.run import Run


def noise(seed: int, size: int = 150, spread: float = 0.1) -> np.ndarray:
    return np.exp(spread * np.random.default_rng(seed).normal(size=size))


@pytest.fixture(scope="module")
def healthy() -> Run:
    return Run.from_norms({f"block.{i}": (i + 1) * noise(i) for i in range(6)})


def test_statistics_are_those_of_plain_loops(healthy: Run) -> None:
    details = analyze_gradients(healthy).layer_details
    for i, (name, detail) in enumerate(details.items()):
        x = ((i + 1) * noise(i)).tolist()
        mean, std, skew, kurt = loops.moments(x)
        got = detail.gradient_statistics
        assert got.samples == 150
        assert got.mean == pytest.approx(mean, rel=1e-12)
        assert got.std == pytest.approx(std, rel=1e-12)
        assert got.variance == pytest.approx(std * std, rel=1e-12)
        assert got.skewness == pytest.approx(skew, abs=1e-10)
        assert got.kurtosis == pytest.approx(kurt, abs=1e-10)
        for q, field in ((0.05, "percentile_5"), (0.5, "median"), (0.95, "percentile_95")):
            assert getattr(got, field) == pytest.approx(loops.percentile(x, q), rel=1e-12)
        assert name == f"block.{i}"


def test_the_reference_would_catch_a_wrong_ddof(healthy: Run) -> None:
    got = analyze_gradients(healthy).layer_details["block.0"].gradient_statistics
    wrong = loops.moments(noise(0).tolist(), ddof=1)[1]
    assert got.std != pytest.approx(wrong, rel=1e-4)


def test_flow_characteristics_are_those_of_plain_loops(healthy: Run) -> None:
    got = analyze_gradients(healthy, window=60).layer_details["block.2"].flow_characteristics
    logs = [math.log(v) for v in (3 * noise(2)).tolist()][-60:]
    changes = [abs(b - a) for a, b in itertools.pairwise(logs)]
    volatility = math.fsum(changes) / len(changes)
    assert got.volatility == pytest.approx(volatility, rel=1e-9)
    assert got.consistency_score == pytest.approx(1 / (1 + volatility), rel=1e-9)
    assert got.trend_strength == pytest.approx(abs(loops.kendall(logs)), rel=1e-9)
    assert got.oscillation_frequency == pytest.approx(loops.turning_points(logs) / 58)
    spread = loops.residual_spread(list(range(90, 150)), logs)
    assert got.stability_measure == pytest.approx(1 / (1 + spread), rel=1e-9)


def test_comparison_ranks_and_finds_similar_layers() -> None:
    run = Run.from_norms({"a": [1.0] * 9, "b": [1.1] * 9, "c": [5.0] * 9, "d": [1.0] * 9})
    details = analyze_gradients(run).layer_details
    got = {name: detail.comparative_analysis for name, detail in details.items()}
    assert [got[n].rank_among_layers for n in "abcd"] == [3, 2, 1, 3]  # ties share the better rank
    assert got["a"].similar_layers == ("b", "d")
    assert got["c"].similar_layers == ()
    assert got["a"].relative_performance == pytest.approx(1 / ((1.1 + 5 + 1) / 3))
    assert got["a"].performance_gap == pytest.approx((1.1 + 5 + 1) / 3 - 1)
    alone = analyze_gradients(Run.from_norms({"a": [1.0] * 9})).layer_details["a"]
    assert alone.comparative_analysis.optimization_potential is None


@pytest.mark.parametrize("seed", range(20))
def test_white_noise_is_healthy(seed: int) -> None:
    run = Run.from_norms({f"l{i}": noise(100 * seed + i) for i in range(8)})
    analysis = analyze_gradients(run)
    levels = [d.health_metrics.overall_health for d in analysis.layer_details.values()]
    assert levels.count(LayerHealth.HEALTHY) >= 7
    assert LayerHealth.CRITICAL not in levels


def test_one_sample_is_unknown_and_so_is_none() -> None:
    run = Run.from_norms({"a": [1.0], "b": []}, steps={"a": [0], "b": []})
    details = analyze_gradients(run).layer_details
    assert details["a"].health_metrics.overall_health is LayerHealth.UNKNOWN
    assert details["b"].health_metrics.overall_health is LayerHealth.UNKNOWN
    assert details["b"].gradient_statistics.mean is None
    assert details["b"].gradient_statistics.missing["mean"] == "no finite sample"


SICK = {
    Risk.NON_FINITE: [1.0] * 20 + [math.nan] + [1.0] * 5,
    Risk.DEAD: [1.0] * 20 + [0.0] * 30,
    Risk.EXPLODING: list(np.logspace(0, 5, 60)),
    Risk.VANISHING: list(1e-6 * noise(3, 60)),
    Risk.UNSTABLE: list(np.exp(3 * np.random.default_rng(5).normal(size=60))),
    Risk.OSCILLATING: [1.0 + 0.5 * (-1) ** i for i in range(60)],
}


@pytest.mark.parametrize("risk", Risk)
def test_every_risk_is_found_and_names_what_to_try(risk: Risk) -> None:
    healthy_layers = {f"ok{i}": noise(i, 60).tolist() for i in range(4)}
    norms = {"sick": SICK[risk], **healthy_layers}
    run = Run.from_norms(norms, steps={name: list(range(len(x))) for name, x in norms.items()})
    analysis = analyze_gradients(run)
    detail = analysis.layer_details["sick"]
    assert risk in detail.health_metrics.risk_factors
    critical = risk in (Risk.NON_FINITE, Risk.DEAD, Risk.EXPLODING)
    expected = LayerHealth.CRITICAL if critical else LayerHealth.WARNING
    assert detail.health_metrics.overall_health is expected
    assert any(s.reason is risk for s in detail.optimization_suggestions)
    assert analysis.optimization_priorities[0].target_name == "sick"
    assert all(
        d.health_metrics.overall_health is LayerHealth.HEALTHY
        for name, d in analysis.layer_details.items()
        if name != "sick"
    )


def test_every_suggestion_is_reached() -> None:
    seen = set()
    for risk in Risk:
        norms = {"sick": SICK[risk], **{f"ok{i}": noise(i, 60).tolist() for i in range(4)}}
        run = Run.from_norms(norms, steps={n: list(range(len(x))) for n, x in norms.items()})
        detail = analyze_gradients(run).layer_details["sick"]
        seen |= {item.suggestion_type for item in detail.optimization_suggestions}
    assert seen == set(Suggestion)


@pytest.mark.parametrize("factor", [1e-12, 65536.0, 1e15])
def test_scaling_every_gradient_changes_no_relative_verdict(factor: float) -> None:
    norms = {f"l{i}": noise(i) * 10.0**-i for i in range(7)}
    norms["l2"] = norms["l2"] * np.exp(-np.arange(150) / 40)
    plain = analyze_gradients(Run.from_norms(norms))
    scaled = analyze_gradients(Run.from_norms({n: factor * x for n, x in norms.items()}))
    for name, detail in plain.layer_details.items():
        other = scaled.layer_details[name]
        assert other.health_metrics.overall_health is detail.health_metrics.overall_health
        assert other.health_metrics.risk_factors == detail.health_metrics.risk_factors
        for field in ("consistency_score", "smoothness_index", "stability_measure"):
            mine, theirs = (getattr(d.flow_characteristics, field) for d in (detail, other))
            assert theirs == pytest.approx(mine, rel=1e-6)
    ranked = [[p.target_name for p in a.optimization_priorities] for a in (plain, scaled)]
    assert ranked[0] == ranked[1]


def test_reversing_time_flips_the_indicator() -> None:
    falling = np.exp(-np.arange(100) / 30) * noise(1, 100, 0.02)
    there = analyze_gradients(Run.from_norms({"a": falling})).layer_details["a"].health_metrics
    back = analyze_gradients(Run.from_norms({"a": falling[::-1]})).layer_details["a"].health_metrics
    assert there.convergence_indicator > 0.8
    assert back.convergence_indicator == 0.0


def test_names_and_their_order_do_not_matter(healthy: Run) -> None:
    norms = {name: healthy.column("grad_norm", name) for name in healthy.names}
    turned = analyze_gradients(Run.from_norms(dict(reversed(norms.items()))))
    for name, detail in analyze_gradients(healthy).layer_details.items():
        other = turned.layer_details[name]
        assert dumps(other.gradient_statistics) == dumps(detail.gradient_statistics)
        assert dumps(other.health_metrics) == dumps(detail.health_metrics)


def test_the_answer_is_the_same_to_the_byte(healthy: Run) -> None:
    assert dumps(analyze_gradients(healthy)) == dumps(analyze_gradients(healthy))


def test_wrong_arguments_are_refused(healthy: Run) -> None:
    with pytest.raises(GradwatchError, match="window of at least 3"):
        analyze_gradients(healthy, window=1)
    with pytest.raises(ValueError):
        analyze_gradients(healthy, rules="other")


def test_the_original_rules_give_the_originals_answer(healthy: Run) -> None:
    ours, theirs = (analyze_gradients(healthy, rules=rules) for rules in ("gradwatch", "original"))
    name = "block.0"
    statistics = [a.layer_details[name].gradient_statistics for a in (ours, theirs)]
    assert statistics[1].mean == pytest.approx(statistics[0].mean, rel=1e-12)
    assert theirs.layer_details[name].health_metrics.overall_health == "Warning"  # noise, it says
    assert ours.layer_details[name].health_metrics.overall_health is LayerHealth.HEALTHY


def test_one_critical_layer_is_never_healthy() -> None:
    healthy, critical = LayerHealth.HEALTHY, LayerHealth.CRITICAL
    assert overall_health([healthy] * 23 + [critical]) is LayerHealth.WARNING
    assert overall_health([critical] * 4 + [healthy] * 6) is LayerHealth.CRITICAL
    assert overall_health([LayerHealth.UNKNOWN]) is LayerHealth.UNKNOWN
    assert overall_health([healthy, LayerHealth.UNKNOWN]) is LayerHealth.HEALTHY


def test_every_urgency() -> None:
    assert urgency(LayerHealth.CRITICAL, None) is Urgency.CRITICAL
    assert urgency(LayerHealth.WARNING, 0.2) is Urgency.HIGH
    assert urgency(LayerHealth.WARNING, 0.6) is Urgency.MEDIUM
    assert urgency(LayerHealth.HEALTHY, 0.9) is Urgency.LOW
