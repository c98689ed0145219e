"""Sorting with NaN: inserted among few values, given up among many."""

import math
import random

from gradwatch.original.arithmetic import in_order


def test_without_nan_it_sorts() -> None:
    values = random.Random(1).sample(range(100), 50)
    assert in_order(values) == sorted(values)


def test_twenty_values_never_stop_and_nothing_is_lost() -> None:
    draw = random.Random(4)
    for _ in range(200):
        values = [math.nan if draw.random() < 0.3 else draw.random() for _ in range(20)]
        found = in_order(values)
        assert found is not None
        assert sorted(x for x in found if x == x) == sorted(x for x in values if x == x)
        assert len(found) == 20


def test_nan_among_more_values_has_no_order() -> None:
    assert in_order([1.0] * 20 + [math.nan]) is None
