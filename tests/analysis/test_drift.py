"""Drift against plain loops, its levels, and what a run can and cannot tell."""

import math

import numpy as np
import pytest
from tests.analysis import loops
from tests.making import make_run

from gradwatch.analysis.drift import WeightDriftSeverity, analyze_drift
from gradwatch.errors import GradwatchError

RNG = np.random.default_rng(13)


def states(moved: float = 0.03) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    before = {f"l{i}": RNG.normal(size=(20, 5 + i)) for i in range(5)}
    before["l0"][before["l0"] < 0] = 0.0
    after = {n: w + moved * RNG.normal(size=w.shape) for n, w in before.items()}
    return before, after


def test_every_number_agrees_with_plain_loops() -> None:
    before, after = states()
    found = analyze_drift(before, after)
    for name, layer in found.layers.items():
        a, b = before[name].ravel().tolist(), after[name].ravel().tolist()
        right, wrong = loops.drift(a, b), loops.drift(a, b, wrong="reversed time")
        for field, value in right.items():
            assert math.isclose(getattr(layer, field), value, rel_tol=1e-9, abs_tol=1e-12), field
        assert not math.isclose(layer.relative_change, wrong["relative_change"], rel_tol=1e-6)
    sizes = {name: layer.count for name, layer in found.layers.items()}
    total = sum(layer.relative_change * sizes[n] for n, layer in found.layers.items())
    assert math.isclose(found.mean_drift, total / sum(sizes.values()), rel_tol=1e-12)


@pytest.mark.parametrize(
    ("factor", "severity"),
    [
        (1.0, WeightDriftSeverity.MINIMAL),
        (1.02, WeightDriftSeverity.LOW),
        (1.07, WeightDriftSeverity.MEDIUM),
        (0.8, WeightDriftSeverity.HIGH),
    ],
)
def test_every_severity_is_reached(factor: float, severity: WeightDriftSeverity) -> None:
    before, _ = states()
    found = analyze_drift(before, {name: w * factor for name, w in before.items()})
    assert found.severity is severity
    assert found.mean_drift == pytest.approx(abs(factor - 1.0))


def test_scale_names_and_order_do_not_matter() -> None:
    before, after = states()
    there = analyze_drift(before, after)
    back = analyze_drift(
        {n[::-1]: w * 1e-200 for n, w in reversed(before.items())},
        {n[::-1]: w * 1e-200 for n, w in reversed(after.items())},
    )
    assert back.severity is there.severity
    assert math.isclose(back.mean_drift, there.mean_drift, rel_tol=1e-9)
    assert {n[::-1] for n in back.affected_layers} == set(there.affected_layers)


def test_moved_unmoved_and_affected_layers_are_told_apart() -> None:
    before, _ = states()
    after = {name: w * 1.01 for name, w in before.items()} | {"l3": before["l3"].copy()}
    after["l1"] = before["l1"] * 1.06
    found = analyze_drift(before, after)
    assert found.unmoved_layers == ("l3",)
    assert found.affected_layers == ("l1",)


def test_a_tensor_that_left_zero_moved_although_it_has_no_ratio() -> None:
    found = analyze_drift({"w": np.ones(4), "b": np.zeros(4)}, {"w": np.ones(4), "b": np.ones(4)})
    assert found.layers["b"].relative_change is None
    assert found.layers["b"].missing["relative_change"] == "the tensor was zero before"
    assert found.affected_layers == ("b",)
    assert found.mean_drift == 0.0


def test_nan_is_never_minimal() -> None:
    before, after = states(0.0)
    after["l2"][3, 3] = np.nan
    found = analyze_drift(before, after)
    assert found.severity is WeightDriftSeverity.HIGH
    assert found.nonfinite_layers == ("l2",)
    assert found.layers["l2"].nonfinite_after == 1
    assert found.layers["l2"].relative_change is None
    assert "NaN" in found.layers["l2"].missing["cosine"]


def test_names_that_came_and_went_are_listed() -> None:
    found = analyze_drift({"a": np.ones(2), "old": np.ones(2)}, {"a": np.ones(2), "new": [1.0]})
    assert (found.added_layers, found.removed_layers) == (("new",), ("old",))
    with pytest.raises(GradwatchError, match="same names"):
        analyze_drift({"a": [1.0]}, {"b": [1.0]})


def test_a_changed_shape_is_an_error() -> None:
    with pytest.raises(GradwatchError, match="keep its shape"):
        analyze_drift({"a": np.ones((2, 3))}, {"a": np.ones((3, 2))})


