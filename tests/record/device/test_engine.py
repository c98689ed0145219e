"""torch's operations on devices: what is exact, what a sample tells, what is not finite."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.record.device.fakes import measured
from torch import Tensor

from gradwatch import kernel
from gradwatch.record.device import SAMPLE, output_sums, top
from gradwatch.record.tensors import readable_here

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NORMS = ("norm", "abs_mean", "abs_max")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def truth(tensor: Tensor) -> np.void:
    record: np.void = kernel.measure_arrays([tensor.double().numpy()])[0]
    return record


def assert_near(found: np.void, wanted: np.void, names: Any, tolerance: float = 2e-5) -> None:
    for name in names:
        assert found[name] == pytest.approx(wanted[name], rel=tolerance, nan_ok=True), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_up_to_the_sample_are_measured_whole(dtype: torch.dtype) -> None:
    tensors = [normal(64, 64, dtype=dtype), normal(7, dtype=dtype), normal(1, dtype=dtype)]
    found = measured(*tensors)
    assert found.whole.all()
    for record, tensor in zip(found.records, tensors, strict=True):
        assert_near(record, truth(tensor), kernel.MOMENTS.names, 1e-12)


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_of_larger_tensors_are_exact_and_the_rest_is_sampled(
    dtype: torch.dtype, rows: bool
) -> None:
    tensors = [normal(90, 70, dtype=dtype), normal(SAMPLE + 1, dtype=dtype)]
    found = measured(*tensors, rows=rows)
    assert not found.whole.any()
    for record, sample, tensor in zip(found.records, found.samples, tensors, strict=True):
        wanted = truth(tensor)
        assert len(sample) < SAMPLE
        assert_near(record, wanted, ("count", *NORMS))
        assert_near(record, wanted, ("std",), 0.1)
        assert abs(record["mean"] - wanted["mean"]) < 0.1 * wanted["std"]
        assert record["min"] >= wanted["min"]
        assert record["max"] <= wanted["max"]


def test_norms_that_16_bits_cannot_hold() -> None:
    half = torch.full((100, 100), 3e4, dtype=torch.float16)
    (record,) = measured(half).records
    assert record["norm"] == pytest.approx(3e6, rel=1e-3)
    assert record["abs_max"] == 30000
    (record,) = measured(torch.full((300, 100), 1.0, dtype=torch.bfloat16)).records
    assert record["norm"] == pytest.approx(math.sqrt(30000), rel=1e-4)


@pytest.mark.parametrize("size", [1e-30, 3e37])
def test_where_squares_leave_the_range_of_float32_the_sample_tells(size: float) -> None:
    tensor = normal(100, 100) * size
    (record,) = measured(tensor).records
    wanted = truth(tensor)
    assert record["norm"] == pytest.approx(wanted["norm"], rel=0.1)
    assert record["abs_max"] == wanted["abs_max"]


@pytest.mark.parametrize("rows", [True, False])
def test_what_is_not_finite_is_known_though_the_sample_missed_it(rows: bool) -> None:
    tensors = [normal(100, 100) for _ in range(3)]
    tensors[0][0, 1], tensors[1][0, 1], tensors[2][0, 1] = math.nan, math.inf, -math.inf
    found = measured(*tensors, rows=rows)
    nan, pos, neg = found.records
    for record, sample in zip(found.records, found.samples, strict=True):
        assert np.isfinite(sample).all()
        assert record["norm"] == pytest.approx(100, rel=0.1)
        assert math.isfinite(record["abs_mean"] + record["abs_max"])
    assert (nan["nan"], nan["pos_inf"] + nan["neg_inf"]) == (1, 0)
    assert [one["nan"] for one in (pos, neg)] == [0, 0]
    assert [one["pos_inf"] + one["neg_inf"] for one in (pos, neg)] == [1, 1]


def test_the_share_of_zeros_is_that_of_the_sample() -> None:
    tensor = normal(100, 100)
    tensor.view(-1)[::2] = 0
    tensor.view(-1)[1::100] = math.nan
    (record,) = measured(tensor).records
    assert record["zeros"] == pytest.approx(5000, rel=0.05)
    assert 0 < record["nan"] < 100  # so many are in the sample


def test_empty_tensors_are_given_to_nobody() -> None:
    tensors = [torch.zeros(0), normal(100, 100), torch.zeros(0, 5)]
    found = measured(*tensors)
    assert_near(found.records[1], truth(tensors[1]), NORMS)
    assert found.records["count"].tolist() == [0, 10000, 0]
    assert found.touched[2] is None
    assert np.isnan(found.records["norm"][[0, 2]]).all()


def test_rows_are_looked_at_when_they_are_wanted() -> None:
    small, large, deep = normal(8, 5), normal(60, 100), normal(30, 10, 5, 5)
    small[2], large[7:9], deep[29] = 0, 0, 0
    vector = torch.zeros(9000)
    deep = deep.to(memory_format=torch.channels_last)
    found = measured(small, large, deep, vector, large.t())
    assert [np.flatnonzero(~one).tolist() for one in found.touched[:3] if one is not None] == [
        [2],
        [7, 8],
        [29],
    ]
    assert found.records["zero_rows"].tolist() == [1, 2, 1, 0, 0]
    assert found.touched[3] is None
    found = measured(small, large, rows=False)
    assert found.touched == [None, None]


def test_a_multiplier_is_applied_to_everything_that_has_a_unit() -> None:
    tensors = normal(100, 100), normal(20)
    plain, double = measured(*tensors), measured(*tensors, multiplier=2.0)
    for name in (*NORMS, "mean", "std", "min", "max"):
        assert double.records[name] == pytest.approx(2 * plain.records[name])
    assert double.records["kurtosis"] == pytest.approx(plain.records["kurtosis"])


def test_of_very_many_tensors_the_mean_magnitude_waits_for_a_look_at_rows() -> None:
    tensors = [torch.ones(SAMPLE + 8)] * 257
    assert np.isnan(measured(*tensors, rows=False).records["abs_mean"]).all()
    found = measured(*tensors, rows=True).records
    assert found["abs_mean"] == pytest.approx(1.0, rel=1e-3)
    assert found["norm"] == pytest.approx(math.sqrt(SAMPLE + 8))


def test_what_cannot_be_measured_is_refused() -> None:
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)
    sparse = torch.eye(3).to_sparse()
    for tensor in (freed, sparse, torch.ones(3, dtype=torch.int32)):
        assert readable_here(tensor, anywhere=True) is None


def test_sums_of_an_output() -> None:
    x = torch.tensor([0.0, 1.0, -3.0, math.nan, math.inf, 0.0], dtype=torch.float16)
    assert output_sums(x).tolist() == [2, 2, 3, -2, 10]
    assert top(x[:3]).item() == 3
    assert math.isnan(top(x[:4]).item())
    assert top(torch.full((9000,), 6e4, dtype=torch.float16)).dtype is torch.float32
