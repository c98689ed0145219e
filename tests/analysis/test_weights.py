"""Weights against plain loops: statistics, pooling, entropy, outliers, health, runs."""

import math

import numpy as np
import pytest
from tests.analysis import loops

from gradwatch.analysis.weights import (
    DistributionHealthStatus,
    OutlierSeverity,
    WeightIssue,
    analyze_weights,
)
from gradwatch.errors import GradwatchError
from gradwatch.jsonio import dumps
from gradwatch.run import Run

RNG = np.random.default_rng(5)
TENSORS = {
    "normal": RNG.normal(0.01, 0.02, (40, 25)),
    "skewed": RNG.exponential(0.5, 777),
    "shifted": RNG.normal(3.0, 0.001, (7, 9, 4)),
    "single": RNG.normal(size=300).astype(np.float32),
    "half": RNG.normal(size=(20, 10)).astype(np.float16),
    "heavy": RNG.standard_t(2, 900),
}


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


@pytest.mark.parametrize("name", TENSORS)
def test_statistics_agree_with_plain_loops(name: str) -> None:
    values = [float(x) for x in TENSORS[name].ravel()]
    found = analyze_weights(TENSORS).layer_analyses[name].statistics
    assert found.count == len(values)
    # the kernel sums 32-bit blocks in 32 bits before it goes on in 64
    loose = 1e-9 if TENSORS[name].dtype == np.float64 else 1e-7
    assert abs(found.mean - loops.mean(values)) <= loose * loops.std(values)
    assert math.isclose(found.std_dev, loops.std(values), rel_tol=loose)
    assert math.isclose(found.skewness, loops.skewness(values), rel_tol=1e-6, abs_tol=1e-9)
    assert math.isclose(found.kurtosis, loops.kurtosis(values), rel_tol=1e-6, abs_tol=1e-9)
    assert (found.min, found.max) == (min(values), max(values))
    assert close(found.entropy, loops.entropy(values, loops.cell_width(values)))


def test_the_references_catch_planted_errors() -> None:
    values = [float(x) for x in TENSORS["skewed"]]
    found = analyze_weights({"w": np.array(values)}).layer_analyses["w"].statistics
    width = loops.cell_width(values)
    assert not close(found.std_dev, loops.std(values, wrong="ddof"))
    assert not math.isclose(found.skewness, loops.skewness(values, wrong="ddof"), rel_tol=1e-6)
    assert not math.isclose(found.kurtosis, loops.kurtosis(values, "not excess"), rel_tol=1e-6)
    assert not close(found.entropy, loops.entropy(values, width, wrong="nats"))
    assert not close(found.entropy, loops.entropy(values, width, wrong="no bias term"))
    with_nan = [math.nan, *values]  # an implementation that skips NaN silently would lose the count
    counted = analyze_weights({"w": np.array(with_nan)}).layer_analyses["w"]
    assert counted.statistics.nan_count == 1
    assert counted.statistics.count == len(with_nan)
    assert close(counted.statistics.mean, loops.mean(loops.finite(with_nan)))


def test_overall_statistics_are_those_of_one_big_tensor() -> None:
    everything = [float(x) for tensor in TENSORS.values() for x in tensor.ravel()]
    overall = analyze_weights(TENSORS).overall_statistics
    assert overall.count == len(everything)
    assert math.isclose(overall.mean, loops.mean(everything), rel_tol=1e-7)
    assert math.isclose(overall.std_dev, loops.std(everything), rel_tol=1e-7)
    assert math.isclose(overall.skewness, loops.skewness(everything), rel_tol=1e-6)
    assert math.isclose(overall.kurtosis, loops.kurtosis(everything), rel_tol=1e-6)
    averaged = sum(loops.std([float(x) for x in t.ravel()]) for t in TENSORS.values()) / 6
    assert not math.isclose(overall.std_dev, averaged, rel_tol=0.01)  # the original's mistake


def test_pooled_entropy_is_exact_on_a_common_grid() -> None:
    left, right = RNG.normal(0, 1, 500), RNG.normal(4, 0.5, 900)
    both = [float(x) for x in (*left, *right)]
    found = analyze_weights({"a": left, "b": right}).overall_statistics.entropy
    widths = [2.0**k for k in range(-8, 3)]
    assert any(close(found, loops.entropy(both, width)) for width in widths)


