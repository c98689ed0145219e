"""Sketches: their definition in plain Python, that shards add up, that inner products are kept."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from tests.kernel.cases import Case, batch, case

from gradwatch import kernel
from gradwatch.kernel import Dtype

WORD = (1 << 64) - 1
SIZES = (1, 31, 32, 33, 255, 257, 1000, 4096, 4097, 40_000, 70_001)
LARGE = 1_000_000
"""The whole of which the tensors may be shards: large enough for a choice of groups."""


def scramble(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def naive_sketch(values: np.ndarray, seed: int, offset: int, whole: int) -> list[float]:
    """Bucket by bucket, as the definition reads."""
    buckets: list[list[float]] = [[] for _ in range(32)]
    groups = 8 if whole > 65_536 else 1
    for i, x in enumerate(values.tolist(), start=offset):
        bunch, place = divmod(i // 32, groups)
        word = scramble((seed + bunch * 0x9E3779B97F4A7C15) & WORD)
        if place == (word >> 37) % groups and math.isfinite(x):
            lane = i % 32
            buckets[(lane + (word >> 32)) % 32].append(-x if word >> lane & 1 else x)
    return [math.fsum(bucket) * math.sqrt(groups) for bucket in buckets]


@cache
def wanted_sketch(dtype: Dtype, index: int, seed: int, offset: int, whole: int) -> list[float]:
    return naive_sketch(some(dtype)[index].values, seed, offset, whole)


@cache
def some(dtype: Dtype) -> list[Case]:
    rng = np.random.default_rng(12)
    result = [case("x", rng.standard_normal(n), dtype) for n in SIZES]
    odd = np.where(rng.random(5000) < 0.1, np.nan, rng.standard_normal(5000))
    return [*result, case("odd", odd, dtype), case("empty", np.zeros(0), dtype)]


@pytest.mark.parametrize("whole", [None, 65_536, LARGE])
@pytest.mark.parametrize("dtype", list(Dtype))
def test_sketches(instruction_set: str, dtype: Dtype, whole: int | None) -> None:
    tensors = some(dtype)
    seeds = np.arange(len(tensors), dtype=np.uint64) * np.uint64(2**60 + 1)
    offsets = np.arange(len(tensors)) * 1003
    wholes = None if whole is None else [whole] * len(tensors)
    seen = kernel.sketch(batch(tensors), seeds, offsets, wholes)
    _, fused = kernel.measure(batch(tensors), seeds=seeds, offsets=offsets, wholes=wholes)[::2]
    _, _, with_bins = kernel.measure(
        batch(tensors), bins=True, seeds=seeds, offsets=offsets, wholes=wholes
    )
    for i, c in enumerate(tensors):
        wanted = wanted_sketch(
            dtype, i, int(seeds[i]), int(offsets[i]), c.raw.size if whole is None else whole
        )
        size = math.sqrt(len(c.values) + 1)
        for one in (seen, fused, with_bins):
            np.testing.assert_allclose(one[i], wanted, atol=6e-6 * size, rtol=1e-6)


def test_everything_in_one_pass_is_what_the_passes_give_alone(instruction_set: str) -> None:
    tensors = batch(some(Dtype.F32))
    ones, zeros = np.ones(len(tensors), np.uint64), np.zeros(len(tensors), np.int64)
    records, bins, sketches = kernel.measure(tensors, bins=True, seeds=ones, offsets=zeros)
    assert records.tobytes() == kernel.measure(tensors).records.tobytes()
    np.testing.assert_array_equal(
        sketches, kernel.measure(tensors, seeds=ones, offsets=zeros)[::2][1]
    )
    for one, other in zip(bins, kernel.measure(tensors, bins=True).bins, strict=True):
        assert one.first_exponent == other.first_exponent
        np.testing.assert_array_equal(one.negative, other.negative)
        np.testing.assert_array_equal(one.positive, other.positive)


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("size", [40_000, 70_001])
def test_sketches_of_shards_add_up(instruction_set: str, dtype: Dtype, size: int) -> None:
    (whole,) = [c for c in some(dtype) if c.raw.size == size]
    # In the midst of a group, of a bunch, at a group's and at a bunch's beginning; an empty one.
    cuts = [0, 5, 4101, 8192 + 32, 8192 + 33, 20_480, 20_480, 30_000, size]
    parts = [
        Case("p", dtype, whole.raw[a:b], whole.values[a:b]) for a, b in itertools.pairwise(cuts)
    ]
    n = len(parts)
    for sketch in (
        kernel.sketch(batch(parts), [9] * n, cuts[:-1], [size] * n),
        kernel.measure(batch(parts), seeds=[9] * n, offsets=cuts[:-1], wholes=[size] * n)[::2][1],
    ):
        full = kernel.sketch(batch([whole]), [9], [0])[0]
        np.testing.assert_allclose(sketch.sum(axis=0), full, atol=3e-3)


def test_inner_products_of_sketches_estimate_those_of_tensors(instruction_set: str) -> None:
    rng = np.random.default_rng(13)
    x = rng.standard_normal(20_000).astype(np.float32)
    y = (0.8 * x + 0.6 * rng.standard_normal(20_000)).astype(np.float32)
    # A matrix of 32 columns with one that matters: buckets must not follow columns.
    column = np.zeros((625, 32), np.float32)
    column[:, 3] = rng.standard_normal(625)
    cosines, norms = [], []
    for seed in range(60):
        tensors, owners = kernel.batch_of([x, y, column.ravel()])
        a, b, c = kernel.sketch(tensors, [seed] * 3, [0] * 3).astype(np.float64)
        cosines.append(a @ b / 20_000)
        norms.append(c @ c / (column.astype(np.float64) ** 2).sum())
        del owners
    assert np.mean(cosines) == pytest.approx(0.8, abs=0.1)
    assert np.mean(norms) == pytest.approx(1.0, abs=0.15)
    assert np.std(norms) < 0.5  # 0.25 expected; one bucket for the column would give 1.4


def test_chosen_groups_keep_inner_products_on_average(instruction_set: str) -> None:
    rng = np.random.default_rng(14)
    n = 131_072
    x = rng.standard_normal(n).astype(np.float32)
    y = (0.6 * x + 0.8 * rng.standard_normal(n)).astype(np.float32)
    # All that matters in one row of 1,024: few bunches, so that a wrong factor would show.
    row = np.zeros((128, 1024), np.float32)
    row[7] = rng.standard_normal(1024)
    products = []
    for seed in range(200):
        tensors, owners = kernel.batch_of([x, y, row.ravel()])
        a, b, c = kernel.sketch(tensors, [seed] * 3, [0] * 3).astype(np.float64)
        products.append((a @ b / n, a @ a / n, c @ c / float((row**2).sum())))
        del owners
    dots, squares, rows = np.array(products).T
    # One estimate deviates by 0.25 or less of the size (rows: by 1.4); the mean of 200 by 1/14.
    assert np.mean(dots) == pytest.approx(0.6, abs=0.08)
    assert np.mean(squares) == pytest.approx(1.0, abs=0.08)
    assert np.mean(rows) == pytest.approx(1.0, abs=0.4)
    assert np.std(squares) < 0.4


def test_no_element_is_left_out_by_every_seed(instruction_set: str) -> None:
    # One element that is not zero: the seeds that take its group are about one in eight.
    x = np.zeros(70_000, np.float32)
    x[12_345] = 1.0
    seeds = np.arange(400)
    tensors, owners = kernel.batch_of([x] * 400)
    sketches = kernel.sketch(tensors, seeds, np.zeros(400))
    taken = np.abs(sketches).sum(axis=1)
    del owners
    assert 25 <= np.count_nonzero(taken) <= 80
    np.testing.assert_allclose(taken[taken > 0], math.sqrt(8), rtol=1e-6)
    assert set(np.sign(sketches[sketches != 0])) == {-1.0, 1.0}
    assert len(set(np.abs(sketches).argmax(axis=1)[taken > 0])) > 10
