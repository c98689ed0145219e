"""Exploding gradients: order-independent, robust, honest about NaN and nothing."""

import math
import re
from itertools import permutations

import numpy as np
import pytest
from tests.analysis import loops

from gradwatch.analysis.explosion import (
    ExplosionKind,
    ExplosionSeverity,
    Mitigation,
    detect_gradient_explosion,
)
from gradwatch.errors import GradwatchError
from gradwatch.run import Run

RNG = np.random.default_rng(8)


def test_norms_agree_with_plain_loops() -> None:
    gradients = {f"l{i}": RNG.normal(0, 10.0**-i, (9, i + 1)) for i in range(6)}
    found = detect_gradient_explosion(gradients, 0.5)
    norms = {name: loops.norm(g.ravel().tolist()) for name, g in gradients.items()}
    assert list(found.exploding_layers) == [name for name, norm in norms.items() if norm > 0.5]
    assert math.isclose(found.max_gradient_norm, max(norms.values()), rel_tol=1e-12)
    assert math.isclose(found.mean_gradient_norm, loops.mean(list(norms.values())), rel_tol=1e-12)
    assert math.isclose(found.std_gradient_norm, loops.std(list(norms.values())), rel_tol=1e-12)
    assert math.isclose(found.global_norm, loops.norm(list(norms.values())), rel_tol=1e-12)
    assert not math.isclose(
        found.std_gradient_norm, loops.std(list(norms.values()), wrong="ddof"), rel_tol=1e-6
    )
    assert found.clip_coefficient == pytest.approx(0.5 / found.global_norm, rel=1e-5)


def test_the_specification_s_example() -> None:
    found = detect_gradient_explosion([[3.0], [4.0], [12.0], [5.0]], 5.0)
    assert list(found.exploding_layers) == ["2"]
    assert found.overall_severity is ExplosionSeverity.MEDIUM
    assert found.std_gradient_norm == pytest.approx(3.5355339059327378)
    assert found.explosion_ratio == 0.25


def test_severity_does_not_depend_on_the_order() -> None:
    gradients = {"a": [1.0], "b": [60.0], "c": [1e6], "d": [2.0]}
    verdicts = {
        tuple(
            sorted(
                (name, str(layer.severity))
                for name, layer in detect_gradient_explosion(
                    {name: gradients[name] for name in order}, 10.0
                ).exploding_layers.items()
            )
        )
        for order in permutations(gradients)
    }
    assert verdicts == {(("b", "Medium"), ("c", "Critical"))}


def test_scaling_gradients_and_limit_changes_no_verdict() -> None:
    gradients = {"a": [1.0], "b": [60.0], "c": [1e6], "d": [2.0]}
    there = detect_gradient_explosion(gradients, 10.0)
    back = detect_gradient_explosion({n: [v[0] * 1e-9] for n, v in gradients.items()}, 1e-8)
    assert there.overall_severity == back.overall_severity
    assert there.mitigation_recommendations == back.mitigation_recommendations
    for name, layer in there.exploding_layers.items():
        assert back.exploding_layers[name].severity is layer.severity


@pytest.mark.parametrize(
    ("norm", "severity"),
    [
        (6.0, ExplosionSeverity.LOW),
        (80.0, ExplosionSeverity.MEDIUM),
        (400.0, ExplosionSeverity.HIGH),
        (4000.0, ExplosionSeverity.CRITICAL),
    ],
)
def test_every_layer_severity_is_reached(norm: float, severity: ExplosionSeverity) -> None:
    found = detect_gradient_explosion([[5.0], [5.0], [norm]], 5.5)
    assert found.exploding_layers["2"].severity is severity
    assert found.exploding_layers["2"].recommended_action.endswith(".")
    assert found.exploding_layers["2"].ratio_to_others == norm / 5.0


@pytest.mark.parametrize(
    ("norms", "severity"),
    [
        ([1.0] * 20, ExplosionSeverity.NONE),
        ([1.0] * 19 + [5.5], ExplosionSeverity.LOW),
        ([1.0] * 19 + [12.0], ExplosionSeverity.MEDIUM),
        ([1.0] * 19 + [30.0], ExplosionSeverity.HIGH),
        ([6.0] * 11 + [1.0] * 9, ExplosionSeverity.CRITICAL),
    ],
)
def test_every_overall_severity_is_reached(norms, severity: ExplosionSeverity) -> None:
    assert detect_gradient_explosion([[norm] for norm in norms], 5.0).overall_severity is severity


def test_a_single_huge_layer_is_critical() -> None:
    found = detect_gradient_explosion({"only": [1e6]}, 1.0)
    assert found.exploding_layers["only"].severity is ExplosionSeverity.CRITICAL
    assert "no other layer" in found.exploding_layers["only"].missing["ratio_to_others"]
    assert found.exploding_layers["only"].decades_above_threshold == 6.0


