"""Hashes: their definition in plain Python, and that shards add up."""

from functools import cache

import numpy as np
import pytest
from tests.kernel.cases import Case, batch, case

from gradwatch import kernel
from gradwatch.kernel import Dtype

WORD = (1 << 64) - 1
SIZES = (1, 31, 32, 33, 1000, 4096, 4097, 40_000)


@cache
def wanted_hash(dtype: Dtype, index: int, offset: int) -> int:
    raw = some(dtype)[index].raw
    return naive_hash(raw.view(f"u{raw.itemsize}").tolist(), offset)


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
