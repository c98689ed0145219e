"""What people hand in: arrays of every kind, norms, steps, options; and what is refused."""

import math
import tracemalloc
from enum import StrEnum

import numpy as np
import pytest

from gradwatch.errors import Exit, GradwatchError
from gradwatch.run import Run, as_array, as_run, choice, number, whole_number
from gradwatch.stats import State

NUMBERS = [[1.5, -2.0, 0.0], [0.25, 3.0, -0.5]]


@pytest.mark.parametrize(
    "value",
    [
        NUMBERS,
        tuple(map(tuple, NUMBERS)),
        np.array(NUMBERS, np.float16),
        np.array(NUMBERS)[:, ::-1][:, ::-1],
        [NUMBERS[0], np.array(NUMBERS[1])],
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_numbers_of_every_kind_are_read(value) -> None:
    assert as_array(value, "w").astype(float).tolist() == NUMBERS


def test_arrays_are_shared_and_not_copied() -> None:
    array = np.zeros(4)
    assert as_array(array, "w") is array


def test_complex_numbers_keep_both_parts() -> None:
    for value in (np.array([1 - 2j]), [1 - 2j]):
        assert as_array(value, "w").tolist() == [1 - 2j]


@pytest.mark.parametrize(
    "value",
    [
        "text",
        ["1.0", "2.0"],
        [1.0, [2.0, 3.0]],
        [1.0, None],
        None,
        {"a": 1.0},
        object(),
        np.array([1.0, None], object),
        np.array(["2020-01-01"], "M8[D]"),
        [10**400],
        (number for number in range(3)),
    ],
)
def test_what_holds_no_numbers_is_named_in_one_sentence(value) -> None:
    refuses(lambda: as_array(value, "my.weight"), "my.weight")


def refuses(make, *words: str) -> None:
    """One sentence for a person, with the words in it."""
    with pytest.raises(GradwatchError) as caught:
        make()
    sentence = str(caught.value)
    assert caught.value.exit_code == Exit.USAGE
    assert sentence.startswith("Expected ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 300
    for word in words:
        assert word in sentence


# -- runs from plain data --------------------------------------------------------------------------


def test_a_run_passes_through() -> None:
    run = Run.from_norms({"a": [1.0]})
    assert as_run(run) is run
    with pytest.raises(GradwatchError, match="has its own"):
        as_run(run, steps=[3])


@pytest.mark.parametrize(
    "data",
    [
        {"0": [3.0, 4.0], "1": [1, 2]},
        [[3.0, 4.0], [1, 2]],
        ([3.0, 4.0], np.array([1, 2])),
        {"0": [[3.0], [0.0, 4.0]], "1": np.array([[1.0], [-2.0]])},
    ],
)
def test_norms_and_arrays_become_a_run(data) -> None:
    run = as_run(data, steps=[5, 9], scalars={"loss": [1.0, None]})
    assert run.names == run.layers == ("0", "1")
    assert run.series["grad_norm"].tolist() == [[3.0, 1.0], [4.0, 2.0]]
    assert (run.state("grad_norm") == State.MEASURED).all()
    assert run.steps.tolist() == [5, 9]
    assert run.scalars["loss"][0] == 1.0
    assert math.isnan(run.scalars["loss"][1])


def test_names_are_kept() -> None:
    for run in (
        as_run({"x.weight": [3.0] * 4, "x.bias": [4.0] * 4, "x": [5.0] * 4}),
        as_run({"x.weight": [[3.0]] * 4, "x.bias": [[4.0]] * 4, "x": [[5.0]] * 4}),
    ):
        assert run.layers == run.names == ("x.weight", "x.bias", "x")
        assert run.series["grad_norm"][2].tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    "norms", [[1.0, None, 2.0], (1.0, None, 2.0), np.array([1.0, None, 2.0]), [[1.0], None, [2.0]]]
)
def test_none_is_no_gradient_and_not_nan(norms) -> None:
    run = as_run({"a": norms, "frozen": [None] * 3})
    assert run.state("grad_norm")[:, 0].tolist() == [0, State.NO_GRADIENT, 0]
    assert (run.state("grad_norm")[:, 1] == State.NO_GRADIENT).all()
    assert np.nansum(run.series["grad_nan"]) == np.nansum(run.series["grad_inf"]) == 0
    assert np.isnan(run.series["grad_nan"][1, 0])


def test_nan_and_infinite_norms_are_told_apart() -> None:
    run = as_run({"a": [math.inf, math.nan, 1.0]})
    assert run.series["grad_inf"][:, 0].tolist() == [1, 0, 0]
    assert run.series["grad_nan"][:, 0].tolist() == [0, 1, 0]
    assert np.isnan(run.series["grad_norm"][:2, 0]).all()
    assert (run.state("grad_norm") == State.MEASURED).all()


def test_the_size_of_a_layer_of_norms_is_not_known() -> None:
    assert as_run({"a": [1.0]}).parameters[0].count == 0
    assert as_run({"a": [np.ones((2, 3))]}).parameters[0].count == 6


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ([1.0, 2.0, 3.0], "a bare list of numbers"),
        (np.ones(3), "shape (3,)"),
        (np.ones((3, 2)), "shape (3, 2)"),
        ("runs/first", "open_run"),
        (None, "got None"),
        (7, "got 7"),
        ({}, "got {}"),
        ([], "got []"),
        ({"b": [1.0], "my.a": []}, "'my.a'"),
        ({"b": [1.0], "my.a": 3.0}, "'my.a'"),
        ({"b": [1.0], "my.a": None}, "'my.a'"),
        ({"b": [1.0], "my.a": "text"}, "'my.a'"),
        ({"b": [1.0], "my.a": ["text"]}, "'my.a'"),
        ({"b": [1.0], "my.a": {"x": 1.0}}, "'my.a'"),
        ({"b": [1.0], "my.a": [1j]}, "'my.a'"),
        ({"b": [1.0], "my.a": [1.0, -2.0]}, "'my.a'"),
        ({"b": [1.0], "my.a": [-math.inf]}, "'my.a'"),
        ({"b": [1.0], "my.a": [1.0, [2.0]]}, "'my.a'"),
        ({"b": [1.0], "my.a": [[1.0], [2.0]]}, "'my.a'"),
        ({"b": [[1.0]], "my.a": [["text"]]}, "'my.a'"),
        ({"b": [[1.0]], "my.a": [[1.0], [2.0]]}, "'my.a'"),
        ({"b": [[1.0]], "my.a": [[[1.0], [2.0, 3.0]]]}, "'my.a'"),
        ({1: [1.0], "1": [1.0]}, "names"),
    ],
)
def test_what_is_no_series_is_named_in_one_sentence(data, word: str) -> None:
    refuses(lambda: as_run(data), word)


