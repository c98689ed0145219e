"""Every result of every analysis, under both rule books, is read back equal from its JSON."""

import json
import math
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import gradwatch.analysis
import gradwatch.original
from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.drift import analyze_drift
from gradwatch.analysis.explosion import detect_gradient_explosion
from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.analysis.weights import analyze_weights
from gradwatch.result import Missing, Result
from gradwatch.run import Run

for package in (gradwatch.analysis, gradwatch.original):
    for found in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(found.name)


def subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("gradwatch."):
            yield below
        yield from subclasses(below)


CLASSES = sorted(set(subclasses(Result)), key=lambda kind: (kind.__module__, kind.__name__))


# -- what the analyses say -------------------------------------------------------------------------


def sick() -> Run:
    """Blocks of layers: sound, fading, exploding at the end, dead, and one that ends in NaN."""
    random = np.random.default_rng(0)
    ones = random.lognormal(0, 0.4, (12, 60))
    ones[2] *= np.logspace(0, -9, 60)
    ones[3, -6:] *= 1e6
    ones[4] = 0
    ones[5, -3:] = np.nan
    ones[6, 20:] = ones[7, 19:-1]
    loss = np.exp(-np.arange(60) / 20) + 0.01 * random.random(60)
    names = [f"block{i // 4}.layer{i}" for i in range(12)]
    return Run.from_norms(dict(zip(names, ones, strict=True)), scalars={"loss": loss})


def clean() -> Run:
    """Without NaN, where the original does not stop."""
    random = np.random.default_rng(1)
    norms = random.lognormal(0, 0.4, (5, 40)) * np.logspace(-9, 3, 5)[:, None]
    return Run.from_norms({f"net.{i}": row for i, row in enumerate(norms)})


def tensors(scale: float = 1.0) -> dict[str, Any]:
    random = np.random.default_rng(2)
    made = {f"net.{i}": random.normal(0, 1, (20, 20)) for i in range(3)}
    made["net.1"][0, 0] = 60.0
    made["net.2"] *= 0
    return {name: scale * tensor for name, tensor in made.items()}


def recorded(rules: str) -> Any:
    animator: Any = GradientFlowAnimator(rules=rules)
    for step in range(12):
        animator.record_step(step, {"a": [1.0, 2.0], "b": [1e9 * step], "c": [0.0], "d": []})
    return animator


REAL: dict[str, Callable[[], Result]] = {
    "gradients": lambda: analyze_gradients(sick()),
    "flow": lambda: analyze_flow(sick()),
    "weights": lambda: analyze_weights(tensors()),
    "drift": lambda: analyze_drift(tensors(), tensors(1.2)),
    "explosion": lambda: detect_gradient_explosion({**tensors(), "x": [math.inf]}, 5.0),
    "animator": lambda: recorded("gradwatch").recording(),
    "original gradients": lambda: analyze_gradients(clean(), rules="original"),
    "original flow": lambda: analyze_flow(clean(), rules="original"),
    "original weights": lambda: analyze_weights(tensors(), rules="original"),
    "original drift": lambda: analyze_drift(tensors(), tensors(1.2), rules="original"),
    "original explosion": lambda: detect_gradient_explosion(tensors(), 5.0, rules="original"),
    "original frame": lambda: recorded("original").frames()[0],
    "original summary": lambda: recorded("original").summary_report(),
}


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict"))


def refuse_numpy(tree: Any) -> None:
    if isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            refuse_numpy(item)
    else:
        assert type(tree) in (float, int, bool, str, type(None)), type(tree)


@pytest.mark.parametrize("name", REAL)
def test_a_real_result_is_read_back_equal(name: str) -> None:
    result = REAL[name]()
    strict(result.to_json())
    refuse_numpy(result.to_dict())
    for back in (
        type(result).from_json(result.to_json()),
        type(result).from_dict(result.to_dict()),
    ):
        assert back == result
        assert types_of(back) == types_of(result)
        assert back.to_json() == result.to_json()


def types_of(value: Any) -> Any:
    """The types of a result, as a tree; float and int are one where a float is asked for."""
    if isinstance(value, Result):
        return type(value), {name: types_of(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        return dict, {key: types_of(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):  # some are made when asked for
        return tuple, [types_of(item) for item in value]
    return float if type(value) is int else type(value)


# -- classes one by one, with what their types allow -----------------------------------------------


def sample(hint: Any, odd: bool) -> Any:
    """A value of this type; an odd one is empty, missing or not finite."""
    kind, inside = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Result):
        return made(hint, odd)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1 if odd else 0]
    if kind is Literal:
        return inside[0]
    if kind is tuple and inside[1:] == (...,):
        return () if odd and inside[0] is not float else (sample(inside[0], odd),) * 2
    if kind is tuple:
        return tuple(sample(item, odd) for item in inside)
    if kind is dict:
        return {"Infinity": sample(inside[1], odd), "a": sample(inside[1], False)}
    if kind in (Union, types.UnionType):
        return None if odd else sample(inside[0], odd)
    return {float: math.nan if odd else 0.1, int: 3, bool: True, str: "NaN" if odd else "a"}[hint]


def made(kind: type, odd: bool) -> Any:
    hints = get_type_hints(kind)
    values = {field.name: sample(hints[field.name], odd) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{n: Missing(f"no {n}") if v is None else v for n, v in values.items()})


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_class_of_results_is_read_back_equal(kind: Any, odd: bool) -> None:
    result = made(kind, odd)
    text = result.to_json(indent=2)
    strict(text)
    assert kind.from_json(text) == result
    assert kind.from_dict(result.to_dict()) == result
    assert kind.from_json(text) != made(kind, not odd) or not fields(kind)
    assert str(result).startswith(kind.__name__)


def test_there_are_classes_of_both_rule_books() -> None:
    modules = {kind.__module__.split(".")[1] for kind in CLASSES}
    assert modules == {"analysis", "original"}
    assert len(CLASSES) > 60
