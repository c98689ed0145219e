"""The inputs of a golden case, as the original rules take them."""

from typing import Any

import numpy as np
from tests.golden.reading import numbers

from gradwatch.original.arithmetic import GradientHistory


def stops(case: dict[str, Any]) -> bool:
    """Whether NaN is among norms to be sorted: the golden program goes on, the seed panics."""
    return any("NaN" in item["norms"] for item in case["input"].get("histories", ()))


def histories(case: dict[str, Any]) -> dict[str, GradientHistory]:
    return {item["layer_name"]: _history(item) for item in case["input"]["histories"]}


def _history(item: dict[str, Any]) -> GradientHistory:
    """A queue keeps its last samples; even one of length 0 keeps one."""
    kept = slice(-max(item["max_history_length"], 1), None)
    return GradientHistory(numbers(item["norms"])[kept], item["steps"][kept])


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
    scaled = out / 2**31 * float(recipe["scale"]) + float(recipe["offset"])
    return scaled.astype(np.float32)