@pytest.mark.parametrize(
    "steps",
    [
        *([0, 1.5], [0, "1"], "01", [1, 1], [2, 1], [0], [0, 1, 2], [[0, 1]], [0, math.nan]),
        *([0, None], [0, 2**63], [0, 1e300], 5, [False, True], [0, 1j], []),
    ],
)
def test_steps_that_are_none_are_refused(steps) -> None:
    for data in ({"my.a": [1.0, 2.0]}, {"my.a": [[1.0], [2.0]]}):
        refuses(lambda data=data: as_run(data, steps=steps), "steps")
    refuses(lambda: Run.from_norms({"my.a": [1.0, 2.0]}, steps={"my.a": steps}), "steps")


def test_steps_may_be_whole_numbers_of_any_type() -> None:
    for steps in ([1.0, 4.0], np.array([1, 4], np.uint8), range(1, 5, 3)):
        assert as_run({"a": [1.0, 2.0]}, steps=steps).steps.tolist() == [1, 4]


@pytest.mark.parametrize(
    "scalars", [{"loss": [1.0]}, {"loss": ["a", "b"]}, {"loss": 3.0}, {"loss": [1j, 2j]}]
)
def test_scalars_that_are_none_are_refused(scalars) -> None:
    refuses(lambda: as_run({"a": [1.0, 2.0]}, scalars=scalars), "loss")


@pytest.mark.parametrize("scalars", [[1, 2], np.ones(2), "loss", 3.0])
def test_scalars_have_names(scalars) -> None:
    refuses(lambda: as_run({"a": [1.0, 2.0]}, scalars=scalars), "scalars")


def test_steps_of_no_layer_are_named() -> None:
    refuses(lambda: Run.from_norms({"a": [1.0]}, steps={"a": [3], "my.b": [3]}), "my.b")


@pytest.mark.parametrize("arrays", [np.ones(3), "text", 3.0])
def test_arrays_of_a_run_have_names(arrays) -> None:
    refuses(lambda: Run.from_arrays(arrays), "arrays by name")
    refuses(lambda: Run.from_arrays(weights=arrays), "arrays by name")


def test_random_norms_and_their_arrays_give_the_same_run() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        layers, steps = rng.integers(1, 5, 2)
        arrays = {
            f"l{i}": [
                None if rng.random() < 0.2 else rng.normal(size=rng.integers(1, 9))
                for _ in range(steps)
            ]
            for i in range(layers)
        }
        norms = {
            name: [None if x is None else math.sqrt(math.fsum(v * v for v in x)) for x in listed]
            for name, listed in arrays.items()
        }
        ours, theirs = as_run(arrays), as_run(norms)
        assert (ours.state("grad_norm") == theirs.state("grad_norm")).all()
        np.testing.assert_allclose(ours.series["grad_norm"], theirs.series["grad_norm"], 1e-12)


# -- options ---------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def test_words_of_an_option() -> None:
    assert choice(Colour, "red", "colour") is Colour.RED
    assert choice(Colour, Colour.BLUE, "colour") is Colour.BLUE
    for wrong in ("green", "", None, 3, ["red"], np.array(["red", "blue"])):
        refuses(lambda wrong=wrong: choice(Colour, wrong, "colour"), "'red', 'blue' for colour")


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.array(0.5)])
def test_numbers_of_an_option(value) -> None:
    assert number(value, "limit", above=0) == 0.5
    for wrong in (0.0, -1, math.nan, math.inf, "1", None, [1.0], 1j, np.ones(2)):
        refuses(lambda wrong=wrong: number(wrong, "limit", above=0), "above 0 for limit")
    refuses(lambda: number(0.4, "limit", least=0.5), "at least 0.5 for limit")


def test_whole_numbers_of_an_option() -> None:
    assert whole_number(np.int64(3), "window", least=3) == 3
    for wrong in (2, 3.0, "3", None, math.nan, [3], np.ones(2)):
        refuses(lambda wrong=wrong: whole_number(wrong, "window", least=3), "for window")


@pytest.mark.parametrize("odd", [1.0, math.nan, math.inf])
def test_norms_of_a_long_run_take_little_more_than_themselves(odd: float) -> None:
    norms = {str(layer): np.ones(20_000) for layer in range(50)}
    norms["7"][5] = odd
    tracemalloc.start()
    run = Run.from_norms(norms)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12.5 * 50 * 20_000  # the norm's eight bytes, a state, two truth values
    assert run.series["grad_nan"][5, 7] == math.isnan(odd)
    assert run.series["grad_inf"][5, 7] == math.isinf(odd)
    assert run.series["grad_nan"].sum() + run.series["grad_inf"].sum() == (odd != 1.0)
