"""Results become strict JSON and come back, NaN and Inf included."""

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import pytest

from gradwatch.errors import GradwatchError
from gradwatch.jsonio import dumps, loads
from gradwatch.result import AdviceCode, Result, missing


class Level(StrEnum):
    LOW = "Low"


class Advice(AdviceCode):
    CLIP = "clip", "Clip the norm."


class Inner(Result):
    level: Level
    score: float | None


class Outer(Result):
    layers: dict[str, Inner]
    values: tuple[float, ...]
    pairs: tuple[tuple[str, float], ...]
    by_layer: dict[str, float | None]
    extent: tuple[int, int] | None = None
    advice: tuple[Advice, ...] = ()
    inner: Inner | None = None
    word: Literal["High", "Low"] = "Low"


def _outer(**changed: Any) -> Outer:
    inner = Inner(Level.LOW, missing("needs the elements"))
    fields = {
        "layers": {"b": inner, "a": Inner(Level.LOW, 1.5)},
        "values": (1.0, math.nan, -math.inf),
        "pairs": (("NaN", 2.0),),
        "by_layer": {"b": None, "a": 0.5},
        "extent": (3, 9),
        "advice": (Advice.CLIP,),
    }
    return Outer(**(fields | changed))


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
    tree = _outer(inner=missing("there is one")).to_dict()
    assert list(tree) == [*(field.name for field in fields(Outer)), "missing"]
    assert list(tree["layers"]) == ["b", "a"]
    assert tree["layers"]["b"]["missing"] == {"score": "needs the elements"}
    assert tree["by_layer"] == {"b": None, "a": 0.5}
    assert tree["missing"] == {"inner": "there is one"}
    assert tree["extent"] == [3, 9]
    assert type(tree["advice"][0]) is str


def test_every_result_is_a_frozen_dataclass() -> None:
    inner = Inner(Level.LOW, 0.5)
    assert replace(inner, score=1.0) == Inner(Level.LOW, 1.0)
    with pytest.raises(FrozenInstanceError):
        inner.score = 1.0  # type: ignore[misc]


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    inner = Inner(Level.LOW, np.float32(0.5))
    assert type(inner.score) is float
    assert inner == Inner(Level.LOW, 0.5)


def test_strict_json_brings_non_finite_values_and_their_names_back() -> None:
    text = dumps(_outer())
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    assert _outer().to_json() == text
    back = loads(text)
    assert back["values"][0] == 1.0
    assert math.isnan(back["values"][1])
    assert back["values"][2] == -math.inf
    assert back["pairs"] == [["NaN", 2.0]]  # a layer of that name stays a name
    assert dumps(back) == text


@pytest.mark.parametrize("word", ["NaN", "\\NaN", "\\\\Infinity", "-Infinity", "plain", ""])
def test_words_survive_the_spelling(word: str) -> None:
    assert loads(dumps([word])) == [word]


def test_what_was_written_comes_back_equal_and_of_the_same_types() -> None:
    for written in (_outer(), _outer(extent=None, inner=missing("no"), word="High")):
        for indent in (None, 2):
            back = Outer.from_json(written.to_json(indent=indent))
            assert back == written
            assert back.missing == written.missing
            assert back.layers["b"].missing == {"score": "needs the elements"}
            assert type(back.layers["a"].level) is Level
            assert type(back.values) is tuple
        assert Outer.from_dict(written.to_dict()) == written
    assert back.advice[0].advice == "Clip the norm."


def test_fields_with_a_default_may_be_absent() -> None:
    tree = _outer(advice=()).to_dict()
    del tree["advice"], tree["word"]
    assert Outer.from_dict(tree) == _outer(advice=())