def test_two_constant_tensors_have_spread_together() -> None:
    found = analyze_weights({"a": np.full(10, -1.0), "b": np.full(10, 1.0)})
    assert found.overall_statistics.std_dev == 1.0
    assert found.layer_analyses["a"].statistics.std_dev == 0.0


def test_a_constant_has_no_shape() -> None:
    found = analyze_weights({"w": np.full(1000, 0.1, np.float32)}).layer_analyses["w"].statistics
    assert (found.std_dev, found.skewness, found.kurtosis, found.entropy) == (0.0, 0.0, 0.0, 0.0)


def test_too_few_elements_are_unknown_not_symmetric() -> None:
    found = analyze_weights({"w": np.array([1.0, 2.0])}).layer_analyses["w"].statistics
    assert found.skewness is None
    assert found.missing["skewness"] == "2 finite elements; at least 3 are needed"
    assert found.missing["kurtosis"] == "2 finite elements; at least 4 are needed"


def test_entropy_of_a_uniform_is_near_its_maximum_and_of_a_peak_is_not() -> None:
    uniform = analyze_weights({"w": RNG.uniform(size=20000)}).overall_statistics
    peak = np.zeros(20000)
    peak[:20] = 1.0
    assert uniform.normalized_entropy > 0.97
    assert analyze_weights({"w": peak}).overall_statistics.normalized_entropy < 0.01


def test_chunks_do_not_change_the_histogram() -> None:
    values = RNG.normal(size=200_000).astype(np.float32)
    whole = analyze_weights({"w": values}).layer_analyses["w"].statistics.entropy
    parts = analyze_weights({"a": values[:70_001], "b": values[70_001:]}).overall_statistics
    assert math.isclose(whole, parts.entropy, rel_tol=0.2)
    assert math.isclose(whole, loops.entropy(values.tolist(), 2.0**-4), rel_tol=1e-9) or (
        math.isclose(whole, loops.entropy(values.tolist(), 2.0**-5), rel_tol=1e-9)
    )


# -- outliers ------------------------------------------------------------------------------------


def test_outliers_are_found_by_a_robust_rule_that_excludes_them() -> None:
    values = RNG.normal(size=400)
    values[7], values[99] = 40.0, -8.0
    found = analyze_weights({"w": values.reshape(20, 20)}).outlier_detection
    reference = loops.robust_z(values.tolist())
    assert [item.weight_index for item in found.outliers] == [7, 99]
    assert [item.position for item in found.outliers] == [(0, 7), (4, 19)]
    for item in found.outliers:
        assert math.isclose(item.z_score, reference[item.weight_index], rel_tol=1e-6)
    assert found.outliers[1].z_score < 0  # the sign is kept
    wrong = loops.robust_z(values.tolist(), wrong="self-including")
    assert not math.isclose(found.outliers[0].z_score, wrong[7], rel_tol=0.1)


def test_one_outlier_among_ten_is_seen() -> None:
    """Mean and std that include it cannot reach 3 sigma below eleven values."""
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99, 50.0])
    assert analyze_weights({"w": values}).outlier_detection.total == 1
    assert max(abs(z) for z in loops.robust_z(values.tolist(), "self-including")) <= 3.0


def test_a_large_gaussian_is_not_full_of_outliers() -> None:
    found = analyze_weights({"w": RNG.normal(size=300_000).astype(np.float32)}).outlier_detection
    assert found.total <= 2
    assert found.layers["w"].limit > 5.0
    assert found.layers["w"].expected == pytest.approx(0.05, rel=1e-6)


def test_the_list_is_bounded_and_its_total_said() -> None:
    values = RNG.normal(size=5000)
    values[:400] = np.linspace(100, 500, 400)
    found = analyze_weights({"w": values}, listed=25).outlier_detection
    assert found.total == 400
    assert found.listed == len(found.outliers) == 25
    assert [item.weight_index for item in found.outliers] == list(range(375, 400))


def test_both_severities_are_reached() -> None:
    values = RNG.normal(size=1000)
    values[0], values[1] = 5.5, 50.0
    found = {
        o.weight_index: o.severity for o in analyze_weights([values]).outlier_detection.outliers
    }
    assert found[0] is OutlierSeverity.MEDIUM
    assert found[1] is OutlierSeverity.HIGH


