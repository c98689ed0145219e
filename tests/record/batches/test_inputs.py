"""Size and finiteness of what a model is fed, batches that come again, and evaluations."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from tests.record.batches.calls import Steps, scalars_of
from torch import Tensor, nn

from gradwatch.record import batches
from gradwatch.run import EventKind

torch.set_num_threads(1)


class Takes(nn.Module):
    def forward(self, *args: object, **kwargs: object) -> int:
        return 0


def scale_of(*args: object, **kwargs: object) -> dict[str, float]:
    """What is said of the inputs, but for their fingerprint."""
    found = scalars_of(Takes(), *args, **kwargs)
    found.pop("batch_fingerprint", None)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scale_of_the_inputs(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 30).to(dtype), (300 * torch.randn(20)).to(dtype)
    found = scale_of([a, {"ids": torch.arange(5)}], mask=None, more=b)
    both = torch.cat([a.double().flatten(), b.double()]).numpy()
    assert found["input_rms"] == pytest.approx(np.sqrt(np.mean(both**2)), rel=1e-5)
    assert found["input_abs_max"] == pytest.approx(np.abs(both).max())
    assert found["input_nonfinite"] == 0


def test_nan_in_the_inputs() -> None:
    data = torch.randn(40, 30)
    data[3, :5] = float("nan")
    data[7, 7] = float("inf")
    found = scale_of(data)
    finite = data[data.isfinite()].double()
    assert found["input_nonfinite"] == 6
    assert found["input_rms"] == pytest.approx(float(finite.pow(2).mean().sqrt()), rel=1e-6)


def test_one_bad_sample_of_a_large_batch() -> None:
    data = torch.randn(256, 3, 16, 16)
    data[77] = float("nan")
    assert scale_of(data)["input_nonfinite"] > 0


def test_numbers_whose_squares_overflow() -> None:
    found = scale_of(torch.full((10,), 1e30))
    assert found == {
        "input_rms": pytest.approx(1e30),
        "input_abs_max": pytest.approx(1e30),
        "input_nonfinite": 0,
    }


@pytest.mark.parametrize("shape", [(300_000,), (64, 32, 3, 50)])
def test_a_large_input_is_sampled_evenly(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    data = 5 * torch.randn(shape)
    for given in (data, data.transpose(0, -1), data[..., ::2]):
        assert scale_of(given)["input_rms"] == pytest.approx(5, rel=0.05)


def test_all_micro_batches_of_a_step_count() -> None:
    model = Takes()
    steps = Steps(model)
    with steps.step() as found:
        model(torch.full((4,), 3.0))
        model(torch.full((4,), -4.0))
    assert found.scalars["input_rms"] == pytest.approx(np.sqrt(12.5))
    assert found.scalars["input_abs_max"] == 4
    with steps.step(1) as found:
        pass
    assert found.scalars == {}


def test_validation_does_not_count() -> None:
    with torch.no_grad():
        found = scale_of(torch.ones(3))
    assert found == {"evaluations": 1, "evaluations_in_training": 0}
    assert scale_of(torch.arange(3)) == {}  # whole numbers have no scale


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_of_a_sparse_input_the_stored_values(layout: str) -> None:
    dense = torch.zeros(40, 30)
    dense[::4, ::3] = torch.arange(100.0).reshape(10, 10)
    dense[4, 3] = float("nan")
    sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    found = scalars_of(Takes(), sparse)
    kept = dense[(dense != 0) & dense.isfinite()].double().numpy()
    assert found["input_rms"] == pytest.approx(np.sqrt(np.mean(kept**2)), rel=1e-6)
    assert found["input_abs_max"] == kept.max()
    assert found["input_nonfinite"] == 1
    assert "batch_fingerprint" not in found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_alone() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    assert scale_of(nested, torch.full((3,), 2.0))["input_rms"] == 2


# -- which calls count -----------------------------------------------------------------------------


class Graphs:
    """What programs feed their models with, and nobody knows."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Lightning(nn.Module):
    """Called by another method than its forward, or fed with something nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def training_step(self, batch: Tensor) -> Tensor:
        return self.layer(batch)

    def forward(self, batch: Graphs) -> Tensor:
        return self.training_step(batch.x)


@pytest.mark.parametrize("by_method", [True, False])
def test_a_model_that_is_fed_with_no_tensors_is_told_of_once(by_method: bool) -> None:
    model = Lightning()
    steps = Steps(model)
    for step in range(6):
        with steps.step(step) as found:
            data = torch.randn(6, 5)
            model.training_step(data) if by_method else model(Graphs(data))
        assert "input_rms" not in found.scalars
    (event,) = steps.kept.events
    assert event.kind is EventKind.NOT_RECORDED
    assert event.text.startswith("inputs are not recorded")


def test_a_model_that_is_fed_is_not_told_of() -> None:
    model = nn.Linear(5, 3)
    steps = Steps(model)
    for step in range(6):
        with steps.step(step):
            model(torch.randn(6, 5))
    assert steps.kept.events == []


def test_the_parts_of_a_model_without_a_forward_are_fed() -> None:
    model = nn.ModuleDict({"first": nn.Linear(5, 4), "second": nn.Sequential(nn.Linear(4, 3))})
    data = torch.randn(6, 5)
    steps = Steps(model)
    with steps.step() as found:
        model["second"](model["first"](data))  # the second is fed by the first: that is no data
    assert found.scalars["input_rms"] == pytest.approx(float(data.square().mean().sqrt()))


# -- evaluations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "counts"),
    [
        (nn.Dropout(0.1), True),
        (nn.BatchNorm1d(4), True),
        (nn.LSTM(4, 4, 2, dropout=0.1), True),
        (nn.Dropout(0.0), False),
        (nn.LSTM(4, 4, 2), False),
        (nn.LayerNorm(4), False),
    ],
)
def test_evaluations_in_training_mode(layer: nn.Module, counts: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    steps = Steps(model)
    with steps.step() as found:
        with torch.no_grad():
            for training in (True, True, False):
                model.train(training)(torch.randn(3, 4))
        model.eval()
        layer.train()  # Monte-Carlo dropout
        with torch.inference_mode():
            model(torch.randn(3, 4))
    assert found.scalars == {"evaluations": 4, "evaluations_in_training": 2 * counts}
    with steps.step(1) as found:
        pass
    assert found.scalars == {}


# -- batches that come again -----------------------------------------------------------------------


def print_of(*args: object) -> float:
    return scalars_of(Takes(), *args)["batch_fingerprint"]


FED: dict[str, Callable[[], Tensor]] = {
    "floats": lambda: torch.randn(6, 5),
    "many": lambda: torch.randn(64, 3, 32, 32),
    "permuted": lambda: torch.randn(64, 32, 3).permute(0, 2, 1),
    "cut out": lambda: torch.randint(50, (12, 129))[:, :-1],
    "cut out of many": lambda: torch.randn(64, 7, 40, 40)[:, ::2, 3:, :-1],
    "whole numbers": lambda: torch.randint(50, (12, 128)),
    "bytes": lambda: torch.randint(256, (64, 28, 28), dtype=torch.uint8),
    "half": lambda: torch.randn(6, 500).bfloat16(),
    "truth": lambda: torch.rand(40, 40) > 0.5,
    "one": lambda: torch.randn(()),
}


@pytest.mark.parametrize("case", FED)
def test_equal_batches_have_equal_fingerprints_and_others_have_not(case: str) -> None:
    torch.manual_seed(0)
    fed = [FED[case]() for _ in range(20)]
    prints = [print_of(batch) for batch in fed]
    assert prints == [print_of(deepcopy(batch)) for batch in fed]
    assert len(set(prints)) == 20
    assert all(0 < value < 1 << 32 for value in prints)


def test_pictures_that_are_empty_at_their_edges() -> None:
    pictures = torch.zeros(20, 64, 28, 28)
    pictures[:, :, 8:20, 8:20] = torch.rand(20, 64, 12, 12)
    assert len({print_of(batch) for batch in pictures}) == 20


def test_a_fingerprint_is_of_all_inputs_in_order_with_shape_and_type() -> None:
    a, b = torch.arange(6.0), torch.zeros(2, 3)
    assert len({print_of(a, b), print_of(b, a), print_of(a), print_of(a, b, b)}) == 4
    assert len({print_of(a), print_of(a.view(2, 3)), print_of(a.view(torch.int32))}) == 3


def test_a_batch_that_is_fed_several_times_within_a_step_counts_once() -> None:
    model, data = Takes(), torch.randn(6, 5)
    steps = Steps(model)
    with steps.step() as found:
        for _ in range(3):
            model(data)
    assert found.scalars["batch_fingerprint"] == print_of(data)


def test_batches_of_which_next_to_nothing_is_seen_are_not_compared() -> None:
    """Words, one-hot: the few bytes that are read are nearly all zero, whatever the batch is."""
    random = torch.Generator().manual_seed(0)
    words = torch.randint(0, 5000, (512,), generator=random)
    batch = torch.nn.functional.one_hot(words, 5000).float()
    assert "batch_fingerprint" not in scalars_of(Takes(), batch)
    assert "batch_fingerprint" in scalars_of(Takes(), batch[:, :1000] + batch[:, 1000:2000] + 1)


def test_what_cannot_be_read_has_no_fingerprint() -> None:
    found = scalars_of(Takes(), torch.ones(3), torch.ones(3, device="meta"))
    assert "batch_fingerprint" not in found


# -- on a device -----------------------------------------------------------------------------------


def test_of_inputs_on_a_device_a_sample_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU stand for those of a device."""
    monkeypatch.setattr(batches.looking, "device_readable", lambda tensor: tensor.is_cpu)
    monkeypatch.setattr(batches, "_sample", lambda tensor: None)
    torch.manual_seed(0)
    model, data = Takes(), 5 * torch.randn(100, 100)
    data[3, 3] = float("nan")
    steps = Steps(model)
    with steps.step(7) as found:
        model(data)
        data.fill_(1.0)  # a buffer that is filled anew
    assert found.scalars == {}
    ((transfer, finish),) = found.late
    transfer.wait()
    late = finish(transfer.parts())
    assert late.step == 7
    assert late.scalars["input_rms"] == pytest.approx(5, rel=0.1)
    assert "batch_fingerprint" not in late.scalars
