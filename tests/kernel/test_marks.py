"""Sketches and hashes: their definitions in plain Python, and that shards add up."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from tests.kernel.cases import Case, batch, case

from gradwatch import kernel
from gradwatch.kernel import Dtype

WORD = (1 << 64) - 1
SIZES = (1, 31, 32, 33, 1000, 4096, 4097, 40_000)


def scramble(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


@cache
def wanted_sketch(dtype: Dtype, index: int, seed: int, offset: int) -> list[float]:
    return naive_sketch(some(dtype)[index].values, seed, offset)


@cache
def wanted_hash(dtype: Dtype, index: int, offset: int) -> int:
    raw = some(dtype)[index].raw
    return naive_hash(raw.view(f"u{raw.itemsize}").tolist(), offset)


def naive_sketch(values: np.ndarray, seed: int, offset: int) -> list[float]:
    buckets: list[list[float]] = [[] for _ in range(32)]
    for i, x in enumerate(values.tolist(), start=offset):
        group, lane = divmod(i, 32)
        word = scramble((seed + group * 0x9E3779B97F4A7C15) & WORD)
        if math.isfinite(x):
            buckets[(lane + (word >> 32)) % 32].append(-x if word >> lane & 1 else x)
    return [math.fsum(bucket) for bucket in buckets]


def naive_hash(bits: list[int], offset: int) -> int:
    total = 0
    for i, b in enumerate(bits, start=offset):
        word = (b + i * 0x9E3779B97F4A7C15) & WORD
        word = ((word ^ (word >> 32)) * 0xBF58476D1CE4E5B9) & WORD
        total += word ^ (word >> 29)
    return total & WORD


@cache
def some(dtype: Dtype) -> list[Case]:
    rng = np.random.default_rng(12)
    result = [case("x", rng.standard_normal(n), dtype) for n in SIZES]
    odd = np.where(rng.random(5000) < 0.1, np.nan, rng.standard_normal(5000))
    return [*result, case("odd", odd, dtype), case("empty", np.zeros(0), dtype)]


@pytest.mark.parametrize("dtype", list(Dtype))
def test_sketches(instruction_set: str, dtype: Dtype) -> None:
    tensors = some(dtype)
    seeds = np.arange(len(tensors), dtype=np.uint64) * np.uint64(2**60 + 1)
    offsets = np.arange(len(tensors)) * 1003
    seen = kernel.sketch(batch(tensors), seeds, offsets)
    fused = kernel.measure_with_sketches(batch(tensors), seeds, offsets)[1]
    for i, c in enumerate(tensors):
        wanted = wanted_sketch(dtype, i, int(seeds[i]), int(offsets[i]))
        size = math.sqrt(len(c.values) + 1)
        np.testing.assert_allclose(seen[i], wanted, atol=2e-6 * size, rtol=1e-6)
        np.testing.assert_allclose(fused[i], wanted, atol=2e-6 * size, rtol=1e-6)


def test_sketches_of_shards_add_up(instruction_set: str) -> None:
    (whole,) = [c for c in some(Dtype.F32) if c.raw.size == 40_000]
    cuts = [0, 5, 4101, 30_000, 40_000]
    parts = [
        Case("p", Dtype.F32, whole.raw[a:b], whole.values[a:b]) for a, b in itertools.pairwise(cuts)
    ]
    shards = kernel.sketch(batch(parts), [9] * 4, cuts[:-1])
    full = kernel.sketch(batch([whole]), [9], [0])[0]
    np.testing.assert_allclose(shards.sum(axis=0), full, atol=1e-3)


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


@pytest.mark.parametrize("dtype", list(Dtype))
def test_hashes(instruction_set: str, dtype: Dtype) -> None:
    tensors = some(dtype)
    offsets = np.arange(len(tensors)) * 77
    seen = kernel.hashes(batch(tensors), offsets)
    for i, mark in enumerate(seen):
        assert int(mark) == wanted_hash(dtype, i, int(offsets[i]))


def test_hashes_of_shards_add_up_and_notice_a_swap(instruction_set: str) -> None:
    x = np.random.default_rng(1).standard_normal(10_001).astype(np.float32)
    swapped = x.copy()
    swapped[[10, 11]] = swapped[[11, 10]]
    tensors, owners = kernel.batch_of([x, x[:777], x[777:], swapped])
    whole, first, second, other = (int(h) for h in kernel.hashes(tensors, [0, 0, 777, 0]))
    assert (first + second) & WORD == whole
    assert other != whole
    del owners
