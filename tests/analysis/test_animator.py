"""The animator: frames against plain loops, the window, four writers, one mind with diagnose."""

import csv
import json
import math
import time

import numpy as np
import pytest
from tests.analysis import loops
from tests.golden.reading import case

from gradwatch.analysis.animator import (
    FlowAdvice,
    GradientFlowAnimator,
    GradientHealth,
    Recording,
)
from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.verdict import verdicts
from gradwatch.errors import GradwatchError
from gradwatch.jsonio import loads
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
    assert animator.to_ascii().splitlines()[3] == "    a  ██▓▓▒▒░░░"
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


def test_only_zero_is_blank() -> None:
    steps = [{"dead": [0.0], "least": [1e-30], "most": [1.0]}] * 3
    for scale in ("run", "frame"):
        rows = animated(steps).to_ascii(scale=scale).splitlines()
        assert rows[3:] == [" dead     ", "least  ░░░", " most  ███"]


def test_no_gradient_is_not_a_bad_one() -> None:
    animator = animated([{"frozen": None, "b": [1.0]}] * 3)
    frozen = animator.frames[0].layers[0]
    assert frozen.missing["grad_norm"] == frozen.missing["is_vanishing"] == "no gradient"
    assert (frozen.nan_count, frozen.inf_count) == (0, 0)
    assert animator.to_ascii().splitlines()[3] == "frozen  ···"
    summary = animated([{"frozen": None, "b": [1.0]}]).summary()
    assert summary.overall_health is GradientHealth.HEALTHY


FINE = {"a": [1.0], "b": [1.0], "c": [1.0]}
SICK: dict[str, tuple[GradientHealth, list[dict[str, list[float]]]]] = {
    "nothing": (GradientHealth.UNKNOWN, []),
    "sound": (GradientHealth.HEALTHY, [FINE] * 12),
    "large": (GradientHealth.MINOR_ISSUES, [FINE | {"a": [200.0]}] * 12),
    "huge": (GradientHealth.PROBLEMS_DETECTED, [FINE | {"b": [5e3]}] * 12),
    "starved": (GradientHealth.PROBLEMS_DETECTED, [FINE | {"a": [1e-9]}] * 12),
    "enormous": (GradientHealth.CRITICAL, [FINE] * 11 + [FINE | {"b": [1e7]}]),
    "dead": (GradientHealth.CRITICAL, [FINE | {"c": [0.0]}] * 12),
    "nan": (GradientHealth.CRITICAL, [FINE] * 11 + [FINE | {"a": [np.nan]}]),
}


@pytest.mark.parametrize("name", SICK)
def test_health_and_lists_are_those_of_the_findings(name: str) -> None:
    health, steps = SICK[name]
    summary = animated(steps).summary()
    assert summary.overall_health is health
    norms = {layer: [abs(step[layer][0]) for step in steps] for layer in FINE}
    run = Run.from_norms(norms)
    if steps:
        arrays = Run.from_arrays({layer: [step[layer] for step in steps] for layer in FINE})
        assert GradientFlowAnimator.from_run(arrays).summary() == summary
    for other in (summary, GradientFlowAnimator.from_run(run).summary()):
        for trouble, layers in {
            Trouble.VANISHING: other.layers_with_vanishing_grads,
            Trouble.EXPLODING: other.layers_with_exploding_grads,
            Trouble.NON_FINITE: other.layers_with_nonfinite_grads,
            Trouble.DEAD: other.layers_with_dead_grads,
        }.items():
            assert set(layers) == set(verdicts(run).layers_with(trouble))
    assert {health for health, _ in SICK.values()} == set(GradientHealth)


def test_flags_stand_on_the_steps_beyond_the_limit() -> None:
    steps = [FINE] * 10 + [FINE | {"b": [1e7]}] * 2
    frames = animated(steps).frames
    assert [f.step for f in frames if f.layers[1].is_exploding] == [10, 11]
    assert not any(layer.is_vanishing for frame in frames for layer in frame.layers)
    starved = animated(SICK["starved"][1]).frames
    assert all([layer.is_vanishing for layer in f.layers] == [True, False, False] for f in starved)


def test_every_advice_has_a_cause_and_a_sentence() -> None:
    steps = [{"a": [1e-9], "b": [1e5], "c": [1.0], "d": [0.0]}] * 12
    steps.append(steps[0] | {"c": [np.inf]})
    assert set(animated(steps).summary().recommendations) == set(FlowAdvice)
    assert animated([{"a": [1.0]}]).summary().recommendations == ()
    assert all(code.advice.endswith(".") for code in FlowAdvice)


def test_nan_is_never_healthy() -> None:
    summary = animated([{"a": [1.0]}, {"a": [np.nan]}] + [{"a": [1.0]}] * 20).summary()
    assert summary.overall_health is GradientHealth.CRITICAL
    assert summary.layers_with_nonfinite_grads == ("a",)


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
    "options",
    [
        {"max_frames": -1},
        {"max_frames": 1.5},
        {"vanishing_threshold": "x"},
        {"vanishing_threshold": -1.0},
        {"vanishing_threshold": 1.0, "exploding_threshold": 0.5},
        {"exploding_threshold": np.nan},
        {"rules": "mine"},
        {"rules": "original", "max_frames": -1},
        {"rules": "original", "max_frames": "x"},
        {"rules": "original", "vanishing_threshold": "x"},
        {"rules": "original", "exploding_threshold": np.nan},
    ],
)
def test_nonsense_is_refused(options) -> None:
    with pytest.raises(GradwatchError, match=rf"Expected .* for {list(options)[-1]}, got"):
        GradientFlowAnimator(**options)


