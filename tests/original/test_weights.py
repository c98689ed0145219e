"""Weight distributions against every golden case."""

import pytest
from tests.golden.reading import Sentences, cases, differences, numbers
from tests.original.inputs import tensor

from gradwatch.original.weights import analyze_weight_distribution, l2_norm

SENTENCES = Sentences()


@pytest.mark.parametrize("case", cases("weight_distribution"), ids=lambda case: case["name"])
def test_weights_are_the_original_ones(case) -> None:
    tensors = [tensor(layer) for layer in numbers(case["input"])["layers"]]
    found = {
        "analysis": analyze_weight_distribution(tensors).to_dict(),
        "l2_norms": [l2_norm(values) for values in tensors],
    }
    assert not list(differences(case["output"], found, SENTENCES, relative=1e-5))
