"""Looking at tensors: how many elements are not finite, and samples that meet every part."""

import pytest
import torch

from gradwatch.record.looking import nonfinite
from gradwatch.record.tensors import spread


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_counts_of_non_finite_elements(dtype: torch.dtype, bad: float) -> None:
    largest = torch.finfo(dtype).max
    tensor = torch.full((50, 60), largest, dtype=dtype)
    assert nonfinite(tensor) == 0  # no overflow of a sum is taken for one
    tensor[::7, 3] = bad
    assert nonfinite(tensor) == 8
    assert nonfinite(tensor.t()) == 8
    assert nonfinite(tensor[:, 2:5]) == 8


def test_a_large_tensor_is_sampled_over_its_whole_width() -> None:
    tensor = torch.zeros(1000, 512)
    tensor[17] = float("nan")  # one sample of a batch
    found = nonfinite(tensor)
    assert 0 < found <= 4096
    assert nonfinite(tensor, whole=True) == 512
    channels_last = torch.zeros(8, 64, 16, 16).to(memory_format=torch.channels_last)
    channels_last[3] = float("inf")
    assert nonfinite(channels_last) > 0


@pytest.mark.parametrize("layout", ["plain", "transposed", "channels last", "every other"])
def test_a_spread_meets_every_part_of_a_tensor(layout: str) -> None:
    x = torch.arange(16.0 * 8 * 12 * 10).reshape(16, 8, 12, 10)
    if layout == "transposed":
        x = x.transpose(0, 3)
    elif layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "every other":
        x = x[:, ::2]
    found = spread(x, 500)
    assert 250 <= found.numel() <= 500
    assert torch.isin(found, x).all()
    assert set(found.div(8 * 12 * 10, rounding_mode="floor").tolist()) == set(range(16))
    assert spread(x, x.numel()).sort().values.equal(x.reshape(-1).sort().values)
