"""Layer details against plain loops, invariances, and health that is the diagnosis's own."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.analysis.gradients import loops, made
from tests.making import make_run

from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.gradients.layer import MOST_SIMILAR, LayerHealth, Trait
from gradwatch.diagnosis.verdict import verdicts
from gradwatch.finding import Severity
from gradwatch.jsonio import dumps
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
    assert [got[n].similar_layers_count for n in "abcd"] == [2, 2, 0, 2]
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


@pytest.mark.parametrize(
    ("run", "risk", "level"),
    [
        (made.non_finite, "NonFinite", LayerHealth.CRITICAL),
        (made.dead, "Dead", LayerHealth.CRITICAL),
        (made.exploding, "Exploding", LayerHealth.CRITICAL),
        (made.vanishing, "Vanishing", LayerHealth.WARNING),
    ],
    ids=["NonFinite", "Dead", "Exploding", "Vanishing"],
)
def test_every_trouble_is_found_where_it_is(
    run: Callable[[], Run], risk: str, level: LayerHealth
) -> None:
    details = analyze_gradients(run()).layer_details
    assert details["sick"].health_metrics.overall_health is level
    assert details["sick"].health_metrics.risk_factors == (risk,)
    others = [d.health_metrics for name, d in details.items() if name != "sick"]
    assert {other.overall_health for other in others} == {LayerHealth.HEALTHY}
    assert {other.risk_factors for other in others} == {()}


@pytest.mark.parametrize("seed", range(40))
def test_a_layer_is_as_well_as_the_diagnosis_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-7, 4, 6)
    slopes = rng.choice([0.0, 0.0, 0.2, -0.2], 6)
    at = np.arange(50)
    norms = {
        f"l{i}": s * noise(i, 50) * 10 ** (k * at)
        for i, (s, k) in enumerate(zip(scales, slopes, strict=True))
    }
    if seed % 3 == 0:
        norms["l1"][20:] = 0
    if seed % 7 == 0:
        norms["l2"][-4:] = math.inf
    run = Run.from_norms(norms, scalars={"loss": [2.0] * 50} if seed % 2 else None)
    said = verdicts(run)
    for name, detail in analyze_gradients(run).layer_details.items():
        severity = said.severity(name) or Severity.INFO
        metrics = detail.health_metrics
        assert (metrics.overall_health is LayerHealth.CRITICAL) == (severity is Severity.CRITICAL)
        assert (metrics.overall_health is LayerHealth.WARNING) == (severity is Severity.WARNING)
        assert metrics.risk_factors[: len(said.troubles(name))] == said.troubles(name)
        assert bool(metrics.risk_factors) == (severity > Severity.INFO)


def test_traits_describe_and_do_not_judge() -> None:
    zigzag = made.among_healthy([1.0 + 0.5 * (-1) ** i for i in range(60)])
    metrics = analyze_gradients(zigzag).layer_details["sick"].health_metrics
    assert metrics.traits == (Trait.OSCILLATING,)
    assert metrics.overall_health is LayerHealth.HEALTHY
    wild = made.among_healthy((1 + 9.0 * (np.arange(60) % 7 < 3)).tolist())
    metrics = analyze_gradients(wild).layer_details["sick"].health_metrics
    assert metrics.traits == (Trait.UNSTABLE,)
    calm = analyze_gradients(made.healthy()).layer_details["sick"].health_metrics
    assert calm.traits == ()


def test_of_many_similar_layers_the_nearest_are_listed() -> None:
    means = np.exp(np.linspace(0, 0.15, 40))
    run = Run.from_norms({f"l{i}": [mean] * 5 for i, mean in enumerate(means)})
    for i, detail in enumerate(analyze_gradients(run).layer_details.values()):
        got = detail.comparative_analysis
        nearest = sorted(range(40), key=lambda j: (abs(j - i), j))[1 : MOST_SIMILAR + 1]
        assert got.similar_layers_count == 39
        assert len(got.similar_layers) == MOST_SIMILAR
        listed = [int(name[1:]) for name in got.similar_layers]
        assert listed == sorted(listed)
        assert max(abs(j - i) for j in listed) == max(abs(j - i) for j in nearest)


def test_layers_without_a_gradient_are_like_each_other() -> None:
    run = Run.from_norms({"a": [0.0] * 5, "b": [0.0] * 5, "c": [1.0] * 5})
    got = analyze_gradients(run).layer_details["a"].comparative_analysis
    assert (got.similar_layers, got.optimization_potential) == (("b",), None)


def test_numbers_at_the_ends_of_the_range_overflow_nowhere() -> None:
    """Warnings are errors here."""
    for size in (1e306, 1e200, 1e155, 1e-160, 5e-324):
        run = Run.from_norms({f"l{i}": size * (1 + i % 3) * np.ones(40) for i in range(4)})
        run_of_noise = Run.from_norms({f"l{i}": size * noise(i, 40) for i in range(4)})
        for analysed in (run, run_of_noise):
            text = dumps(analyze_gradients(analysed, depth="expert"))
            assert "NaN" not in text
            assert "Infinity" not in text
    big = Run.from_norms({f"l{i}": 1e306 * noise(i, 40) for i in range(4)})
    got = analyze_gradients(big).layer_details["l0"].gradient_statistics
    assert got.variance is None
    assert got.missing["variance"] == "outside the range of floating point numbers"
    assert got.std == pytest.approx(1e306 * loops.moments(noise(0, 40).tolist())[1], rel=1e-9)
    assert got.skewness == pytest.approx(loops.moments(noise(0, 40).tolist())[2], rel=1e-9)


def test_active_units_are_counted_before_the_run_went_bad() -> None:
    dead_rows = np.array([[0.0], [1.0], [4.0]])
    norms, bad = np.array([[1.0], [1.0], [np.nan]]), np.array([[0.0], [0.0], [1.0]])
    run = make_run(
        {"grad_norm": norms, "grad_nan": bad, "grad_dead_rows": dead_rows}, names=["fc.weight"]
    )
    metrics = analyze_gradients(run).layer_details["fc"].health_metrics
    assert metrics.neuron_activity_ratio == 0.75


@pytest.mark.parametrize("factor", [1e-12, 65536.0, 1e15])
def test_scaling_every_gradient_changes_no_description(factor: float) -> None:
    norms = {f"l{i}": noise(i) * 10.0**-i for i in range(7)}
    norms["l2"] = norms["l2"] * np.exp(-np.arange(150) / 40)
    plain = analyze_gradients(Run.from_norms(norms))
    scaled = analyze_gradients(Run.from_norms({n: factor * x for n, x in norms.items()}))
    for name, detail in plain.layer_details.items():
        other = scaled.layer_details[name]
        assert other.health_metrics.traits == detail.health_metrics.traits
        for field in ("consistency_score", "smoothness_index", "stability_measure"):
            mine, theirs = (getattr(d.flow_characteristics, field) for d in (detail, other))
            assert theirs == pytest.approx(mine, rel=1e-6)
        assert other.comparative_analysis.rank_among_layers == (
            detail.comparative_analysis.rank_among_layers
        )


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