def test_a_pruned_tensor_is_judged_by_what_is_left() -> None:
    values = RNG.normal(size=4000)
    values[RNG.permutation(4000)[:3000]] = 0.0
    assert analyze_weights({"w": values}).outlier_detection.total == 0


# -- health --------------------------------------------------------------------------------------


def test_every_issue_has_a_tensor_a_sentence_and_an_advice() -> None:
    skewed = np.concatenate([np.zeros(40) + 0.01 * np.arange(40), [5.0, 6.0]])
    heavy = np.concatenate([np.linspace(-0.1, 0.1, 400), [-3.0, 3.0]])
    tensors = {
        WeightIssue.NON_FINITE: np.array([1.0, np.inf, 2.0]),
        WeightIssue.ZERO_WEIGHTS: np.array([0.0, 0.0, 0.0, 1.0, -1.0]),
        WeightIssue.SKEWED: skewed,
        WeightIssue.HEAVY_TAILS: heavy,
        WeightIssue.EXTREME_VALUES: np.array([-11.0, 0.0, 11.0]),
    }
    assert set(tensors) == set(WeightIssue)
    for issue, tensor in tensors.items():
        found = analyze_weights({"w": tensor}).layer_analyses["w"]
        assert issue in found.issues
        assert found.recommendations == tuple(item.advice for item in found.issues)
        assert issue.advice.endswith(".")


def zeroed(rows: int, size: float = 0.1) -> np.ndarray:
    """A matrix of which so many of a hundred rows are zero."""
    matrix = np.random.default_rng(1).normal(0, size, (100, 50))
    matrix[:rows] = 0.0
    return matrix


@pytest.mark.parametrize(
    ("tensor", "status"),
    [
        (np.linspace(-1, 1, 101), DistributionHealthStatus.EXCELLENT),
        (np.linspace(-11, 11, 101), DistributionHealthStatus.GOOD),
        # odd shapes alone are no fault: 50 and 30 of 100 by the original's penalties
        (np.concatenate([np.linspace(-1, 1, 500), [11.0]]), DistributionHealthStatus.GOOD),
        (np.concatenate([np.zeros(200), [11.0]]), DistributionHealthStatus.GOOD),
        (zeroed(4), DistributionHealthStatus.EXCELLENT),  # mentioned
        (zeroed(10), DistributionHealthStatus.FAIR),
        (zeroed(60), DistributionHealthStatus.CRITICAL),
        (np.array([np.nan, 1.0]), DistributionHealthStatus.CRITICAL),
        (np.empty(0), DistributionHealthStatus.UNKNOWN),
    ],
)
def test_the_verdict_gives_the_status_and_the_shape_only_the_score(
    tensor: np.ndarray, status: DistributionHealthStatus
) -> None:
    found = analyze_weights({"w": tensor})
    assert found.layer_analyses["w"].status is found.distribution_health.status is status


def test_a_poor_network_is_warned_about_and_oddly_shaped() -> None:
    found = analyze_weights({"w": zeroed(40, size=3.0)})
    assert found.distribution_health.status is DistributionHealthStatus.POOR
    assert found.layer_analyses["w"].findings == ("zeroed-units",)


def test_beside_a_sick_tensor_a_sound_one_stays_sound() -> None:
    found = analyze_weights({"sick": zeroed(60), "sound": zeroed(0)})
    assert found.distribution_health.status is DistributionHealthStatus.CRITICAL
    assert found.layer_analyses["sound"].status is DistributionHealthStatus.EXCELLENT
    assert found.layer_analyses["sound"].findings == ()


def test_of_a_training_the_trainings_findings_speak() -> None:
    steps = 30
    whole = [RNG.normal(0, 0.1, (8, 6))] * steps
    broken = [np.full((8, 6), np.nan) if step >= 20 else whole[step] for step in range(steps)]
    run = Run.from_arrays(
        gradients={"a": whole, "b": broken},
        weights={"a": whole, "b": broken},
        scalars={"loss": np.linspace(2, 1, steps).tolist()},
    )
    found = analyze_weights(run)
    assert found.layer_analyses["a"].status is DistributionHealthStatus.EXCELLENT
    assert found.layer_analyses["b"].status is DistributionHealthStatus.CRITICAL
    assert found.layer_analyses["b"].findings[0] == "nonfinite"
    assert found.layer_analyses["b"].issues == (WeightIssue.NON_FINITE,)
    assert found.distribution_health.status is DistributionHealthStatus.CRITICAL