@pytest.mark.parametrize(
    "changed",
    [
        {"values": (1.0, 2.0, -math.inf)},
        {"values": (1.0, math.nan)},
        {"extent": missing("unknown")},
        {"extent": None},
        {"layers": {}},
        {"layers": {"b": Inner(Level.LOW, missing("another")), "a": Inner(Level.LOW, 1.5)}},
        {"layers": {"b": Inner(Level.LOW, math.nan), "a": Inner(Level.LOW, 1.5)}},
    ],
)
def test_equality_looks_at_everything(changed: dict[str, Any]) -> None:
    assert _outer() == _outer()
    assert hash(_outer()) == hash(_outer())
    assert _outer(**changed) == _outer(**changed)
    assert _outer(**changed) != _outer()
    assert _outer() != _outer().to_dict()


def test_a_missing_value_is_not_a_none_without_a_reason() -> None:
    assert _outer(extent=missing("unknown")) != _outer(extent=None)


def _spoilt(spoil: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tree = _outer().to_dict()
    spoil(tree)
    return tree


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "the fields of a Outer at the top, got 3"),
        ([], r"the fields of a Outer at the top, got \[\]"),
        (_spoilt(lambda d: d.pop("values")), "a value at values, got nothing"),
        (_spoilt(lambda d: d.update(odd=1)), "no such field at odd, got 1"),
        (_spoilt(lambda d: d.update(values=3)), "a list at values, got 3"),
        (_spoilt(lambda d: d.update(values=[1, True])), r"a number at values\[1\], got True"),
        (_spoilt(lambda d: d.update(extent=[1])), r"a list of 2 at extent, got \[1\]"),
        (_spoilt(lambda d: d.update(extent=[1, 2.5])), r"whole number at extent\[1\], got 2.5"),
        (_spoilt(lambda d: d.update(advice=["x"])), r"one of clip at advice\[0\], got 'x'"),
        (_spoilt(lambda d: d.update(word="Mid")), "one of High, Low at word, got 'Mid'"),
        (_spoilt(lambda d: d.update(layers=[1])), "names and their values at layers"),
        (
            _spoilt(lambda d: d["layers"]["a"].update(score="x")),
            r"a number at layers\['a'\].score, got 'x'",
        ),
        (
            _spoilt(lambda d: d["layers"]["a"].update(missing={"score": "why"})),
            r"null at layers\['a'\].missing.score",
        ),
        (_spoilt(lambda d: d.update(missing={"odd": "why"})), "null at missing.odd"),
        (_spoilt(lambda d: d.update(missing={"extent": 3})), r"a text at missing\['extent'\]"),
        (_spoilt(lambda d: d.update(missing=3)), "names and their values at missing"),
    ],
)
def test_wrong_data_is_refused_in_a_sentence_that_names_the_field(data: Any, words: str) -> None:
    with pytest.raises(GradwatchError, match=f"Expected the data of a Outer.*{words}"):
        Outer.from_dict(data)


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(GradwatchError, match="Expected the JSON of a Outer"):
        Outer.from_json("{")


def test_a_field_that_could_not_be_read_back_is_refused() -> None:
    class Odd(Result):
        values: np.ndarray

    with pytest.raises(TypeError, match="could not be read back"):
        Odd(np.ones(3)).to_dict()


def test_a_result_prints_as_a_short_outline() -> None:
    layers = {f"layer{i}": Inner(Level.LOW, 0.5) for i in range(1000)}
    result = _outer(layers=layers, inner=Inner(Level.LOW, missing("no loss")))
    assert str(result).splitlines() == [
        "Outer",
        "  layers: 1000 × Inner",
        "  values: 1, nan, -inf",
        "  pairs: NaN, 2",
        "  by_layer: b: –, a: 0.5",
        "  extent: 3, 9",
        "  advice: clip",
        "  inner: Inner",
        "    level: Low",
        "    score: – (no loss)",
        "  word: Low",
    ]
    assert repr(result) == (
        "Outer(layers=1000 × Inner, values=1, nan, -inf, pairs=NaN, 2, by_layer=b: –, a: 0.5, "
        "extent=3, 9, advice=clip, inner=Inner, word=Low)"
    )
    assert len(repr(_outer(values=tuple(np.pi * np.arange(10**5))))) < 200
