"""Looking for NaN and infinities at every stride-th element, given by plain numbers."""

import math

import numpy as np
import pytest
from tests.kernel.cases import case, cases

from gradwatch import kernel
from gradwatch.kernel import Dtype

GOOD = np.zeros(6, np.float32)
AT = GOOD.ctypes.data


@pytest.mark.parametrize("stride", [1, 2, 3, 17, 4096, 2**63])
def test_it_counts_what_python_counts(instruction_set: str, stride: int) -> None:
    seen = 0
    for c in cases():
        wanted = sum(not math.isfinite(v) for v in c.values.ravel()[::stride].tolist())
        at = c.raw.ctypes.data if c.raw.size else 0
        assert kernel.nonfinite(at, c.raw.size, c.dtype, stride) == wanted, c.name
        seen += wanted
    assert seen > 0


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("odd", [math.nan, -math.nan, math.inf, -math.inf])
def test_a_planted_one_is_seen_at_every_place(
    instruction_set: str, dtype: Dtype, odd: float
) -> None:
    for stride in (1, 5):
        for place in (0, 1, 63, 64, 4095, 4096, 4999):
            x = np.ones(5000)
            x[place] = odd
            c = case("planted", x, dtype)
            wanted = int(place % stride == 0)
            assert kernel.nonfinite(c.raw.ctypes.data, 5000, dtype, stride) == wanted


def test_the_largest_finite_numbers_are_finite(instruction_set: str) -> None:
    for dtype, most in zip(Dtype, (3.4e38, 1.7e308, 3.3e38, 65504.0), strict=True):
        c = case("largest", np.array([most, -most, 0.0, -0.0]), dtype)
        assert np.isfinite(c.values).all()
        assert kernel.nonfinite(c.raw.ctypes.data, 4, dtype, 1) == 0


def test_more_than_a_million(instruction_set: str) -> None:
    for x, dtype in ((np.zeros((1 << 20) + 9, np.float32), 0), (np.zeros(1 << 21, np.float16), 3)):
        x[[0, 7, 70_000, -1]] = np.nan
        assert kernel.nonfinite(x.ctypes.data, x.size, dtype, 1) == 4
        x[:] = np.inf
        assert kernel.nonfinite(x.ctypes.data, x.size, dtype, 1) == x.size


@pytest.mark.parametrize(
    "wrong",
    [
        (0, 6, 0, 1),
        (AT + 2, 1, 0, 1),
        (AT, -1, 0, 1),
        (AT, 1 << 56, 0, 1),
        (AT, 1 << 70, 0, 1),
        (-4, 1, 0, 1),
        (1 << 64, 1, 0, 1),
        (AT, 6, 4, 1),
        (AT, 6, -1, 1),
        (AT, 6, 0, 0),
        (AT, 6, 0, -1),
        (AT, 6, 0, 1 << 64),
    ],
)
def test_what_must_not_be_read_is_refused(
    compiled_set: str, wrong: tuple[int, int, int, int]
) -> None:
    with pytest.raises(ValueError):
        kernel.nonfinite(*wrong)


def test_only_whole_numbers(compiled_set: str) -> None:
    with pytest.raises(TypeError):
        kernel.nonfinite(AT, 6.0, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        kernel.nonfinite(AT, 6, 0)  # type: ignore[call-arg]
    assert kernel.nonfinite(0, 0, 0, 1) == 0


def test_selecting_changes_the_function() -> None:
    before = kernel.instruction_set
    try:
        kernel.select("none")
        assert kernel.nonfinite.__module__ == "gradwatch.kernel.plain"
    finally:
        kernel.select(before)