def test_the_elements_of_a_run_have_to_be_all_of_them() -> None:
    run = Run.from_arrays(weights={"a": [np.eye(4)], "b": [np.eye(4)]})
    assert analyze_weights(run, elements={"a": np.eye(4), "b": np.eye(4)}).outlier_detection
    with pytest.raises(GradwatchError, match="got none of 'b'"):
        analyze_weights(run, elements={"a": np.eye(4)})


def test_a_mask_is_no_fault() -> None:
    mask = np.where(np.tri(8) > 0, 0.0, -np.inf)
    found = analyze_weights({"attn.mask": mask, "fc.weight": zeroed(0)})
    assert found.distribution_health.status is DistributionHealthStatus.EXCELLENT
    assert WeightIssue.NON_FINITE not in found.layer_analyses["attn.mask"].issues
    assert found.layer_analyses["attn.mask"].statistics.inf_count == 28


def test_what_overflows_is_missing_with_its_reason() -> None:
    found = analyze_weights({"a": np.array([1.7e308, -1.7e308, 1e307, 3.0])})
    numbers = found.layer_analyses["a"].statistics
    assert (numbers.min, numbers.max) == (-1.7e308, 1.7e308)
    assert numbers.norm is None
    assert "64 bits" in numbers.missing["norm"]
    assert math.isclose(numbers.std_dev, 1.2028611723719407e308)
    assert found.layer_analyses["a"].findings == ("narrow-casts",)


ENDS = (1.7e308, -1.7e308, 1e307, 3.0, 0.0, 5e-324, -1e-310, 1e154, np.inf, np.nan)


