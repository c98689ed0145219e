"""Every statistic, on every instruction set, against its definition."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from tests.kernel import reference
from tests.kernel.cases import Case, batch, case, cases

from gradwatch import kernel
from gradwatch.kernel import Batch, Dtype

COUNTS = ("count", "zeros", "nan", "pos_inf", "neg_inf")
EXACT = ("abs_max", "min", "max")


@cache
def references() -> list[dict[str, float]]:
    return [reference.moments(c.values) for c in cases()]


def differences(record: np.void, wanted: dict[str, float]) -> list[str]:
    """The names of the statistics that are not what they should be."""
    wrong = [name for name in (*COUNTS, *EXACT) if not same(record[name], wanted[name], 0.0)]
    wrong += [n for n in ("std", "norm", "abs_mean") if not same(record[n], wanted[n], 1e-6)]
    # The mean may be wrong by a small part of the spread, and of itself.
    spread = 0.0 if math.isnan(wanted["std"]) else wanted["std"]
    if not same(record["mean"], wanted["mean"], 1e-7, absolute=1e-6 * spread):
        wrong.append("mean")
    if not same(record["kurtosis"] + 3.0, wanted["kurtosis"] + 3.0, 1e-5):
        wrong.append("kurtosis")
    if not same(record["skewness"], wanted["skewness"], 1e-5, absolute=1e-5):
        wrong.append("skewness")
    return wrong


def same(seen: float, wanted: float, relative: float, absolute: float = 0.0) -> bool:
    if math.isnan(wanted) or math.isnan(seen):
        return math.isnan(wanted) and math.isnan(seen)
    if math.isinf(wanted):
        return seen == wanted
    return abs(seen - wanted) <= relative * abs(wanted) + absolute


def test_every_statistic_matches_its_definition(instruction_set: str) -> None:
    records = kernel.measure(batch(cases())).records
    wrong = {
        c.name: {n: (float(r[n]), w[n]) for n in bad}
        for c, r, w in zip(cases(), records, references(), strict=True)
        if (bad := differences(r, w))
    }
    assert not wrong


@pytest.mark.parametrize("name", ["zeros", "std", "kurtosis", "min", "norm", "mean"])
def test_the_reference_would_notice_a_wrong_value(name: str) -> None:
    index = next(i for i, c in enumerate(cases()) if c.name.startswith("heavy tails F32 (4097"))
    record = kernel.measure(batch([cases()[index]])).records[0].copy()
    assert not differences(record, references()[index])
    record[name] = record[name] + 1 if name == "zeros" else record[name] * (1 + 1e-4)
    assert differences(record, references()[index]) == [name]


def test_a_large_tensor_keeps_its_digits(instruction_set: str) -> None:
    rng = np.random.default_rng(3)
    for offset, scale in ((0.0, 1e-3), (1.0, 1e-3), (1e4, 1e-1), (0.0, 1e-30), (0.0, 1e30)):
        x = (offset + scale * rng.standard_normal(300_001)).astype(np.float32)
        long = x.astype(np.longdouble)
        d = long - long.mean()
        (record,) = kernel.measure_arrays([x])
        assert record["std"] == pytest.approx(float(np.sqrt((d**2).mean())), rel=1e-6)
        assert record["norm"] == pytest.approx(float(np.sqrt((long**2).sum())), rel=1e-6)
        fourth = float((d**4).mean() / (d**2).mean() ** 2)
        assert record["kurtosis"] + 3 == pytest.approx(fourth, rel=1e-5)


def test_the_histogram_does_not_change_the_moments(instruction_set: str) -> None:
    some = batch(cases()[::7])
    assert (
        kernel.measure(some, bins=True).records.tobytes() == kernel.measure(some).records.tobytes()
    )


def test_the_neighbours_in_a_batch_do_not_matter(instruction_set: str) -> None:
    some = cases()[::11]
    together = kernel.measure(batch(some)).records
    for c, record in zip(some, together, strict=True):
        assert kernel.measure(batch([c])).records[0].tobytes() == record.tobytes()


@pytest.mark.parametrize("dtype", list(Dtype))
def test_parts_merge_to_the_whole(instruction_set: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(5)
    whole = case("whole", 2 + rng.standard_t(3, 20_011), dtype)
    whole.raw[[7, 9000]] = case("odd", np.array([np.nan, np.inf]), dtype).raw
    cuts = [0, 1, 4096, 5000, 5000, 19_999, 20_011]
    parts = [
        Case("part", dtype, whole.raw[a:b], whole.values[a:b]) for a, b in itertools.pairwise(cuts)
    ]
    merged = kernel.merge(kernel.measure(batch(parts)).records)
    full = kernel.measure(batch([whole])).records[0]
    for name in (*COUNTS, *EXACT):
        assert merged[name] == full[name]
    for name in ("mean", "std", "norm", "abs_mean", "skewness", "kurtosis"):
        assert merged[name] == pytest.approx(full[name], rel=1e-6)


def test_merging_nothing_finite_gives_nan() -> None:
    record = kernel.merge(kernel.measure_arrays([np.full(3, np.nan), np.zeros(0)]))
    assert record["count"] == 3
    assert record["nan"] == 3
    assert math.isnan(record["mean"])
    assert math.isnan(record["norm"])


def test_merging_keeps_the_extremes_of_double() -> None:
    x = np.random.default_rng(1).standard_normal(1000) * 1e200
    record = kernel.merge(kernel.measure_arrays([x[:300], x[300:]]))
    assert record["norm"] == pytest.approx(reference.norm(x), rel=1e-12)
    assert record["std"] == pytest.approx((x / 1e200).std() * 1e200, rel=1e-12)


def test_arrays_of_any_type_and_order(instruction_set: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    arrays = [x, x.T, x[:, ::2], x.astype(">f4"), x.astype(np.int16), x > 3, x.astype(np.float16)]
    records = kernel.measure_arrays(arrays)
    for array, record in zip(arrays, records, strict=True):
        assert record["mean"] == pytest.approx(array.mean())
        assert record["count"] == array.size
    (pair,) = kernel.measure_arrays([np.array([3 + 4j, 0], np.complex64)])
    assert pair["norm"] == pytest.approx(5.0)
    assert pair["count"] == 4


def test_threads_do_not_change_a_bit(instruction_set: str) -> None:
    some = batch(cases()[::5])
    alone = kernel.measure(some, bins=True).records.tobytes()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: kernel.measure(some, bins=True), range(8)):
            assert found.records.tobytes() == alone


def test_arrays_at_odd_addresses_are_measured(instruction_set: str) -> None:
    memory = np.zeros(1 + 8 * 30, np.uint8)
    for kind in (np.float32, np.float64, np.float16, np.complex64):
        odd = memory[1:].view(kind)
        odd[:] = 2.0
        assert kernel.measure_arrays([odd])["abs_max"][0] == 2.0


def test_every_float16_is_read_as_what_it_is(compiled_set: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = np.repeat(halves, 32)  # 32 of each: whole vectors
    n = halves.size
    starts = wide.ctypes.data + 64 * np.arange(n)
    records = kernel.measure(Batch.of(starts.tolist(), [32] * n, [Dtype.F16] * n)).records
    values = halves.astype(np.float64)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(records["min"][finite], values[finite])
    np.testing.assert_array_equal(records["max"][finite], values[finite])
    np.testing.assert_array_equal(records["nan"], 32 * np.isnan(values))
    np.testing.assert_array_equal(records["pos_inf"], 32 * (values == np.inf))
    np.testing.assert_array_equal(records["neg_inf"], 32 * (values == -np.inf))
