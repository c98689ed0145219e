"""Zero rows, touched rows, and how far rows lie apart."""

import numpy as np
import pytest
from tests.kernel import reference
from tests.kernel.cases import batch, case

from gradwatch import kernel
from gradwatch.kernel import Dtype

SHAPES = ((1, 1), (5, 3), (40, 1), (7, 100), (64, 129), (3, 5000))


def table(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Some rows zero, some −0, some with a single last element, some NaN."""
    x = rng.standard_normal(shape)
    kind = rng.integers(0, 5, shape[0])
    x[kind == 1] = 0.0
    x[kind == 2] = -0.0
    x[kind == 3, :-1] = 0.0
    x[kind == 4, 0] = np.nan
    return x


@pytest.mark.parametrize("dtype", list(Dtype))
def test_zero_rows_and_touched_rows(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(4)
    some = [case("table", table(rng, shape), dtype) for shape in SHAPES for _ in range(3)]
    some.append(case("no rows", np.zeros(10), dtype))
    some.append(case("no elements", np.zeros((4, 0)), dtype))
    touched = [np.zeros(c.rows, np.uint8) if c.rows else None for c in some]
    records = kernel.measure(batch(some), touched=touched).records
    for c, record, marks in zip(some[:-2], records, touched, strict=False):
        zero = reference.zero_rows(c.values)
        assert record["zero_rows"] == sum(zero)
        assert marks is not None
        assert marks.tolist() == [int(not z) for z in zero]
    assert records["zero_rows"][-2:].tolist() == [0, 0]


def test_marks_stay_where_a_later_gradient_is_zero(instruction_set: str) -> None:
    marks = np.array([1, 0, 0], np.uint8)
    second = case("second", np.array([[0.0, 0], [0, 0], [0, 5]]), Dtype.F32)
    kernel.measure(batch([second]), touched=[marks])
    assert marks.tolist() == [1, 0, 1]


def naive_spread(x: np.ndarray) -> float:
    rows = len(x)
    others = min(16, rows - 1)
    chosen = [0] + [1 + k * (rows - 1) // others for k in range(others)]
    long = x.astype(np.longdouble)[chosen]
    largest = max(np.sqrt((row**2).sum()) for row in long)
    return float(max(np.sqrt(((row - long[0]) ** 2).sum()) for row in long) / largest)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_row_spread(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(6)
    tables = [rng.standard_normal(shape) for shape in SHAPES[1:]]
    tables.append(np.tile(rng.standard_normal(50), (30, 1)))
    some = [case("table", x, dtype) for x in tables]
    spreads = kernel.row_spread(batch(some))
    for c, spread in zip(some, spreads, strict=True):
        assert spread == pytest.approx(naive_spread(c.values), rel=1e-6)
    assert spreads[-1] == 0.0


def test_row_spread_where_there_is_none(instruction_set: str) -> None:
    odd = [np.ones((1, 4)), np.ones(4), np.zeros((3, 4)), np.full((3, 4), np.nan), np.zeros((3, 0))]
    some = [case("odd", x, Dtype.F32) for x in odd]
    spreads = kernel.row_spread(batch(some))
    assert np.isnan(spreads).tolist() == [True, True, False, True, True]
    assert spreads[2] == 0.0


def test_row_spread_of_extreme_doubles(instruction_set: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 9))
    some = [case("extreme", x * scale, Dtype.F64) for scale in (1.0, 1e250, 1e-250)]
    plain, large, small = kernel.row_spread(batch(some))
    assert large == pytest.approx(plain, rel=1e-6)
    assert small == pytest.approx(plain, rel=1e-6)
