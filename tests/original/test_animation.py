"""The animator against every golden case: frames, files, cells and summary."""

import json

import pytest
from tests.golden.reading import Sentences, cases, differences, numbers

from gradwatch.original.animation import OriginalAnimator
from gradwatch.result import plain

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("animator"), ids=lambda case: case["name"])
def test_animation_is_the_original_one(case) -> None:
    given, expected = numbers(case["input"]), case["output"]
    limits = {
        name: given[name]
        for name in ("vanishing_threshold", "exploding_threshold")
        if given[name] is not None
    }
    animator = OriginalAnimator(given["max_frames"], **limits)
    for item in given["steps"]:
        animator.record_step(item["step"], item["gradients"])
    found = {"frames": plain(list(animator.frames)), "summary": animator.summary().to_dict()}
    part = {name: expected[name] for name in found}
    assert not list(differences(part, found, SENTENCES))
    assert animator.to_csv() == expected["csv"]
    assert animator.to_ascii().splitlines()[1:] == expected["ascii"].splitlines()[1:]
    assert animator.to_ascii().endswith("\n")
    assert json.loads(animator.to_json()) == json.loads(expected["export_json_text"])
    assert _bare(animator.to_json()) == _bare(expected["export_json_text"])


def _bare(text: str) -> list[str]:
    """Layout without the numbers: Rust and Python write exponents differently (1e-6, 1e-06)."""
    return [line.split(": ")[0] for line in text.splitlines()]


def test_the_step_counter_wraps_like_the_release_build() -> None:
    animator = OriginalAnimator()
    animator.record_step(2**64 - 1, {"a": [1.0]})
    assert animator.summary().total_steps == 0
