"""Gradient explosion against every golden case."""

import numpy as np
import pytest
from tests.golden.reading import Sentences, cases, differences, numbers

from gradwatch.original.weights import detect_gradient_explosion

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("gradient_explosion"), ids=lambda case: case["name"])
def test_explosions_are_the_original_ones(case) -> None:
    given = numbers(case["input"])
    gradients = [np.array(values, np.float32) for values in given["gradients"]]
    found = detect_gradient_explosion(gradients, given["threshold"]).to_dict()
    assert not list(differences(case["output"], found, SENTENCES, relative=1e-5))
