"""The animator: frames against plain loops, the window, four writers, every level of health."""

import csv
import json
import math

import numpy as np
import pytest
from tests.analysis import loops
from tests.golden.reading import case

from gradwatch.analysis.animator import FlowAdvice, GradientFlowAnimator, GradientHealth
from gradwatch.errors import GradwatchError
from gradwatch.result import loads
from gradwatch.run import Run

RNG = np.random.default_rng(21)


def animated(steps, **options) -> GradientFlowAnimator:
    animator = GradientFlowAnimator(**options)
    for step, gradients in enumerate(steps):
        animator.record_step(step, gradients)
    return animator


def test_frames_agree_with_plain_loops() -> None:
    steps = [{"b": RNG.normal(size=(3, 4)), "a": RNG.normal(size=5) * 0.1} for _ in range(4)]
    for frame, gradients in zip(animated(steps).frames, steps, strict=True):
        assert [layer.name for layer in frame.layers] == ["b", "a"]  # as first recorded
        norms = {name: loops.norm(g.ravel().tolist()) for name, g in gradients.items()}
        for layer in frame.layers:
            values = [abs(x) for x in gradients[layer.name].ravel().tolist()]
            assert math.isclose(layer.mean_abs_grad, loops.mean(values), rel_tol=1e-12)
            assert layer.max_abs_grad == max(values)
            assert math.isclose(layer.grad_norm, norms[layer.name], rel_tol=1e-12)
            share = norms[layer.name] / max(norms.values())
            assert math.isclose(layer.flow_intensity, share, rel_tol=1e-12)


def test_decay_over_time_is_visible_only_over_the_run() -> None:
    animator = animated([{"a": [10.0**-step]} for step in range(9)])
    assert animator.to_ascii(scale="frame").splitlines()[3] == "    a  █████████"
    assert animator.to_ascii().splitlines()[3] == "    a  ██▓▓▒▒░░ "
    assert [frame.layers[0].run_intensity for frame in animator.frames][::4] == [1.0, 0.5, 0.0]


def test_scaling_all_gradients_changes_no_picture() -> None:
    steps = [{"a": RNG.normal(size=4), "b": RNG.normal(size=4) * 1e-3} for _ in range(20)]
    scaled = [{n: g * 2.0**-9 for n, g in gradients.items()} for gradients in steps]
    assert animated(steps).to_ascii() == animated(scaled).to_ascii()


def test_nan_inf_and_absence_have_their_own_signs() -> None:
    animator = animated([{"a": [1.0], "b": [np.nan, 2.0]}, {"a": [np.inf]}, {"a": [], "b": [2.0]}])
    rows = animator.to_ascii(scale="frame").splitlines()
    assert rows[3:] == ["    a  ▒!·", "    b  !·█"]
    first = animator.frames[0].layers[1]
    assert (first.nan_count, first.grad_norm) == (1, 2.0)
    absent = animator.frames[2].layers[0]
    assert absent.missing["grad_norm"] == "no gradient"
    assert not absent.is_vanishing


def test_the_window_drops_the_oldest_and_counts_on() -> None:
    animator = animated([{"a": [1.0]}] * 10, max_frames=4)
    summary = animator.summary()
    assert [frame.step for frame in animator.frames] == [6, 7, 8, 9]
    assert (summary.total_steps, summary.frames_retained) == (10, 4)
    assert (summary.first_step, summary.last_step) == (6, 9)


def test_every_level_of_health_is_reached() -> None:
    fine, dead, loud = {"a": [1.0], "b": [1.0], "c": [1.0]}, [1e-9], [1e4]
    levels = {
        GradientHealth.UNKNOWN: [],
        GradientHealth.HEALTHY: [fine] * 8,
        GradientHealth.MINOR_ISSUES: [fine | {"a": loud}] + [fine] * 7,  # an old spike
        GradientHealth.PROBLEMS_DETECTED: [fine | {"a": dead}] * 8,  # one of three is starved
        GradientHealth.CRITICAL: [fine | {"a": dead, "b": dead}] * 8,  # a dead majority
    }
    assert set(levels) == set(GradientHealth)
    for health, steps in levels.items():
        assert animated(steps).summary().overall_health is health
    exploding = animated([fine | {"b": loud}] * 8).summary()
    assert exploding.overall_health is GradientHealth.CRITICAL
    assert exploding.layers_with_exploding_grads == ("b",)


def test_nan_is_never_healthy() -> None:
    summary = animated([{"a": [1.0]}, {"a": [np.nan]}] + [{"a": [1.0]}] * 20).summary()
    assert summary.overall_health is GradientHealth.CRITICAL
    assert summary.layers_with_nonfinite_grads == ("a",)


