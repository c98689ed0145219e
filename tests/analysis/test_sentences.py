"""What a person is told first of each analysis."""

import numpy as np
import pytest

from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.sentences import sentences


@pytest.mark.parametrize(
    ("sick", "sentence"),
    [
        (np.zeros(20), "No gradient: sick."),
        (np.full(20, 1e7), "Exploding: sick."),
        (np.full(20, 1e-9), "Vanishing: sick."),
        (np.full(20, np.nan), "NaN or Inf: sick."),
    ],
)
def test_an_animation_names_the_layers_of_each_trouble(sick: np.ndarray, sentence: str) -> None:
    said = sentences(GradientFlowAnimator.from_run({"sick": sick, "ok": np.ones(20)}).summary())
    assert sentence in said
    assert not any("ok" in line for line in said if line.startswith(sentence.partition(":")[0]))


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_a_path_that_nothing_passes_says_where_it_ends(dead: str) -> None:
    flow = analyze_flow({name: np.full(20, float(name != dead)) for name in "abc"})
    assert f"From c back to a no gradient arrives: it ends at {dead}." in sentences(flow)


def test_a_path_that_gains_is_told_from_one_that_loses() -> None:
    rising = analyze_flow({"a": np.full(20, 10.0), "b": np.ones(20)})
    assert any("gains 1.0 decades" in line for line in sentences(rising))
    falling = analyze_flow({"a": np.full(20, 0.1), "b": np.ones(20)})
    assert any("loses 1.0 decades over 2 layers, most at a" in line for line in sentences(falling))


def test_there_are_no_sentences_for_anything_else() -> None:
    with pytest.raises(TypeError, match="no sentences for a int"):
        sentences(3)
