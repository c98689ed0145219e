"""Torch tensors of every kind, read without importing torch."""

import numpy as np
import pytest

from gradwatch.errors import GradwatchError
from gradwatch.run import as_array, as_run, number

torch = pytest.importorskip("torch")

NUMBERS = [[1.5, -2.0, 0.0], [0.25, 3.0, -0.5]]
TENSOR = torch.tensor(NUMBERS)


@pytest.mark.parametrize(
    "value",
    [
        TENSOR,
        TENSOR.double().t().contiguous().t(),
        TENSOR.half(),
        TENSOR.bfloat16(),
        TENSOR.to(torch.float8_e4m3fn),
        TENSOR.to(torch.float8_e5m2),
        TENSOR.to_sparse(),
        torch.nn.Parameter(TENSOR.clone()),
        torch.nn.Parameter(TENSOR.bfloat16()),
        torch._neg_view(-TENSOR),
        [TENSOR[0], TENSOR[1].clone().requires_grad_()],
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_tensors_of_every_kind_are_read(value) -> None:
    assert as_array(value, "w").astype(float).tolist() == NUMBERS


@pytest.mark.filterwarnings("ignore")  # torch's, about features of its own
def test_compressed_tensors_are_read() -> None:
    quantized = torch.quantize_per_tensor(TENSOR, 0.25, 0, torch.qint8)
    for tensor in (TENSOR.to_sparse_csr(), TENSOR.to_sparse_csc(), quantized):
        assert as_array(tensor, "w").tolist() == NUMBERS
    assert as_array(torch.tensor([1 - 2j]).to(torch.complex32), "w").tolist() == [1 - 2j]


def test_memory_is_shared_and_not_copied() -> None:
    tensor = torch.zeros(4, requires_grad=True)
    as_array(tensor, "w")[1] = 7.0
    assert tensor[1].item() == 7.0


def test_complex_tensors_keep_both_parts() -> None:
    tensor = torch.tensor([1 + 2j]).conj()
    assert as_array(tensor, "w").tolist() == [1 - 2j]


@pytest.mark.parametrize(
    "data",
    [
        {0: np.array([3.0, 4.0]), 1: torch.tensor([1.0, 2.0]).bfloat16()},
        {"0": [torch.tensor(3.0, requires_grad=True), torch.tensor(4.0)], "1": range(1, 3)},
        {"0": [torch.tensor([3.0]), torch.tensor([4.0])], "1": torch.tensor([[1.0], [2.0]])},
        [[np.array([[3.0]]), np.array([4.0])], torch.tensor([[[1.0]], [[-2.0]]])],
    ],
)
def test_tensors_become_a_run(data) -> None:
    run = as_run(data, steps=torch.tensor([5, 9]), scalars={"loss": torch.ones(2)})
    assert run.names == run.layers == ("0", "1")
    assert run.series["grad_norm"].tolist() == [[3.0, 1.0], [4.0, 2.0]]
    assert run.steps.tolist() == [5, 9]


@pytest.mark.parametrize(
    "data",
    [
        torch.ones(3),
        {"b": [1.0], "my.a": [torch.ones((), device="meta")]},
        {"b": [[1.0]], "my.a": [torch.ones(2, device="meta")]},
        {"b": [1.0], "my.a": torch.tensor(1.0)},
        {"b": [1.0], "my.a": torch.tensor([1.0 + 1j])},
        {"b": [1.0], "my.a": torch.tensor([-1.0])},
    ],
)
def test_what_gives_no_numbers_is_refused(data) -> None:
    with pytest.raises(GradwatchError, match=r"^Expected .*('my.a'|shape)") as caught:
        as_run(data)
    assert "\n" not in str(caught.value)


def test_numbers_of_an_option() -> None:
    assert number(torch.tensor(0.5), "limit") == 0.5
    with pytest.raises(GradwatchError, match="for limit"):
        number(torch.ones(2), "limit")
