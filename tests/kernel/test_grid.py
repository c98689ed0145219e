"""Counts on uniform grids are exact, and nothing beyond the limits is missed."""

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from tests.kernel import reference
from tests.kernel.cases import Case, batch, case, cases

from gradwatch import kernel
from gradwatch.kernel import Batch, Cells, Dtype

Places = tuple[Counter[int], int]


def grid_for(c: Case, rng: np.random.Generator) -> tuple[int, int]:
    """A width and a centre that leave some elements inside and some outside."""
    finite = c.values[np.isfinite(c.values)].ravel()
    if not len(finite):
        return 0, 0
    middle = np.sort(finite)[len(finite) // 2]
    size = float(np.quantile(np.abs(finite), 0.8)) or 1.0
    exponent = int(np.clip(math.frexp(size)[1] - rng.integers(1, 9), -1022, 1022))
    return exponent, math.floor(math.ldexp(float(middle), -exponent))


@cache
def grids() -> list[tuple[int, int]]:
    rng = np.random.default_rng(3)
    return [grid_for(c, rng) for c in cases()]


@cache
def references() -> list[Places]:
    return [reference.places(c.values, e) for c, (e, _) in zip(cases(), grids(), strict=True)]


def check(found: Cells, index: int, wanted: Places, first: int, name: str) -> None:
    places, nonfinite = wanted
    cells = found.counts.shape[1]
    inside = [places[first + i] for i in range(cells)]
    assert found.counts[index].tolist() == inside, name
    assert found.below[index] == sum(n for at, n in places.items() if at < first), name
    assert found.above[index] == sum(n for at, n in places.items() if at >= first + cells), name
    assert found.nonfinite[index] == nonfinite, name


@pytest.mark.parametrize("cells", [1, 2, 100, 256])
def test_every_element_is_in_its_cell(instruction_set: str, cells: int) -> None:
    exponents = [e for e, _ in grids()]
    firsts = [float(centre - cells // 2) for _, centre in grids()]
    found = kernel.count_cells(batch(cases()), exponents, firsts, cells=cells)
    for index, (c, wanted) in enumerate(zip(cases(), references(), strict=True)):
        check(found, index, wanted, int(firsts[index]), c.name)


def test_the_cases_reach_inside_and_outside() -> None:
    firsts = [float(centre - 50) for _, centre in grids()]
    found = kernel.count_cells(batch(cases()), [e for e, _ in grids()], firsts, cells=100)
    for part in (found.counts.any(axis=1), found.below > 0, found.above > 0, found.nonfinite > 0):
        assert part.sum() > 50


def edges(exponent: int, kind: type) -> np.ndarray:
    """Multiples of 2^exponent, their neighbours in the type, and what is nearest to zero."""
    with np.errstate(over="ignore", under="ignore"):
        whole = np.ldexp(np.arange(-140.0, 140.0), exponent).astype(kind)
        tiny = np.array([0.0, -0.0], kind)
        near = [np.nextafter(x, kind(side)) for x in (whole, tiny) for side in (-np.inf, np.inf)]
    return np.concatenate([whole, tiny, *near]).astype(np.float64)


@pytest.mark.parametrize(
    "exponent", [-1023, -160, -149, -130, -126, -7, 0, 5, 119, 126, 140, 1010, 1023]
)
def test_the_edges_of_the_cells(instruction_set: str, exponent: int) -> None:
    for dtype, kind in ((Dtype.F32, np.float32), (Dtype.F64, np.float64), (Dtype.F16, np.float16)):
        c = case("edges", np.tile(edges(exponent, kind), 3), dtype)
        for first in (-128, -1, 0):
            found = kernel.count_cells(batch([c]), [exponent], [first], cells=256)
            wanted = reference.places(c.values, exponent)
            check(found, 0, wanted, first, f"{c.name} 2^{exponent} from {first}")


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_negative_element_is_never_in_cell_zero(instruction_set: str, dtype: Dtype) -> None:
    """However small: the product with a small scale underflows to zero."""
    smallest = {Dtype.F32: 1e-45, Dtype.F64: 5e-324, Dtype.BF16: 1e-40, Dtype.F16: 6e-8}[dtype]
    c = case("tiny", np.resize([-smallest, smallest, -0.0], 300), dtype)
    for exponent in (0, 40, 126, 300, 1023):
        found = kernel.count_cells(batch([c]), [exponent], [-1.0], cells=2)
        assert found.counts.tolist() == [[100, 200]], exponent


@pytest.mark.parametrize("dtype", list(Dtype))
def test_cells_far_from_zero(instruction_set: str, dtype: Dtype) -> None:
    """Cell numbers too large for an integer of 32 bits, and widths under the elements' own step."""
    x = 1000 + np.arange(2000) % 7 * 2.0**-4
    c = case("far", x, dtype)
    exponent = -40
    places, _ = reference.places(c.values, exponent)
    for first in sorted(places):
        found = kernel.count_cells(batch([c]), [exponent], [float(first)], cells=3)
        check(found, 0, (places, 0), first, c.name)


@pytest.mark.parametrize("dtype", list(Dtype))
def test_counters_do_not_overflow(instruction_set: str, dtype: Dtype) -> None:
    n = 3 * (1 << 18) + 4099
    c = case("constant", np.full(n, 0.5), dtype)
    found = kernel.count_cells(batch([c, c]), [-1, 0], [1.0, -3.0], cells=4)
    assert found.counts.tolist() == [[n, 0, 0, 0], [0, 0, 0, n]]


@pytest.mark.parametrize("dtype", list(Dtype))
def test_long_tensors_and_their_shards(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(300_007)
    x[::1000] = rng.choice([np.nan, np.inf, -np.inf, 50.0, -50.0], len(x[::1000]))
    whole = case("whole", x, dtype)
    cuts = [0, 13, 4096, 200_003, len(x)]
    parts = [
        Case("part", dtype, whole.raw[a:b], whole.values[a:b]) for a, b in itertools.pairwise(cuts)
    ]
    found = kernel.count_cells(batch([whole]), [-5], [-128.0], cells=256)
    check(found, 0, reference.places(whole.values, -5), -128, whole.name)
    shards = kernel.count_cells(batch(parts), [-5] * 4, [-128.0] * 4, cells=256)
    for total, sums in zip(found, shards, strict=True):
        assert total[0].tolist() == sums.sum(axis=0).tolist()


def test_no_tensor_at_all(instruction_set: str) -> None:
    nothing = Batch.of([], [], [])
    assert kernel.count_cells(nothing, [], [], cells=5).counts.shape == (0, 5)
    assert kernel.list_beyond(nothing, [], [], most=5).indices == []


@cache
def listed(low: float, high: float) -> list[list[int]]:
    return [reference.beyond(c.values, low, high) for c in cases()]


LIMITS = [(-1e-3, 1e-3), (-math.inf, 1.0), (-0.5, math.inf), (0.0, 0.0), (2.0, -2.0)]


@pytest.mark.parametrize(("low", "high"), [*LIMITS, (-math.inf, math.inf)])
def test_everything_beyond_is_listed(instruction_set: str, low: float, high: float) -> None:
    n = len(cases())
    found = kernel.list_beyond(batch(cases()), [low] * n, [high] * n, most=3 * 4096 + 17)
    wanted = listed(low, high)
    assert found.totals.tolist() == [len(indices) for indices in wanted]
    for c, indices, there in zip(cases(), found.indices, wanted, strict=True):
        assert indices.tolist() == there, c.name


@pytest.mark.parametrize("most", [0, 1, 5])
def test_the_list_is_bounded_and_the_total_is_not(instruction_set: str, most: int) -> None:
    n = len(cases())
    found = kernel.list_beyond(batch(cases()), [-1.0] * n, [1.0] * n, most=most)
    wanted = listed(-1.0, 1.0)
    assert found.totals.tolist() == [len(indices) for indices in wanted]
    for c, indices, there in zip(cases(), found.indices, wanted, strict=True):
        assert indices.tolist() == there[:most], c.name


@pytest.mark.parametrize("dtype", list(Dtype))
def test_a_limit_counts_as_beyond_and_its_neighbour_does_not(
    instruction_set: str, dtype: Dtype
) -> None:
    """Limits are compared as float64, even between two numbers of a narrow type."""
    c = case("flat", np.resize([1.0, -1.0, 0.5], 9000), dtype)
    above, below = np.nextafter(1.0, 2.0), np.nextafter(1.0, 0.0)
    totals = [
        int(kernel.list_beyond(batch([c]), [-limit], [limit], most=0).totals[0])
        for limit in (below, 1.0, above)
    ]
    assert totals == [6000, 6000, 0]


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("at", [0, 4095, 4096, 50_000, 100_016])
def test_one_among_many(instruction_set: str, dtype: Dtype, at: int) -> None:
    x = np.random.default_rng(5).uniform(-1, 1, 100_017)
    x[at] = -7.0
    x[17], x[60_000] = np.nan, np.inf
    c = case("one", x, dtype)
    found = kernel.list_beyond(batch([c]), [-6.0], [6.0], most=9)
    assert [i.tolist() for i in found.indices] == [[at]]


def test_wrong_grids_and_limits_are_refused(instruction_set: str) -> None:
    c = case("good", np.ones(6), Dtype.F32)
    good = batch([c])
    for exponents, firsts, cells in (
        ([1024], [0.0], 5),
        ([-1024], [0.0], 5),
        ([0], [0.5], 5),
        ([0], [math.inf], 5),
        ([0], [math.nan], 5),
        ([0], [0.0], 0),
        ([0], [0.0], -1),
        ([0], [0.0], 257),
        ([0, 0], [0.0, 0.0], 5),
        ([0], [], 5),
    ):
        with pytest.raises(ValueError):
            kernel.count_cells(good, exponents, firsts, cells=cells)
    for lows, highs, most in (
        ([math.nan], [1.0], 5),
        ([0.0], [math.nan], 5),
        ([0.0], [1.0], -1),
        ([0.0, 0.0], [1.0, 1.0], 5),
    ):
        with pytest.raises(ValueError):
            kernel.list_beyond(good, lows, highs, most=most)
