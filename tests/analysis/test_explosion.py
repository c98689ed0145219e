"""Exploding gradients: order-independent, robust, honest about NaN and nothing."""

import math
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


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan, math.inf])
def test_a_meaningless_threshold_is_refused(threshold: float) -> None:
    with pytest.raises(GradwatchError, match="Expected a finite threshold above 0"):
        detect_gradient_explosion([[1.0]], threshold)


def test_the_original_rules_are_a_keyword_away() -> None:
    found = detect_gradient_explosion({"a": [1e6], "b": [1.0]}, 5.0, rules="original")
    assert [(layer.layer_index, layer.severity) for layer in found.exploding_layers] == [(0, "Low")]