@pytest.mark.parametrize(
    ("step", "gradients", "words"),
    [
        (1.0, {"a": [1.0]}, "a whole number of at least 0 for step, got 1.0"),
        ("1", {"a": [1.0]}, "a whole number of at least 0 for step, got '1'"),
        (-1, {"a": [1.0]}, "a whole number of at least 0 for step, got -1"),
        (1, {"a": ["x"]}, r"Expected numbers in 'a', got \['x'\]"),
        (1, {"a": object()}, "Expected numbers in 'a'"),
        (1, {"a": [[1.0], [1.0, 2.0]]}, "Expected numbers in 'a'"),
        (1, "text", "Expected gradients by name, got 'text'"),
        (1, np.ones(3), "Expected gradients by name, got an array"),
    ],
)
def test_what_is_no_step_is_refused_in_a_sentence(step, gradients, words: str) -> None:
    animator = animated([{"a": [1.0]}])
    with pytest.raises(GradwatchError, match=words):
        animator.record_step(step, gradients)
    assert animator.summary().total_steps == 1


def test_what_is_no_way_of_drawing_is_refused() -> None:
    with pytest.raises(GradwatchError, match="for scale, got 'x'"):
        animated([]).to_ascii(scale="x")
    with pytest.raises(GradwatchError, match="for columns, got 0"):
        animated([]).to_ascii(columns=0)


def test_limits_of_ones_own_decide_instead() -> None:
    steps = [{"a": [0.5], "b": [2.0]}] * 12
    low = animated(steps, vanishing_threshold=0.6)
    assert [layer.is_vanishing for layer in low.frames[0].layers] == [True, False]
    assert low.summary().layers_with_vanishing_grads == ("a",)
    assert low.summary().overall_health is GradientHealth.PROBLEMS_DETECTED
    assert low.summary().vanishing_threshold == 0.6
    assert low.summary().missing["exploding_threshold"] == "as diagnose judges"
    high = animated(steps, exploding_threshold=1.0)
    assert high.frames[0].layers[1].is_exploding
    assert high.summary().layers_with_exploding_grads == ("b",)
    starved = animated(SICK["starved"][1], vanishing_threshold=1e-12).summary()
    assert starved.layers_with_vanishing_grads == ()
    assert starved.overall_health is not GradientHealth.HEALTHY  # diagnose has not changed its mind


def test_tensors_of_torch_are_taken() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    animator = animated([{"a": weight, "b": torch.ones(4, dtype=torch.bfloat16), "c": None}])
    assert [layer.grad_norm for layer in animator.frames[0].layers] == [5.0, 2.0, None]


def test_names_of_half_characters_are_written(tmp_path) -> None:
    animator = animated([{"a\udc80": [1.0]}])
    path = animator.export_json(tmp_path / "flow.json")
    assert Recording.from_json(path.read_bytes()) == animator.recording()
    assert "a\\udc80" in animator.export_csv(tmp_path / "flow.csv").read_text()


def test_a_thousand_layers_are_judged_in_half_a_second() -> None:
    gradients = {f"l{i}": g for i, g in enumerate(RNG.normal(size=(1000, 4, 2)))}
    animator = animated([gradients] * 50)
    start = time.process_time()
    assert animator.summary().overall_health is GradientHealth.HEALTHY
    assert time.process_time() - start < 0.5  # every layer by itself would take seconds


def test_a_run_gives_the_same_frames() -> None:
    steps = [{"a": RNG.normal(size=(2, 3)), "b": RNG.normal(size=4)} for _ in range(5)]
    steps[2]["b"][1] = np.nan
    run = Run.from_arrays({name: [s[name] for s in steps] for name in ("a", "b")})
    assert GradientFlowAnimator.from_run(run).frames == animated(steps).frames
    assert len(GradientFlowAnimator.from_run(run, max_frames=2).frames) == 2
    arrays = {name: [s[name] for s in steps] for name in ("a", "b")}
    assert GradientFlowAnimator.from_run(arrays).frames == animated(steps).frames
    with pytest.raises(GradwatchError, match=r"Expected a Run, .* got 3.0"):
        GradientFlowAnimator.from_run(3.0)


def test_norms_alone_are_judged_and_say_what_they_lack() -> None:
    run = Run.from_norms({"a": [1.0, 0.1, 0.01]})
    layer = GradientFlowAnimator.from_run(run).frames[0].layers[0]
    assert layer.grad_norm == 1.0
    assert layer.is_vanishing is False
    assert layer.missing["mean_abs_grad"] == "only the norm was recorded"
    limited = GradientFlowAnimator.from_run(run, vanishing_threshold=0.5).frames[0].layers[0]
    assert limited.missing["is_vanishing"] == "only the norm was recorded"
    bad = GradientFlowAnimator.from_run(Run.from_norms({"a": [1.0, math.nan]}))
    assert bad.summary().overall_health is GradientHealth.CRITICAL


def test_a_window_on_a_run_is_judged_by_the_whole_run() -> None:
    run = Run.from_norms({"a": [1e7] * 3 + [1.0] * 30, "b": [1.0] * 33})
    animator = GradientFlowAnimator.from_run(run, max_frames=5)
    assert animator.summary().layers_with_exploding_grads == ("a",)
    assert not any(layer.is_exploding for frame in animator.frames for layer in frame.layers)
    with pytest.raises(GradwatchError, match="one that shows a run"):
        animator.record_step(99, {"a": [1.0]})


def test_the_original_rules_are_a_keyword_away(tmp_path) -> None:
    animator = GradientFlowAnimator(rules="original")
    animator.record_step(0, {"a": [0.3, -0.4], "b": [3.0, 4.0]})
    text = animator.export_csv(tmp_path / "a.csv").read_text()
    assert "0,a,3.50000000e-1,4.00000000e-1,5.00000000e-1,0,0" in text