@pytest.mark.parametrize("seed", range(40))
def test_no_statistic_is_ever_infinite(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.choice(ENDS, random.integers(1, 40))
    found = analyze_weights({"a": values, "b": values[:1], "c": values.reshape(1, -1)})
    layers = [layer.statistics for layer in found.layer_analyses.values()]
    for numbers in (found.overall_statistics, *layers):
        assert all(
            math.isfinite(value) for value in vars(numbers).values() if isinstance(value, float)
        )


def test_nan_is_never_healthy() -> None:
    values = RNG.normal(size=1000)
    values[321] = np.nan
    found = analyze_weights({"w": values})
    layer = found.layer_analyses["w"]
    assert layer.health_score == 0.0
    assert layer.issues == (WeightIssue.NON_FINITE,)
    assert layer.first_nonfinite == 321
    assert found.distribution_health.status is DistributionHealthStatus.CRITICAL
    every = analyze_weights({"w": np.full(5, np.nan)}).layer_analyses["w"]
    assert every.health_score == 0.0
    assert every.statistics.mean is None


def test_names_and_order_do_not_matter() -> None:
    backwards = dict(reversed([(name[::-1], tensor) for name, tensor in TENSORS.items()]))
    there, back = analyze_weights(TENSORS), analyze_weights(backwards)
    for name, layer in there.layer_analyses.items():
        assert back.layer_analyses[name[::-1]].statistics == layer.statistics
        assert back.layer_analyses[name[::-1]].issues == layer.issues
    assert there.overall_statistics.count == back.overall_statistics.count
    assert close(there.overall_statistics.std_dev, back.overall_statistics.std_dev)
    assert there.outlier_detection.total == back.outlier_detection.total


def test_scaling_changes_no_relative_verdict() -> None:
    scaled = {name: tensor * 0.25 for name, tensor in TENSORS.items() if name != "half"}
    plain = {name: tensor for name, tensor in TENSORS.items() if name != "half"}
    there, back = analyze_weights(plain), analyze_weights(scaled)
    assert there.outlier_detection.total == back.outlier_detection.total
    for name, layer in there.layer_analyses.items():
        assert close(back.layer_analyses[name].statistics.entropy, layer.statistics.entropy)


def test_the_same_input_gives_the_same_bytes() -> None:
    assert dumps(analyze_weights(TENSORS)) == dumps(analyze_weights(TENSORS))


@pytest.mark.parametrize("size", [1e-300, 1e-38, 1e30, 1e300])
def test_sizes_at_the_ends_of_the_range_are_measured(size: float) -> None:
    values = RNG.normal(size=500)
    found = analyze_weights({"w": values * size}).layer_analyses["w"].statistics
    reference = analyze_weights({"w": values}).layer_analyses["w"].statistics
    assert math.isclose(found.std_dev, reference.std_dev * size, rel_tol=1e-9)
    assert math.isclose(found.entropy, reference.entropy, rel_tol=0.3)


# -- inputs --------------------------------------------------------------------------------------


def test_from_a_run_what_needs_the_elements_says_so() -> None:
    run = Run.from_arrays(weights={n: [t * 0, t] for n, t in TENSORS.items()})
    found, reference = analyze_weights(run), analyze_weights(TENSORS)
    assert found.outlier_detection is None
    assert "needs the elements" in found.missing["outlier_detection"]
    for name, layer in reference.layer_analyses.items():
        there = found.layer_analyses[name]
        assert there.statistics.entropy is None
        assert "needs the elements" in there.statistics.missing["entropy"]
        assert close(there.statistics.std_dev, layer.statistics.std_dev)
        assert there.issues == layer.issues
    assert close(found.overall_statistics.std_dev, reference.overall_statistics.std_dev)
    assert found.distribution_health == reference.distribution_health


def test_a_run_without_weights_is_an_error_with_a_sentence() -> None:
    with pytest.raises(GradwatchError, match="no recorded weights"):
        analyze_weights(Run.from_norms({"a": [1.0, 2.0]}))


def test_lists_integers_complex_and_views_are_accepted() -> None:
    matrix = RNG.normal(size=(6, 5))
    found = analyze_weights([matrix.T[::2], np.arange(5), np.array([1 + 2j, 3 - 4j])])
    assert list(found.layer_analyses) == ["0", "1", "2"]
    assert close(
        found.layer_analyses["0"].statistics.mean, loops.mean(matrix.T[::2].ravel().tolist())
    )
    assert found.layer_analyses["1"].statistics.mean == 2.0
    assert found.layer_analyses["2"].statistics.count == 4


@pytest.mark.parametrize("given", [3.5, "weights", {"w": np.array(["a"])}])
def test_nonsense_is_refused(given) -> None:
    with pytest.raises(GradwatchError, match="Expected"):
        analyze_weights(given)


def test_torch_parameters_of_any_type_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(30, 20)
    whole = analyze_weights({n: p.detach().numpy() for n, p in model.named_parameters()})
    assert analyze_weights(dict(model.named_parameters())) == whole
    narrow = analyze_weights(dict(model.bfloat16().named_parameters()))
    assert narrow.layer_analyses["weight"].status is whole.layer_analyses["weight"].status
    assert narrow.layer_analyses["weight"].statistics.std_dev == pytest.approx(
        whole.layer_analyses["weight"].statistics.std_dev, rel=1e-2
    )


def test_the_original_rules_are_a_keyword_away() -> None:
    found = analyze_weights({"w": np.array([1.0, 2.0, 3.0, 4.0])}, rules="original")
    assert found.overall_statistics.entropy == pytest.approx(0.16096404744368126, rel=1e-6)


def test_the_original_reads_complex_numbers_as_pairs() -> None:
    whole = analyze_weights({"w": np.array([1 + 2j, 3 + 4j])}, rules="original")
    assert whole == analyze_weights({"w": np.array([1.0, 2.0, 3.0, 4.0])}, rules="original")


def test_the_original_rules_work_on_recorded_statistics_too() -> None:
    tensors = {name: tensor for name, tensor in TENSORS.items() if name != "heavy"}
    run = Run.from_arrays(weights={name: [tensor] for name, tensor in tensors.items()})
    recorded = analyze_weights(run, rules="original")
    whole = analyze_weights(tensors, rules="original")
    assert recorded.outlier_detection is None
    assert "needs the elements" in recorded.missing["outlier_detection"]
    assert recorded.distribution_health == whole.distribution_health
    for there, here in zip(whole.layer_analyses, recorded.layer_analyses, strict=True):
        assert (there.health_score, there.issues) == (here.health_score, here.issues)
        assert here.statistics.std_dev == pytest.approx(there.statistics.std_dev, rel=1e-4)
    sick = Run.from_arrays(weights={"a": [np.array([np.nan, 1.0])]})
    assert analyze_weights(sick, rules="original").layer_analyses[0].health_score == 100.0
