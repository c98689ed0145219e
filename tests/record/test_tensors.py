"""Where tensors lie: seen by every implementation alike, and never in memory that is gone."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradwatch.kernel as kernel
from gradwatch.record.tensors import gather
from gradwatch.stats import State

EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)


@pytest.fixture(params=["exchange", "asking", "numpy"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """All tests hold for tensors seen by DLPack's interface, by asking each, and without C."""
    if request.param == "exchange" and EXCHANGE is None:
        pytest.skip("this torch has no exchange interface")
    before = kernel.instruction_set
    if request.param == "numpy":
        kernel.select("none")
    kernel.use_exchange(EXCHANGE if request.param == "exchange" else None)
    yield request.param
    kernel.use_exchange(EXCHANGE)
    kernel.select(before)


def sparse() -> Tensor:
    return torch.eye(5).to_sparse()


ORDINARY = {
    "matrix": lambda: torch.randn(3, 4),
    "parameter": lambda: nn.Parameter(torch.randn(2, 3, 4)),
    "vector": lambda: torch.randn(7),
    "number": lambda: torch.tensor(2.5),
    "double": lambda: torch.randn(3, 3, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "half": lambda: torch.randn(5, 2).half(),
    "part of another": lambda: torch.randn(20)[3:9],
    "no rows": lambda: torch.zeros(0, 4),
    "no columns": lambda: torch.zeros(4, 0),
    "one row of many": lambda: torch.randn(1, 1, 6),
    "transposed": lambda: torch.randn(4, 5).t(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every second": lambda: torch.randn(10)[::2],
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "sparse": sparse,
}
"""All of them can be read, some after a copy."""


@pytest.mark.parametrize("what", ORDINARY)
def test_a_gathered_tensor_has_the_numbers_of_the_tensor(way: str, what: str) -> None:
    tensor = ORDINARY[what]()
    gathered = gather([None, tensor, None])
    assert gathered.states.tolist() == [State.NO_GRADIENT, State.MEASURED, State.NO_GRADIENT]
    batch = gathered.batch
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    flat = torch.view_as_real(dense) if dense.is_complex() else dense
    assert batch.counts.tolist() == [0, flat.numel(), 0]
    assert batch.pointers[0] == batch.rows[0] == 0
    assert batch.rows[1] == (flat.shape[0] if flat.dim() > 1 and flat.numel() else 0)
    (_, record, _) = kernel.measure(batch).records
    assert record["count"] == flat.numel()
    if flat.numel():
        expected = np.linalg.norm(flat.double().numpy().reshape(-1))
        assert record["norm"] == pytest.approx(expected, rel=1e-6)
        assert record["max"] == flat.double().max().item()


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(3, dtype=torch.int32), torch.randn(4, device="meta"), torch.zeros(2).bool()],
    ids=["whole numbers", "meta", "truth values"],
)
def test_what_has_no_numbers_for_us_is_unsupported(way: str, tensor: Tensor) -> None:
    gathered = gather([tensor])
    assert gathered.states.tolist() == [State.UNSUPPORTED]
    assert gathered.batch.counts.tolist() == [0]
    assert gathered.tensors == [None]


@pytest.mark.parametrize("bytes_left", [0, 12])
def test_memory_that_was_freed_or_cut_is_never_read(way: str, bytes_left: int) -> None:
    whole = torch.randn(10)
    later, across = whole[5:], whole[:10].view(5, 2).t()
    whole.untyped_storage().resize_(bytes_left)
    assert later.data_ptr() != 0  # the address alone does not tell
    gathered = gather([whole, later, across])
    assert (gathered.states == State.UNSUPPORTED).all()
    assert not gathered.batch.counts.any()
