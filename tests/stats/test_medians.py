"""Medians of columns with gaps, against the standard library's."""

import math
import statistics

import numpy as np
import pytest

from gradwatch.stats.medians import medians


@pytest.mark.parametrize("seed", range(10))
def test_each_column_has_the_median_of_its_finite_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(int(rng.integers(1, 12)), 6))
    values[rng.random(values.shape) < 0.4] = rng.choice([np.nan, np.inf])
    for column, got in zip(values.T, medians(values), strict=True):
        finite = [x for x in column.tolist() if math.isfinite(x)]
        if finite:
            assert got == statistics.median(finite)
        else:
            assert math.isnan(got)


def test_the_ends_of_the_range_are_not_left() -> None:
    values = np.array([[1.7e308, 5e-324], [1.5e308, 5e-324]])
    assert medians(values).tolist() == [1.6e308, 5e-324]
