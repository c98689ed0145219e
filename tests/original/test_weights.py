"""Weight distributions against every golden case."""

import numpy as np
import pytest
from tests.golden.reading import Sentences, cases, differences, numbers
from tests.original.inputs import tensor

from gradwatch.original import WeightAnalyzer
from gradwatch.original.weights import analyze_weight_distribution, compute_l2_norm

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("weight_distribution"), ids=lambda case: case["name"])
def test_weights_are_the_original_ones(case) -> None:
    tensors = [tensor(layer) for layer in numbers(case["input"])["layers"]]
    found = {
        "analysis": analyze_weight_distribution(tensors).to_dict(),
        "l2_norms": [compute_l2_norm(values) for values in tensors],
    }
    assert not list(differences(case["output"], found, SENTENCES, relative=1e-5))


def test_the_analyzer_is_called_as_in_the_original() -> None:
    tensors = [np.array([3.0, 4.0], np.float32)]
    assert WeightAnalyzer.compute_l2_norm(tensors[0]) == 5.0
    assert WeightAnalyzer.analyze_weight_distribution(tensors).distribution_health.score == 100
    assert WeightAnalyzer.detect_gradient_explosion(tensors, 1.0).max_gradient_norm == 5.0
