"""JSON: strict, and reversible for everything a run can hold."""

import json
import math
from enum import StrEnum

import numpy as np
import pytest

from gradwatch import jsonio


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ("NaN", '"\\\\NaN"'),
        ("\\NaN", '"\\\\\\\\NaN"'),
        ("nan", '"nan"'),
        ([1, 2.5, None, True], "[1,2.5,null,true]"),
    ],
)
def test_every_value_is_strict_json_and_comes_back(value: object, text: str) -> None:
    written = jsonio.dumps(value)
    assert written == text
    json.loads(written, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    again = jsonio.loads(written)
    assert again == value or (again != again and value != value)


def test_arrays_enums_sets_and_strangers_have_a_plain_form() -> None:
    value = {Colour.RED: np.array([1.0, np.nan]), "set": {2, 1}, "odd": object, 3: np.float32(0.5)}
    plain = jsonio.loads(jsonio.dumps(value))
    assert jsonio.dumps(frozenset({"b", "a", Colour.RED})) == '["a","b","red"]'
    assert jsonio.dumps((np.int64(3), np.bool_(True))) == "[3,true]"
    assert plain["set"] == [1, 2]
    assert plain["3"] == 0.5
    assert plain["odd"] == str(object)
    assert plain["red"][0] == 1.0
    assert math.isnan(plain["red"][1])


def test_characters_beyond_ascii_are_kept_or_escaped() -> None:
    assert jsonio.dumps("ε") == '"ε"'
    assert jsonio.dumps("ε", ascii_only=True) == '"\\u03b5"'


def test_sets_of_different_things_and_circles_are_kept_as_far_as_possible() -> None:
    assert jsonio.dumps({3, "a", 1}) == '[1,3,"a"]'
    circle: list[object] = [1]
    circle.append(circle)
    assert jsonio.dumps(circle).startswith("[1,[1,[1,")
    assert "…" in jsonio.dumps(circle)


@pytest.mark.parametrize("indent", [None, 1])
def test_words_are_spelled_in_values_and_left_alone_elsewhere(indent: int | None) -> None:
    value = {"NaN": math.inf, 'a"NaN,': "x,NaN,y", "b": ["NaN", "\\\\Infinity", '"NaN"', -math.inf]}
    text = jsonio.dumps(value, indent=indent)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert jsonio.loads(text) == value
    assert json.loads(text) == jsonio.spelled(value)


def test_half_a_character_can_be_written_and_comes_back() -> None:
    text = jsonio.dumps({"a\udc80": "ε\ud800"})
    assert text.encode() == '{"a\\udc80":"ε\\ud800"}'.encode()
    assert jsonio.loads(text) == {"a\udc80": "ε\ud800"}
