"""Size and finiteness of what a model is fed, on every step."""

import numpy as np
import pytest
import torch
from tests.record.signals.driving import ONLY_PROBE, hook_count
from torch import nn

from gradwatch.record.signals import Inputs

torch.set_num_threads(1)


def scalars_of(model: nn.Module, *args: object, **kwargs: object) -> dict[str, float]:
    signal = Inputs(model)
    signal.attach()
    signal.arm(0, ONLY_PROBE)
    model(*args, **kwargs)
    found = signal.scalars(0)
    signal.detach()
    assert hook_count(model.modules()) == 0
    return found


class Takes(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> int:
        return 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scale_of_the_inputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 30).to(dtype), (300 * torch.randn(20)).to(dtype)
    found = scalars_of(Takes(), [a, {"ids": torch.arange(5)}], mask=None, more=b)
    both = torch.cat([a.double().flatten(), b.double()]).numpy()
    assert found["input_rms"] == pytest.approx(np.sqrt(np.mean(both**2)), rel=1e-5)
    assert found["input_abs_max"] == pytest.approx(np.abs(both).max())
    assert found["input_nonfinite"] == 0


def test_nan_in_the_inputs() -> None:
    data = torch.randn(40, 30)
    data[3, :5] = float("nan")
    data[7, 7] = float("inf")
    found = scalars_of(Takes(), data)
    finite = data[data.isfinite()].double()
    assert found["input_nonfinite"] == 6
    assert found["input_rms"] == pytest.approx(float(finite.pow(2).mean().sqrt()), rel=1e-6)


def test_numbers_whose_squares_overflow() -> None:
    found = scalars_of(Takes(), torch.full((10,), 1e30))
    assert found == {
        "input_rms": pytest.approx(1e30),
        "input_abs_max": pytest.approx(1e30),
        "input_nonfinite": 0,
    }


def test_a_large_input_is_sampled_evenly() -> None:
    torch.manual_seed(0)
    found = scalars_of(Takes(), 5 * torch.randn(300_000))
    assert found["input_rms"] == pytest.approx(5, rel=0.05)


def test_validation_does_not_count() -> None:
    with torch.no_grad():
        assert scalars_of(Takes(), torch.ones(3)) == {}
    assert scalars_of(Takes(), torch.arange(3)) == {}


def test_a_step_that_is_not_recorded_has_no_hook() -> None:
    model = Takes()
    signal = Inputs(model)
    signal.arm(0, ONLY_PROBE)
    assert hook_count([model]) == 1
    signal.arm(1, frozenset())
    assert hook_count([model]) == 0