def test_every_advice_has_a_cause_and_a_sentence() -> None:
    steps = [{"a": [1e-9], "b": [1e5], "c": [np.inf]}]
    assert set(animated(steps).summary().recommendations) == set(FlowAdvice)
    assert animated([{"a": [1.0]}]).summary().recommendations == ()
    assert all(code.advice.endswith(".") for code in FlowAdvice)


def test_csv_is_quoted_and_complete(tmp_path) -> None:
    names = ["a,b", 'x"y', "line\nbreak", "注意力"]
    animator = animated([{name: [float(i + 1)] for i, name in enumerate(names)}] * 2)
    path = animator.export_csv(tmp_path / "deep" / "flow.csv")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == names * 2
    assert [float(row["grad_norm"]) for row in rows] == [1.0, 2.0, 3.0, 4.0] * 2
    original = case("animator", "no_frames")["output"]["csv"].strip().split(",")
    assert list(rows[0])[: len(original)] == original


def test_json_is_strict_and_brings_everything_back(tmp_path) -> None:
    animator = animated([{"NaN": [1.0, np.nan]}, {"NaN": [np.inf]}])
    path = animator.export_json(tmp_path / "flow.json")
    json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    back = loads(path.read_text())
    assert back["format"] == 1
    assert back["frames"] == [frame.to_dict() for frame in animator.frames]
    assert back["summary"] == animator.summary().to_dict()
    assert back["frames"][0]["layers"][0]["name"] == "NaN"


def test_files_are_not_overwritten_by_accident(tmp_path) -> None:
    animator = animated([{"a": [1.0]}])
    path = animator.export_csv(tmp_path / "flow.csv")
    with pytest.raises(GradwatchError, match="already exists"):
        animator.export_csv(path)
    animator.export_csv(path, overwrite=True)
    with pytest.raises(GradwatchError, match="Could not write"):
        animator.export_json(path / "below" / "a.json")
    assert [item.name for item in tmp_path.iterdir()] == ["flow.csv"]


def test_many_frames_fit_the_line_and_hide_no_nan() -> None:
    steps = [{"a": [1.0]}] * 950
    steps[333] = {"a": [np.nan]}
    lines = animated(steps).to_ascii(columns=50).splitlines()
    assert len(lines[3]) == len("layer  ") + 50
    assert lines[3].count("!") == 1
    assert lines[1].startswith("layer  0         190")


def test_wide_names_and_control_characters_keep_the_table_straight() -> None:
    lines = animated([{"注意力层": [1.0], "a\x1b[31m": [1.0]}]).to_ascii().splitlines()
    assert lines[3] == "注意力层  █"
    assert "\x1b" not in lines[4]


def test_steps_must_increase() -> None:
    animator = animated([{"a": [1.0]}])
    with pytest.raises(GradwatchError, match="Expected a step after 0, got 0"):
        animator.record_step(0, {"a": [1.0]})


@pytest.mark.parametrize(
    "options", [{"max_frames": -1}, {"vanishing_threshold": 1.0, "exploding_threshold": 0.5}]
)
def test_nonsense_is_refused(options) -> None:
    with pytest.raises(GradwatchError, match="Expected max_frames"):
        GradientFlowAnimator(**options)


def test_thresholds_change_the_flags() -> None:
    steps = [{"a": [0.5]}]
    assert animated(steps, vanishing_threshold=0.6).frames[0].layers[0].is_vanishing
    assert animated(steps, exploding_threshold=0.4).frames[0].layers[0].is_exploding


def test_a_run_gives_the_same_frames() -> None:
    steps = [{"a": RNG.normal(size=(2, 3)), "b": RNG.normal(size=4)} for _ in range(5)]
    steps[2]["b"][1] = np.nan
    run = Run.from_arrays({name: [s[name] for s in steps] for name in ("a", "b")})
    assert GradientFlowAnimator.from_run(run).frames == animated(steps).frames
    assert len(GradientFlowAnimator.from_run(run, max_frames=2).frames) == 2


def test_norms_alone_do_not_tell_what_vanishes() -> None:
    animator = GradientFlowAnimator.from_run(Run.from_norms({"a": [1.0, 0.1, 0.01]}))
    layer = animator.frames[0].layers[0]
    assert layer.grad_norm == 1.0
    assert layer.is_vanishing is None
    assert layer.missing["is_vanishing"] == "only the norm was recorded"
    assert animator.summary().overall_health is GradientHealth.UNKNOWN
    bad = GradientFlowAnimator.from_run(Run.from_norms({"a": [1.0, math.nan]}))
    assert bad.summary().overall_health is GradientHealth.CRITICAL


def test_the_original_rules_are_a_keyword_away(tmp_path) -> None:
    animator = GradientFlowAnimator(rules="original")
    animator.record_step(0, {"a": [0.3, -0.4], "b": [3.0, 4.0]})
    text = animator.export_csv(tmp_path / "a.csv").read_text()
    assert "0,a,3.50000000e-1,4.00000000e-1,5.00000000e-1,0,0" in text
