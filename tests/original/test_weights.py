"""Weight distributions against every golden case."""

from typing import Any

import numpy as np
import pytest
from tests.golden.reading import Sentences, cases, differences, numbers

from gradwatch.original.weights import analyze_weight_distribution, l2_norm

SENTENCES = Sentences()


def tensor(layer: dict[str, Any]) -> np.ndarray:
    """The array of a case; large ones come from a recipe."""
    if "recipe" in layer:
        return _recipe(layer["recipe"])
    data = np.array(layer["data"], np.float32).reshape(layer["shape"])
    return data.T if layer["reversed_axes"] else data


def _recipe(recipe: dict[str, Any]) -> np.ndarray:
    if recipe["kind"] == "constant":
        return np.full(recipe["n"], recipe["value"], np.float32)
    x, out = recipe["seed"], np.empty(recipe["n"])
    for i in range(recipe["n"]):
        x = (1103515245 * x + 12345) % 2**31
        out[i] = x
    return (out / 2**31 * recipe["scale"] + recipe["offset"]).astype(np.float32)


@pytest.mark.parametrize("case", cases("weight_distribution"), ids=lambda case: case["name"])
def test_weights_are_the_original_ones(case) -> None:
    tensors = [tensor(layer) for layer in numbers(case["input"])["layers"]]
    found = {
        "analysis": analyze_weight_distribution(tensors).to_dict(),
        "l2_norms": [l2_norm(values) for values in tensors],
    }
    assert not list(differences(case["output"], found, SENTENCES, relative=1e-5))
