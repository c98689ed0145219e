"""The sort that NaN breaks: right without NaN, and as often a panic as the original's with NaN."""

import math
import random

import pytest

from gradwatch.analysis.original import sorting
from gradwatch.errors import GradwatchError


@pytest.mark.parametrize("length", [2, 20, 21, 33, 64, 65, 129, 300])
def test_every_path_of_the_algorithm_sorts(length: int) -> None:
    draw = random.Random(length)
    for _ in range(20):
        values = [draw.choice([draw.random(), round(draw.random(), 1)]) for _ in range(length)]
        expected = sorted(values)
        assert sorting._drift(list(values), eager=length <= 64) == expected
        for limit in (0, 1, sorting._limit(length)):
            assert sorting._quick(list(values), None, limit) == expected
        assert sorting._drift(expected[::-1], eager=False) == expected


@pytest.mark.parametrize(
    ("share", "length", "panics"),
    [
        (0.01, 21, 0.16),
        (0.01, 100, 0.48),
        (0.1, 21, 0.80),
        (0.1, 50, 0.98),
        (0.1, 100, 0.55),
        (0.1, 300, 0.02),
    ],
)
def test_it_panics_as_often_as_the_original(share: float, length: int, panics: float) -> None:
    """Rates measured on the original's sort with random inputs."""
    draw, seen, tries = random.Random(3), 0, 400
    for _ in range(tries):
        values = [math.nan if draw.random() < share else draw.random() for _ in range(length)]
        try:
            sorting.in_order(values)
        except GradwatchError:
            seen += 1
    assert abs(seen / tries - panics) < 0.07


def test_twenty_values_never_panic_and_nothing_is_lost() -> None:
    draw = random.Random(4)
    for _ in range(200):
        values = [math.nan if draw.random() < 0.3 else draw.random() for _ in range(20)]
        found = sorting.in_order(values)
        assert sorted(x for x in found if x == x) == sorted(x for x in values if x == x)
        assert len(found) == 20
