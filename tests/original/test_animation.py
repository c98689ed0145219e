"""The animator against every golden case, and what the original's ten tests ask of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.reading import Sentences, cases, differences
from tests.original.both_books import original

from gradwatch.original import GradientFlowAnimator
from gradwatch.original.animation import GradientFrame, LayerGradientInfo

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("animator"), ids=lambda case: case["name"])
def test_animation_is_the_original_one(case) -> None:
    found, expected = original("animator", case), case["output"]
    for name in ("frames", "summary"):
        assert not list(differences(expected[name], found[name], SENTENCES))
    assert found["csv"] == expected["csv"]
    assert found["ascii"].splitlines()[1:] == expected["ascii"].splitlines()[1:]
    assert found["ascii"].endswith("\n")
    texts = found["export_json_text"], expected["export_json_text"]
    assert json.loads(texts[0]) == json.loads(texts[1])
    assert _bare(texts[0]) == _bare(texts[1])


def _bare(text: str) -> list[str]:
    """Layout without the numbers: Rust and Python write exponents differently (1e-6, 1e-06)."""
    return [line.split(": ")[0] for line in text.splitlines()]


def test_the_step_counter_wraps_like_the_release_build() -> None:
    animator = GradientFlowAnimator()
    animator.record_step(2**64 - 1, {"a": [1.0]})
    assert animator.summary_report().total_steps == 0


# -- what the original's own ten tests ask ---------------------------------------------------------


def recorded(*steps: dict[str, list[float]], max_frames: int = 0) -> GradientFlowAnimator:
    animator = GradientFlowAnimator(max_frames)
    for step, gradients in enumerate(steps):
        animator.record_step(step, gradients)
    return animator


def of(animator: GradientFlowAnimator, name: str) -> LayerGradientInfo:
    return next(layer for layer in animator.frames()[0].layers if layer.name == name)


def test_1_a_step_is_a_frame_with_all_its_layers() -> None:
    (frame,) = recorded({"attention": [0.01] * 4, "mlp": [0.01] * 4}).frames()
    assert len(frame.layers) == 2


def test_2_no_more_than_max_frames_are_kept() -> None:
    assert len(recorded(*[{"a": [0.1] * 4}] * 10, max_frames=3).frames()) == 3


def test_3_below_its_own_threshold_a_layer_vanishes() -> None:
    animator = GradientFlowAnimator(0).with_vanishing_threshold(1e-6)
    animator.record_step(0, {"first": [1e-8, 1e-8], "last": [0.01, 0.01]})
    assert of(animator, "first").is_vanishing
    assert not of(animator, "last").is_vanishing


def test_4_above_its_own_threshold_a_layer_explodes() -> None:
    animator = GradientFlowAnimator(0).with_exploding_threshold(100.0)
    animator.record_step(0, {"bad": [500.0, 200.0], "good": [0.1, 0.1]})
    assert of(animator, "bad").is_exploding
    assert not of(animator, "good").is_exploding


def test_5_intensity_lies_between_0_and_1() -> None:
    (frame,) = recorded({"large": [1.0] * 10, "small": [0.001] * 10}).frames()
    assert all(0.0 <= layer.flow_intensity <= 1.0 for layer in frame.layers)


def test_6_the_json_file_is_a_list_of_frames(tmp_path: Path) -> None:
    animator = recorded(*({"a": [value] * 4, "b": [value] * 4} for value in (0.1, 0.05)))
    data = json.loads(animator.export_json(tmp_path / "frames.json").read_text())
    assert [GradientFrame.from_dict(frame) for frame in data] == animator.frames()
    assert len(data) == 2


def test_7_the_csv_file_has_a_heading_and_a_row_for_each_frame(tmp_path: Path) -> None:
    animator = recorded({"encoder": [0.2] * 4}, {"encoder": [0.18] * 4})
    lines = animator.export_csv(tmp_path / "frames.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step,layer,mean_abs_grad")


def test_8_an_animation_without_frames_says_so() -> None:
    assert "no gradient frames" in GradientFlowAnimator(0).to_ascii_animation()


def test_9_an_animation_names_every_layer() -> None:
    steps: Any = [{"embedding": [0.1 * i] * 4, "attention": [0.1 * i] * 4} for i in range(5)]
    text = recorded(*steps).to_ascii_animation()
    assert "embedding" in text
    assert "attention" in text


def test_10_steady_gradients_are_healthy() -> None:
    summary = recorded(*[{"layer": [0.1] * 4}] * 5).summary_report()
    assert summary.overall_health == "Healthy"
    assert not summary.layers_with_vanishing_grads
    assert not summary.layers_with_exploding_grads
