"""Cells and outliers of a tensor against plain loops, across pieces, types and sizes."""

import math
from collections import Counter

import numpy as np
import pytest

from gradwatch.analysis import elements
from gradwatch.analysis.elements import (
    Given,
    MeasuredTensor,
    Spread,
    cell_exponent,
    from_run,
    named,
    scan,
    singles,
    spread,
    with_elements,
)
from gradwatch.checkpoints.scanning import scan_arrays
from gradwatch.errors import GradwatchError

RNG = np.random.default_rng(12)
N = 5000


def from_arrays(tensors: Given) -> list[MeasuredTensor]:
    return with_elements(from_run(scan_arrays(named(tensors))), tensors)


def with_odd(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[[3, 77, 2000, 4999]] = np.nan, np.inf, -np.inf, np.nan
    return values


def with_far(values: np.ndarray, far: float) -> np.ndarray:
    values = values.copy()
    values[1234] = far
    return values


GAUSSIAN = RNG.normal(0, 0.02, N)
TENSORS = {
    "float64": GAUSSIAN,
    "float32": GAUSSIAN.astype(np.float32),
    "float16": GAUSSIAN.astype(np.float16),
    "integers": RNG.integers(-90, 90, N),
    "bytes": RNG.integers(0, 3, N).astype(np.uint8),
    "odd": with_odd(GAUSSIAN).astype(np.float32),
    "far": with_far(GAUSSIAN, 1e3).astype(np.float32),
    "very far": with_far(GAUSSIAN, -1e36).astype(np.float32),
    "far and odd": with_far(with_odd(GAUSSIAN), 6e4).astype(np.float16),
    "under zero": with_far(np.abs(GAUSSIAN), -1e-40) * 1e200,
    "under zero by a hair": with_far(np.abs(GAUSSIAN) * 1e200, -1e-200),
    "heavy": RNG.standard_t(1, N).astype(np.float32),
    "offset": (1e4 + GAUSSIAN).astype(np.float32),
    "constant": np.full(N, -0.3, np.float32),
    "largest": np.full(N, 1.7e308),
    "both ends": np.sign(GAUSSIAN) * 1.7e308,
    "largest of all": np.full(N, np.finfo(np.float64).max),
    "up to the ends": GAUSSIAN / np.abs(GAUSSIAN).max() * 1.7e308,
    "far at the end": with_far(GAUSSIAN * 1e300, 1.7e308),
    "subnormal": GAUSSIAN * 1e-310,
    "every other": np.repeat(GAUSSIAN, 2)[::2],
    "under zero in steps of two": with_far(np.abs(GAUSSIAN).astype(np.float32) * 1e6, -1e-45),
    "other byte order": GAUSSIAN.astype(">f4"),
    "one": np.array([0.25]),
}


def cells(values: np.ndarray, exponent: int) -> Counter[int]:
    """In whole numbers, so that nothing can be rounded."""
    counts: Counter[int] = Counter()
    for x in values.ravel().tolist():
        if math.isfinite(x):
            above, below = float(x).as_integer_ratio()
            shifted = above << max(-exponent, 0)
            counts[shifted // (below << max(exponent, 0))] += 1
    return counts


def far_indices(values: np.ndarray, found: Spread, limit: float) -> list[tuple[float, int]]:
    """Furthest first, and of two equally far the earlier one."""
    distances = [((float(x) - found.centre) / found.scale, i) for i, x in enumerate(values)]
    beyond = [(z, i) for z, i in distances if math.isfinite(z) and abs(z) > limit]
    return sorted(beyond, key=lambda item: (-abs(item[0]), item[1]))


@pytest.mark.parametrize("piece", [1 << 18, 700])
@pytest.mark.parametrize("name", TENSORS)
def test_cells_and_outliers_are_those_of_loops(
    name: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elements, "PIECE", piece)
    (tensor,) = from_arrays({"w": TENSORS[name]})
    assert tensor.values is not None
    found = spread(tensor)
    low, high = float(tensor.record["min"]), float(tensor.record["max"])
    exponent = cell_exponent(found.quartiles, tensor.finite, low, high)
    grid, far = scan(tensor, found, exponent, 10)
    wanted = cells(tensor.values, exponent)
    assert {grid.first + i: n for i, n in enumerate(grid.counts.tolist()) if n} == wanted
    assert grid.counts[0] > 0
    assert grid.counts[-1] > 0
    assert len(grid.counts) <= 256
    beyond = far_indices(tensor.values, found, far.limit) if found.scale > 0 else []
    assert far.total == len(beyond)
    assert far.indices.tolist() == sorted(i for _, i in beyond[:10])
    assert far.distances.tolist() == [z for z, i in sorted(beyond[:10], key=lambda item: item[1])]


def test_something_is_found_in_what_is_far() -> None:
    for name in ("far", "very far", "far and odd"):
        (tensor,) = from_arrays({"w": TENSORS[name]})
        far = scan(tensor, spread(tensor), 120, 10)[1]
        assert far.indices.tolist() == [1234], name


def test_an_outlier_further_than_any_number_is_named() -> None:
    (tensor,) = from_arrays({"w": with_far(GAUSSIAN * 1e-9, -1.7e308)})
    far = scan(tensor, spread(tensor), 1020, 10)[1]
    assert far.indices.tolist() == [1234]
    assert far.distances.tolist() == [-np.finfo(np.float64).max]


@pytest.mark.parametrize("tensors", [[1.0, 2.0], "text", np.ones(3), None, {"my.w": ["a"]}])
def test_what_holds_no_tensors_is_refused(tensors) -> None:
    with pytest.raises(GradwatchError, match=r"^Expected .*(arrays by name|'my\.w')"):
        from_arrays(tensors)


def test_complex_tensors_have_two_elements_a_place() -> None:
    (tensor,) = from_arrays([[1 + 2j, 3j]])
    assert tensor.values.tolist() == [1.0, 2.0, 0.0, 3.0]
    assert tensor.count == 4
    assert singles([[1 + 2j], [1e300]])["0"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1001, 4096])
def test_the_spread_is_that_of_sorted_lists(count: int) -> None:
    values = RNG.normal(3, 2, count)
    (tensor,) = from_arrays({"w": values})
    found = spread(tensor)
    ordered = sorted(values.tolist())
    centre = quantile(ordered, 0.5)
    mad = quantile(sorted(abs(x - centre) for x in ordered), 0.5)
    assert found.centre == pytest.approx(centre, rel=1e-12)
    assert found.scale == pytest.approx(mad * 1.4826022185056018, rel=1e-12)
    wanted = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    assert found.quartiles == pytest.approx(wanted, rel=1e-12)


def quantile(ordered: list[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    left = math.floor(at)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] * (1 - (at - left)) + ordered[right] * (at - left)
