"""The histogram is exact: every element is in its own bin, whatever lies beside it."""

import itertools
from collections import Counter
from functools import cache

import numpy as np
import pytest
from tests.kernel import reference
from tests.kernel.cases import Case, batch, case, cases
from tests.kernel.reference import counters

from gradwatch import kernel
from gradwatch.kernel import Dtype


def fast_counters(values: np.ndarray) -> tuple[Counter[int], Counter[int]]:
    """`reference.bins` for many elements: frexp in place of hexadecimal."""
    x = values[np.isfinite(values) & (values != 0)]
    exponents = np.frexp(x)[1] - 1
    return tuple(Counter(exponents[side].tolist()) for side in (x < 0, x > 0))  # type: ignore[return-value]


@cache
def references() -> list[tuple[Counter[int], Counter[int]]]:
    return [reference.bins(c.values) for c in cases()]


def test_every_element_is_in_its_bin(instruction_set: str) -> None:
    records, histograms = kernel.measure(batch(cases()), bins=True)
    wrong = [
        c.name
        for c, bins, wanted in zip(cases(), histograms, references(), strict=True)
        if counters(bins) != wanted
    ]
    assert not wrong
    for record, bins in zip(records, histograms, strict=True):
        odd = sum(int(record[name]) for name in ("zeros", "nan", "pos_inf", "neg_inf"))
        assert int(bins.negative.sum() + bins.positive.sum()) + odd == record["count"]
        assert len(bins.negative) == len(bins.positive)


def test_the_edges_of_every_bin(instruction_set: str) -> None:
    powers = 2.0 ** np.arange(-149, 128)
    below = np.nextafter(powers.astype(np.float32), np.float32(0)).astype(np.float64)
    x = np.tile(np.concatenate([powers, -powers, below, -below]), 20)
    edges = case("edges", x, Dtype.F32)
    (bins,) = kernel.measure(batch([edges]), bins=True).bins
    assert counters(bins) == reference.bins(edges.values)


def layouts(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Long tensors that make the window move, miss and give up."""
    gaussian = rng.standard_normal(n)
    third = n // 3
    return {
        "gaussian": gaussian,
        "large first": np.concatenate([gaussian[:third] * 1e12, gaussian[third:] * 1e-9]),
        "large last": np.concatenate([gaussian[:third] * 1e-9, gaussian[third:] * 1e12]),
        "zeros first": np.concatenate([np.zeros(third), gaussian[third:] * 1e-9]),
        "in turn": gaussian * np.where(np.arange(n) // 4096 % 2, 1e-14, 1e3),
        "all octaves": gaussian * 2.0 ** rng.integers(-60, 60, n),
        "rare nan": np.where(rng.random(n) < 1e-5, np.nan, gaussian),
        "rare tiny": np.where(rng.random(n) < 1e-4, gaussian * 1e-20, gaussian),
        "subnormal": gaussian * 2.0**-135,
    }


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16, Dtype.F16])
def test_tensors_of_every_length_up_to_two_blocks(instruction_set: str, dtype: Dtype) -> None:
    """What is counted for one tensor must not be left over for the next."""
    rng = np.random.default_rng(12)
    sizes = [0, 1, 127, 128, 129, 512, 1000, 1023, 1024, 1025, 2049, 4095, 4096, 4097, 6000, 8191]
    drawn = {n: list(layouts(rng, n).values()) for n in sizes}
    some = [
        case(f"{n}", drawn[n][turn], dtype) for turn in range(len(drawn[0])) for n in sizes[::-1]
    ]
    for c, bins in zip(some, kernel.measure(batch(some), bins=True).bins, strict=True):
        assert counters(bins) == fast_counters(c.values), c.name
        assert not len(bins.negative) or bins.negative[0] + bins.positive[0] > 0
        assert not len(bins.negative) or bins.negative[-1] + bins.positive[-1] > 0


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16, Dtype.F16])
def test_long_tensors(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(11)
    some = [case(name, x, dtype) for name, x in layouts(rng, 2 * 131_072 + 4099).items()]
    for c, bins in zip(some, kernel.measure(batch(some), bins=True).bins, strict=True):
        assert counters(bins) == fast_counters(c.values), c.name


def test_shards_add_up(instruction_set: str) -> None:
    rng = np.random.default_rng(2)
    whole = case("whole", rng.standard_t(1, 50_000), Dtype.F32)
    cuts = [0, 13, 4096, 30_000, 50_000]
    parts = [
        Case("part", Dtype.F32, whole.raw[a:b], whole.values[a:b])
        for a, b in itertools.pairwise(cuts)
    ]
    totals: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for bins in kernel.measure(batch(parts), bins=True).bins:
        for total, part in zip(totals, counters(bins), strict=True):
            total.update(part)
    (bins,) = kernel.measure(batch([whole]), bins=True).bins
    assert totals == counters(bins)