def test_nan_and_inf_are_listed_first_of_all_worries() -> None:
    found = detect_gradient_explosion({"a": [np.nan, 1.0], "b": [np.inf], "c": [3.0]}, 100.0)
    assert found.exploding_layers["a"].kind is ExplosionKind.NAN
    assert found.exploding_layers["b"].kind is ExplosionKind.INFINITE
    assert all(i.severity is ExplosionSeverity.CRITICAL for i in found.exploding_layers.values())
    assert found.overall_severity is ExplosionSeverity.CRITICAL
    assert found.max_gradient_norm == 3.0
    assert found.global_norm is None
    assert found.missing["global_norm"] == "a layer is not finite"
    assert Mitigation.FIND_NON_FINITE in found.mitigation_recommendations
    large = detect_gradient_explosion({"a": [200.0], "c": [3.0]}, 100.0)
    assert large.exploding_layers["a"].kind is ExplosionKind.LARGE


def test_every_mitigation_has_a_cause_and_a_sentence() -> None:
    quiet = detect_gradient_explosion([[1.0], [2.0]], 5.0)
    assert quiet.mitigation_recommendations == ()
    loud = detect_gradient_explosion([[np.nan], [600.0], [600.0], [1.0], [1.0], [1.0], [1.0]], 5.0)
    assert set(loud.mitigation_recommendations) == set(Mitigation)
    assert all(code.advice.endswith(".") for code in Mitigation)


@pytest.mark.parametrize("gradients", [{}, {"a": []}])
def test_nothing_gives_nothing(gradients) -> None:
    found = detect_gradient_explosion(gradients, 1.0)
    assert found.overall_severity is ExplosionSeverity.NONE
    assert found.mean_gradient_norm is None
    assert found.missing["explosion_ratio"] == "there are no gradients"


def naive_ratios(norms: list[float]) -> list[float | None]:
    """Each norm over the median of the others, in a plain loop."""
    ratios: list[float | None] = []
    for index, norm in enumerate(norms):
        others = sorted(norms[:index] + norms[index + 1 :])
        usual = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2 if others else 0.0
        ratios.append(norm / usual if usual > 0 else None)
    return ratios


def test_ratios_to_the_others_are_those_of_a_loop() -> None:
    for _ in range(50):
        norms = RNG.choice([0.0, 1.0, 1.0, 2.0, 5.0, 5.0, 700.0], RNG.integers(1, 12)).tolist()
        found = detect_gradient_explosion([[norm] for norm in norms], 0.5).exploding_layers
        expected = {str(i): r for i, r in enumerate(naive_ratios(norms)) if norms[i] > 0.5}
        assert {name: layer.ratio_to_others for name, layer in found.items()} == expected


def test_a_layer_that_is_not_finite_is_no_other_layer() -> None:
    gradients = {"a": [np.nan, 30.0], "b": [2.0], "c": [4.0], "d": [8.0]}
    found = detect_gradient_explosion(gradients, 3.0).exploding_layers
    assert {n: layer.ratio_to_others for n, layer in found.items()} == {
        "a": 30.0 / 4.0,
        "c": 4.0 / 5.0,
        "d": 8.0 / 3.0,
    }


def test_large_numbers_stay_in_the_range() -> None:
    found = detect_gradient_explosion({"a": np.full(10, 1e200), "b": np.ones(3)}, 5.0)
    norms = [math.sqrt(10) * 1e200, math.sqrt(3)]
    assert found.max_gradient_norm == found.global_norm == pytest.approx(norms[0])
    assert found.mean_gradient_norm == pytest.approx(norms[0] / 2)
    assert found.std_gradient_norm == pytest.approx(norms[0] / 2)
    layer = found.exploding_layers["a"]
    assert layer.severity is found.overall_severity is ExplosionSeverity.CRITICAL
    assert layer.decades_above_threshold == pytest.approx(math.log10(norms[0]) - math.log10(5))


def test_small_numbers_stay_in_the_range() -> None:
    found = detect_gradient_explosion({"a": [3e-200], "b": [4e-200]}, 1e-300)
    assert found.global_norm == pytest.approx(5e-200)
    assert found.std_gradient_norm == pytest.approx(0.5e-200)
    assert found.exploding_layers["a"].decades_above_threshold == pytest.approx(100.477, abs=1e-3)


def test_norms_beyond_the_largest_number_are_none() -> None:
    found = detect_gradient_explosion({"a": np.full(10, 1.7e308), "b": [1e-9], "c": [1.0]}, 5.0)
    layer = found.exploding_layers["a"]
    assert (layer.kind, layer.severity) == (ExplosionKind.LARGE, ExplosionSeverity.CRITICAL)
    assert found.overall_severity is ExplosionSeverity.CRITICAL
    for result, field in (
        (layer, "gradient_norm"),
        (layer, "ratio_to_others"),
        (layer, "decades_above_threshold"),
        (found, "max_gradient_norm"),
        (found, "std_gradient_norm"),
        (found, "global_norm"),
        (found, "clip_coefficient"),
    ):
        assert getattr(result, field) is None
        assert "larger than the largest number" in result.missing[field]


