"""What a recorded step costs a device: counted on shapes of GPT-2 and Llama, without memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.record.device.counting import META, Counting, gpt2, llama
from tests.record.device.fakes import Tracked, call, meter
from torch import Tensor

from gradwatch.record.recorder import Found


class Model:
    """Parameters and gradients of a large model, without memory."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        tensors = [torch.empty(shape, dtype=dtype, device=META) for shape in shapes]
        for tensor in tensors:
            tensor.grad = torch.empty_like(tensor)
        self.bytes = sum(tensor.nbytes for tensor in tensors)
        self.tracked = Tracked(tensors)
        self.meter, _ = meter(self.tracked)

    def gradients(self) -> tuple[int, float]:
        """Launches, and how often the gradients' bytes were moved."""
        return self.count(lambda: self.meter.gradients(call(self.tracked)))

    def count(self, action: Callable[[], Any]) -> tuple[int, float]:
        with Counting() as counting:
            action()
        return counting.launches.total(), counting.bytes / self.bytes


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory, and the way to the host, which meta tensors have not: one launch per copy."""

    def copy(flat: Tensor) -> tuple[Tensor, None]:
        return flat.clone(), None

    monkeypatch.setattr("gradwatch.record.transfer._copy", copy)
    monkeypatch.setattr("gradwatch.record.tensors._has_memory", lambda _: True)


def test_gradients_of_gpt2() -> None:
    model = Model(gpt2(), torch.float32)
    with_rows = model.gradients()
    plain = [model.gradients() for _ in range(3)]
    assert len(set(plain)) == 1
    launches, reads = plain[0]
    assert launches <= 40
    assert round(reads, 1) == 3
    launches, reads = with_rows
    assert launches <= 100
    assert round(reads, 1) == 3
    assert model.gradients() == with_rows


def test_gradients_of_llama_take_two_norms_on_most_steps() -> None:
    model = Model(llama(), torch.bfloat16)
    (_, third), (launches, two) = model.gradients(), model.gradients()
    assert round(two, 1) == 2
    assert launches < 1000  # so many a CUDA stream holds
    assert round(third, 1) == 3


def test_weights_and_updates_of_gpt2() -> None:
    model = Model(gpt2(), torch.float32)
    launches, reads = model.count(lambda: model.meter.weights(Found(0), histograms=True))
    assert launches <= 150  # 50 of them copy the corners of matrices, on one step of 16
    assert round(reads, 1) == 3
    launches, reads = model.count(model.meter.snapshot)
    assert launches <= 10
    assert reads <= 0.1
    launches, reads = model.count(lambda: model.meter.updates(call(model.tracked)))
    assert launches <= 20
    assert reads <= 0.1


def test_a_wait_for_the_device_would_be_seen() -> None:
    with Counting(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        torch.empty(3, device=META).sum().item()
