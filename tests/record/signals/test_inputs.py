"""Size and finiteness of what a model is fed, on every step."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from tests.record.signals.driving import ONLY_PROBE, hook_count
from torch import Tensor, nn

from gradwatch.record.signals import Inputs

torch.set_num_threads(1)


def scalars_of(model: nn.Module, *args: object, **kwargs: object) -> dict[str, float]:
    """What is said of the inputs, but for their fingerprint."""
    found = all_scalars_of(model, *args, **kwargs)
    found.pop("batch_fingerprint", None)
    return found


def all_scalars_of(model: nn.Module, *args: object, **kwargs: object) -> dict[str, float]:
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
        found = scalars_of(Takes(), torch.ones(3))
    assert found == {"evaluations": 1, "evaluations_in_training": 0}
    assert scalars_of(Takes(), torch.arange(3)) == {}


def test_a_step_that_is_not_recorded_has_no_hook() -> None:
    model = Takes()
    signal = Inputs(model)
    signal.arm(0, ONLY_PROBE)
    assert hook_count([model]) == 1
    signal.arm(1, frozenset())
    assert hook_count([model]) == 0


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


class Lightning(nn.Module):
    """Called by another method than its forward, or fed with something nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(4, 3), nn.Linear(5, 4)

    def training_step(self, batch: Tensor) -> Tensor:
        return self.second(self.first(batch))

    def forward(self, batch: object) -> Tensor:
        return self.training_step(batch.x)  # type: ignore[attr-defined]


class Graphs:
    def __init__(self, x: Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("by_method", [True, False])
def test_where_the_model_is_fed_with_no_tensors_the_first_layer_counts(by_method: bool) -> None:
    torch.manual_seed(0)
    model = Lightning()
    signal = Inputs(model)
    signal.attach()
    for step in range(3):
        signal.arm(step, ONLY_PROBE)
        assert hook_count(model.modules()) == (3 if step == 0 else 2)
        data = (step + 1) * 100 * torch.randn(6, 5)
        with torch.no_grad():
            model.second(torch.ones(6, 4))  # of a rollout or a validation
        model.training_step(data) if by_method else model(Graphs(data))
        found = signal.scalars(step)
        assert found["input_rms"] == pytest.approx(float(data.double().pow(2).mean().sqrt()))
    signal.detach()
    assert hook_count(model.modules()) == 0


def test_a_model_that_is_fed_itself_needs_no_look_at_its_layers() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    signal = Inputs(model)
    signal.arm(0, ONLY_PROBE)
    model(torch.arange(5))
    assert set(signal.scalars(0)) == {"batch_fingerprint"}  # whole numbers have no scale
    signal.arm(1, ONLY_PROBE)
    assert hook_count(model.modules()) == 1


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
    signal = Inputs(model)
    signal.arm(0, ONLY_PROBE)
    with torch.no_grad():
        for training in (True, True, False):
            model.train(training)(torch.randn(3, 4))
    model.eval()
    layer.train()  # Monte-Carlo dropout
    with torch.inference_mode():
        model(torch.randn(3, 4))
    found = signal.scalars(0)
    assert found == {"evaluations": 4, "evaluations_in_training": 2 * counts}
    signal.arm(1, ONLY_PROBE)
    assert signal.scalars(1) == {}


def print_of(*args: object) -> float:
    return all_scalars_of(Takes(), *args)["batch_fingerprint"]


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
    "sparse": lambda: (torch.rand(40, 40) > 0.9).float().to_sparse(),
    "one": lambda: torch.randn(()),
}


@pytest.mark.parametrize("case", FED)
def test_equal_batches_have_equal_fingerprints_and_others_have_not(case: str) -> None:
    torch.manual_seed(0)
    batches = [FED[case]() for _ in range(20)]
    prints = [print_of(batch) for batch in batches]
    assert prints == [print_of(deepcopy(batch)) for batch in batches]
    assert len(set(prints)) == 20
    assert all(0 < value < 1 << 32 for value in prints)


def test_pictures_that_are_empty_at_their_edges() -> None:
    batches = torch.zeros(20, 64, 28, 28)
    batches[:, :, 8:20, 8:20] = torch.rand(20, 64, 12, 12)
    assert len({print_of(batch) for batch in batches}) == 20


def test_a_fingerprint_is_of_all_inputs_in_order_with_shape_and_type() -> None:
    a, b = torch.arange(6.0), torch.zeros(2, 3)
    assert len({print_of(a, b), print_of(b, a), print_of(a), print_of(a, b, b)}) == 4
    assert len({print_of(a), print_of(a.view(2, 3)), print_of(a.view(torch.int32))}) == 3


def test_batches_of_which_next_to_nothing_is_seen_are_not_compared() -> None:
    """Words, one-hot: the few bytes that are read are nearly all zero, whatever the batch is."""
    random = torch.Generator().manual_seed(0)
    words = torch.randint(0, 5000, (512,), generator=random)
    batch = torch.nn.functional.one_hot(words, 5000).float()
    assert "batch_fingerprint" not in all_scalars_of(Takes(), batch)
    assert "batch_fingerprint" in all_scalars_of(Takes(), batch[:, :1000] + batch[:, 1000:2000] + 1)


def test_what_cannot_be_read_has_no_fingerprint() -> None:
    found = all_scalars_of(Takes(), torch.ones(3), torch.ones(3, device="meta"))
    assert "batch_fingerprint" not in found