def test_no_number_is_infinite_whatever_comes() -> None:
    sizes = [0.0, 1e-308, 1e-200, 1.0, 1e154, 1e200, 1.7e308, np.inf, np.nan]
    for _ in range(200):
        gradients = [RNG.choice(sizes, RNG.integers(0, 4)) for _ in range(RNG.integers(1, 6))]
        threshold = float(RNG.choice([1e-300, 1.0, 1e300]))
        found = detect_gradient_explosion(gradients, threshold)
        written = found.to_json()
        assert not re.search(r"[:\[,] *\"?-?(NaN|Infinity)", written), written


def test_no_gradient_and_empty_ones_are_left_out_and_counted() -> None:
    gradients = [np.empty(0), np.array([100.0]), None, [3.0, 4.0]]
    found = detect_gradient_explosion(gradients, 4.5)
    assert {name: layer.layer_index for name, layer in found.exploding_layers.items()} == {
        "1": 1,
        "3": 3,
    }
    assert found.explosion_ratio == 1.0
    same = detect_gradient_explosion(gradients, 4.5, rules="original")
    assert [layer.layer_index for layer in same.exploding_layers] == [1, 3]


def test_a_run_is_judged_by_its_last_gradients() -> None:
    run = Run.from_norms({"a": [1.0, 50.0], "b": [90.0, None], "c": [1.0, math.inf]})
    found = detect_gradient_explosion(run, 10.0)
    assert {n: (e.kind, e.gradient_norm) for n, e in found.exploding_layers.items()} == {
        "a": (ExplosionKind.LARGE, 50.0),
        "b": (ExplosionKind.LARGE, 90.0),
        "c": (ExplosionKind.INFINITE, None),
    }
    arrays = Run.from_arrays({"a": [[1.0, 0.0], [30.0, 40.0]], "b": [[90.0], None]})
    expected = detect_gradient_explosion({"a": [30.0, 40.0], "b": [90.0]}, 10.0)
    assert detect_gradient_explosion(arrays, 10.0) == expected
    with pytest.raises(GradwatchError, match="arrays themselves"):
        detect_gradient_explosion(run, 10.0, rules="original")


def test_a_hundred_thousand_layers_are_compared_with_the_others() -> None:
    norms = np.arange(100_000.0)[:, None]  # a median for each of them would take minutes
    found = detect_gradient_explosion(Run.from_norms(by_position(norms)), 99_989.5)
    assert [layer.ratio_to_others for layer in found.exploding_layers.values()] == [
        norm / 49_999.0 for norm in range(99_990, 100_000)
    ]


def by_position(norms: np.ndarray) -> dict[str, np.ndarray]:
    return {str(index): listed for index, listed in enumerate(norms)}


def test_complex_gradients_have_two_elements_a_place() -> None:
    (layer,) = detect_gradient_explosion([[3 + 4j]], 1.0).exploding_layers.values()
    assert layer.gradient_norm == 5.0
    (same,) = detect_gradient_explosion([[3 + 4j]], 1.0, rules="original").exploding_layers
    assert same.gradient_norm == 5.0


@pytest.mark.parametrize(
    "gradients",
    [
        [1.0, 2.0],
        np.ones(3),
        "text",
        None,
        {"my.a": "text"},
        {"my.a": [1.0, [2.0]]},
        {"my.a": [None]},
    ],
)
@pytest.mark.parametrize("rules", ["gradwatch", "original"])
def test_what_is_no_gradient_is_refused(gradients, rules) -> None:
    with pytest.raises(GradwatchError, match=r"^Expected .*(arrays by name|'my\.a')"):
        detect_gradient_explosion(gradients, 1.0, rules=rules)


@pytest.mark.parametrize("threshold", ["1", None, math.nan, 1j, [1.0]])
def test_a_threshold_that_is_no_number_is_refused(threshold) -> None:
    for rules in ("gradwatch", "original"):
        with pytest.raises(GradwatchError, match="for threshold, got"):
            detect_gradient_explosion([[1.0]], threshold, rules=rules)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(GradwatchError, match="one of 'gradwatch', 'original' for rules"):
        detect_gradient_explosion([[1.0]], 1.0, rules="seed")


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_a_meaningless_threshold_is_refused(threshold: float) -> None:
    with pytest.raises(GradwatchError, match="Expected a finite number above 0 for threshold"):
        detect_gradient_explosion([[1.0]], threshold)


def test_the_original_rules_are_a_keyword_away() -> None:
    found = detect_gradient_explosion({"a": [1e6], "b": [1.0]}, 5.0, rules="original")
    assert [(layer.layer_index, layer.severity) for layer in found.exploding_layers] == [(0, "Low")]