def _run(hashes: list[float], zeros: list[float]):
    return make_run(
        {
            "weight_mean": [[0.1, 0.2]],
            "weight_count": [[10, 10]],
            "weight_hash": [hashes],
            "weight_zero_fraction": [zeros],
            "weight_nan": [[0, 0]],
            "weight_inf": [[0, 0]],
        },
        names=["a.weight", "b.weight"],
    )


def test_two_runs_tell_what_hashes_and_statistics_tell() -> None:
    found = analyze_drift(_run([7, 8], [0.0, 0.5]), _run([7, 9], [0.0, 0.75]))
    assert found.unmoved_layers == ("a.weight",)
    assert found.layers["a.weight"].relative_change == 0.0
    assert found.layers["b.weight"].relative_change is None
    assert "needs the elements" in found.layers["b.weight"].missing["relative_change"]
    assert found.layers["b.weight"].sparsity_change == 0.25
    assert found.severity is WeightDriftSeverity.UNKNOWN
    with pytest.raises(GradwatchError, match="one of each"):
        analyze_drift(_run([7, 8], [0, 0]), {"a.weight": np.ones(10)})


def test_the_original_rules_are_a_keyword_away() -> None:
    found = analyze_drift({"a": np.zeros(4)}, {"a": np.full(4, 0.2)}, rules="original")
    assert found.severity == "High"
    with pytest.raises(GradwatchError, match="arrays themselves"):
        analyze_drift(_run([1, 1], [0, 0]), _run([1, 1], [0, 0]), rules="original")


# -- what may be handed in -------------------------------------------------------------------------


def test_lists_are_named_by_position() -> None:
    before, after = [[1.0, 2.0], np.ones((2, 2))], ([1.0, 3.0], np.ones((2, 2)))
    found = analyze_drift(before, after)
    assert found == analyze_drift({"0": before[0], "1": before[1]}, {"0": after[0], "1": after[1]})
    assert found.unmoved_layers == ("1",)
    assert found.layers["0"].relative_change == pytest.approx(1 / math.sqrt(5))
    assert analyze_drift(before, after, rules="original").mean_drift == 0.25


def test_the_imaginary_part_moves_too() -> None:
    found = analyze_drift({"w": np.array([1j, 0])}, {"w": np.array([2j, 0])})
    assert found.unmoved_layers == ()
    assert found.layers["w"].relative_change == 1.0
    assert found.layers["w"].count == 4
    turned = analyze_drift({"w": [1.0, 2.0]}, {"w": [1.0, 2j]})
    assert turned.layers["w"].changed_fraction == 0.5
    assert turned.layers["w"].relative_change == pytest.approx(math.sqrt(8 / 5))
    same = analyze_drift({"w": [1j]}, {"w": [2j]}, rules="original")
    assert same.mean_drift == 1.0


def test_the_ends_of_the_range_are_no_trouble() -> None:
    there = analyze_drift({"w": [1.7e308, -1.7e308]}, {"w": [-1.7e308, 1.7e308]})
    assert there.layers["w"].relative_change == 2.0
    assert there.layers["w"].cosine == -1.0
    left = analyze_drift({"w": [1e-200], "v": [0.0]}, {"w": [1e200], "v": [1.0]})
    assert left.layers["w"].missing["relative_change"].endswith("too small before to divide by")
    assert left.layers["v"].missing["relative_change"] == "the tensor was zero before"
    assert set(left.affected_layers) == {"w", "v"}
    far = analyze_drift({"w": [1e-150] * 2}, {"w": [1.0] * 2})
    assert far.layers["w"].relative_change == pytest.approx(1e150)
    analyze_drift({"w": [1.7e308]}, {"w": [-1.7e308]}, rules="original")


@pytest.mark.parametrize("rules", ["gradwatch", "original"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"my.w": ["a"]},
        {"my.w": "text"},
        {"my.w": None},
        {"my.w": [1.0, [2.0]]},
        {"my.w": [{}]},
        [1.0, 2.0],
        np.ones(2),
        "text",
        None,
        7,
    ],
)
def test_what_holds_no_weights_is_refused(wrong, rules) -> None:
    right = {"my.w": [1.0]}
    for states in ((wrong, right), (right, wrong), (wrong, wrong)):
        with pytest.raises(GradwatchError, match=r"^Expected .*(arrays by name|'my\.w')"):
            analyze_drift(*states, rules=rules)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(GradwatchError, match="for rules, got 'seed'"):
        analyze_drift([[1.0]], [[1.0]], rules="seed")
