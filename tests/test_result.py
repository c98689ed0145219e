"""Results become strict JSON and come back, NaN and Inf included."""

import json
import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pytest

from gradwatch.result import Missing, Result, dumps, loads, missing, plain


class Level(StrEnum):
    LOW = "Low"


@dataclass(frozen=True)
class Inner(Result):
    level: Level
    score: float | None


@dataclass(frozen=True)
class Outer(Result):
    layers: dict[str, Inner]
    values: np.ndarray
    pairs: tuple[tuple[str, float], ...]
    by_layer: dict[str, float | Missing]


def _outer() -> Outer:
    inner = Inner(Level.LOW, missing("needs the elements"))
    return Outer(
        {"b": inner, "a": Inner(Level.LOW, 1.5)},
        np.array([1.0, np.nan, -np.inf]),
        (("NaN", 2.0),),
        {"b": Missing("not sampled"), "a": 0.5},
    )


def test_a_missing_value_reads_as_none_and_says_why() -> None:
    inner = Inner(Level.LOW, missing("needs the elements"))
    assert inner.score is None
    assert inner.missing == {"score": "needs the elements"}
    assert inner.to_dict() == {
        "level": "Low",
        "score": None,
        "missing": {"score": "needs the elements"},
    }
    assert Inner(Level.LOW, 1.0).missing == {}


def test_plain_form_keeps_order_names_and_reasons() -> None:
    tree = _outer().to_dict()
    assert list(tree) == ["layers", "values", "pairs", "by_layer", "missing"]
    assert list(tree["layers"]) == ["b", "a"]
    assert tree["by_layer"] == {"b": None, "a": 0.5}
    assert tree["missing"] == {"by_layer.b": "not sampled"}
    assert type(tree["values"][0]) is float


def test_strict_json_brings_non_finite_values_and_their_names_back() -> None:
    text = dumps(_outer())
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    back = loads(text)
    assert back["values"][0] == 1.0
    assert math.isnan(back["values"][1])
    assert back["values"][2] == -math.inf
    assert back["pairs"] == [["NaN", 2.0]]  # a layer of that name stays a name
    assert dumps(back) == text


@pytest.mark.parametrize("word", ["NaN", "\\NaN", "\\\\Infinity", "-Infinity", "plain", ""])
def test_words_survive_the_spelling(word: str) -> None:
    assert loads(dumps([word])) == [word]


def test_numpy_and_enum_values_become_plain() -> None:
    assert plain({Level.LOW: np.float32(0.5)}) == {"Low": 0.5}
    assert plain((np.int64(3), np.bool_(True))) == [3, True]
    assert plain(frozenset({"b", "a"})) == ["a", "b"]


def test_an_object_without_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="may not hold a object"):
        plain(object())
