"""Arrays measured like a recording: cosines, rows without gradient, updates, hashes."""

import math

import numpy as np
import pytest

from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.stats import Stat, State

RNG = np.random.default_rng(4)


def naive_dead(arrays: list[np.ndarray | None], window: int) -> list[float]:
    """Rows that were zero in each of the last `window` gradients, step by step."""
    dead = []
    for end in range(1, len(arrays) + 1):
        seen = arrays[max(0, end - window) : end]
        shape = next(array.shape for array in arrays if array is not None)
        touched = [np.zeros(shape[0], bool) if a is None else (a != 0).any(axis=1) for a in seen]
        dead.append(float((~np.any(touched, axis=0)).sum()))
    return dead


def test_rows_without_gradient_are_followed() -> None:
    arrays: list[np.ndarray | None] = []
    for _ in range(150):
        array = RNG.normal(size=(30, 4))
        array[RNG.random(30) < 0.97] = 0.0
        arrays.append(array)
    arrays[7] = None
    run = Run.from_arrays({"a": arrays, "vector": [np.ones(3)] * 150})
    measured = [i for i in range(150) if i != 7]
    for stat, window in ((Stat.GRAD_DEAD_ROWS, 64), (Stat.GRAD_UNTOUCHED_ROWS, 1000)):
        expected = naive_dead(arrays, window)
        found = run.series[stat]
        assert found[measured, 0].tolist() == [expected[i] for i in measured]
        assert math.isnan(found[7, 0])
        assert (found[:, 1] == 0).all()
    assert 0 < run.series[Stat.GRAD_DEAD_ROWS][-1, 0] < 30


@pytest.mark.parametrize(("size", "unit"), [((40, 50), 1.0), ((7, 9), 1e-200), ((700, 800), 1e200)])
def test_cosines_are_those_of_whole_gradients(size: tuple[int, ...], unit: float) -> None:
    first, second = RNG.normal(size=(2, *size))
    mixed = first + second
    given = [first, first * 2, None, -first, mixed]
    run = Run.from_arrays({"a": [None if x is None else x * unit for x in given]})
    cosines = run.column("grad_cosine", "a")
    assert math.isnan(cosines[0])
    assert cosines[1] == pytest.approx(1.0)
    assert math.isnan(cosines[2])
    assert cosines[3] == pytest.approx(-1.0)
    true = -np.vdot(first, mixed) / np.linalg.norm(first) / np.linalg.norm(mixed)
    assert cosines[4] == pytest.approx(true, rel=1e-6)


def test_there_is_no_cosine_where_none_is_defined() -> None:
    ones, zeros = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    odd = np.where(np.eye(3, 4), np.nan, ones)
    run = Run.from_arrays({"a": [ones, zeros, ones, odd, ones, np.ones(5), np.ones(5)]})
    assert np.isnan(run.column("grad_cosine", "a")).tolist() == [True] * 6 + [False]


def test_cosines_do_not_depend_on_the_order_in_memory() -> None:
    first, second = RNG.normal(size=(2, 30, 20)).astype(np.float16)
    plain = Run.from_arrays({"a": [first, second]}).column("grad_cosine", "a")
    turned = Run.from_arrays({"a": [first, np.asfortranarray(second)]}).column("grad_cosine", "a")
    assert turned[1] == plain[1]


def test_updates_between_steps_that_follow_one_another() -> None:
    weights = [RNG.normal(size=(3, 2)) for _ in range(5)]
    weights[3] = weights[2].copy()
    gradients = [RNG.normal(size=(3, 2)) for _ in range(5)]
    run = Run.from_arrays({"a": gradients}, {"a": weights}, steps=[0, 1, 2, 3, 7])
    norms, ratios, lost = (
        run.column(stat, "a") for stat in ("update_norm", "update_ratio", "update_lost_fraction")
    )
    for row in range(3):
        change = np.linalg.norm(weights[row + 1] - weights[row])
        assert norms[row] == pytest.approx(change, rel=1e-12)
        assert ratios[row] == pytest.approx(change / np.linalg.norm(weights[row]), rel=1e-12)
    assert lost[:3].tolist() == [0.0, 0.0, 1.0]
    assert np.isnan(norms[3:]).all()
    assert (run.state("update_norm")[3:] == State.NOT_SAMPLED).all()


def test_weights_alone_have_no_updates() -> None:
    run = Run.from_arrays(weights={"a": [np.ones((4, 3)), np.eye(4, 3)]})
    assert Stat.UPDATE_NORM not in run.recorded
    assert run.column("weight_row_spread", "a")[0] == 0.0
    hashes = run.integers("weight_hash")[:, 0]
    assert hashes[0] != hashes[1]
    assert hashes[0] == Run.from_arrays(weights={"b": [np.ones((4, 3))]}).integers("weight_hash")


def test_arrays_that_change_shape_or_type_are_measured_too() -> None:
    run = Run.from_arrays(
        {"a": [np.ones((2, 3)), np.ones((4, 3)), np.ones(5, np.int8), np.empty((0, 3)), [[1j]]]},
        {"a": [np.ones(3), np.ones(4), np.ones(4, "f4"), None, np.ones(4)], "b": [None] * 5},
    )
    assert run.column("grad_count", "a").tolist() == [6, 12, 5, 0, 2]
    assert run.column("grad_norm", "a")[:3] ** 2 == pytest.approx([6, 12, 5])
    assert run.column("grad_norm", "a")[4] == 1.0
    assert (run.state("update_norm") == State.NOT_SAMPLED).all()
    assert (run.state("weight_norm")[:, 1] == State.NOT_SAMPLED).all()
    assert run.parameters[1].shape == ()


def test_lists_of_different_lengths_are_named() -> None:
    with pytest.raises(GradwatchError, match="2 arrays in 'b', as many as in 'a', got 1"):
        Run.from_arrays({"a": [[1.0]] * 2}, {"b": [[1.0]]})


def test_what_is_handed_in_flat_has_no_known_shape() -> None:
    flat = Run.from_arrays({"a": [np.ones(3)] * 2, "b": [np.ones(4)] * 2})
    assert [(subject.shape, subject.count) for subject in flat.parameters] == [((), 3), ((), 4)]
    mixed = Run.from_arrays({"a": [np.ones(3)] * 2, "b": [np.ones((2, 2))] * 2})
    assert [subject.shape for subject in mixed.parameters] == [(3,), (2, 2)]
