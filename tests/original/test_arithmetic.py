"""Sorting: the original stops at NaN as soon as there is something to compare."""

import math

import pytest

from gradwatch.errors import GradwatchError
from gradwatch.original.arithmetic import in_order


def test_without_nan_it_sorts() -> None:
    assert in_order([3.0, math.inf, 1.0, -2.0], "these") == [-2.0, 1.0, 3.0, math.inf]


def test_a_single_nan_is_not_compared() -> None:
    assert len(in_order([math.nan], "these")) == 1
    assert in_order([], "these") == []


@pytest.mark.parametrize("others", [1, 20, 100])
def test_nan_among_others_stops_it(others: int) -> None:
    with pytest.raises(GradwatchError, match="NaN: the original stops here, where it sorts these"):
        in_order([1.0] * others + [math.nan], "these")
