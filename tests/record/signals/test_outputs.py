"""What the output of a model shows: spread, predictions, and targets by its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.record.signals.driving import EVERYTHING, ONLY_PROBE, hook_count
from torch import Tensor, nn

from gradwatch.record.signals import Outputs

torch.set_num_threads(1)


class Gives(nn.Module):
    """Gives what it is told to, for once."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self) -> Any:
        return self.output


def scalars_of(output: Any) -> dict[str, float]:
    model = Gives(output)
    signal = Outputs(model)
    signal.arm(0, EVERYTHING)
    model()
    found = signal.scalars(0)
    signal.detach()
    assert hook_count([model]) == 0
    return found


@pytest.mark.parametrize(
    "shape", [(32,), (32, 1), (32, 10), (8, 12, 10), (1, 12, 10), (4, 5, 3, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_size_and_spread(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    output = (3 + torch.randn(shape)).to(dtype)
    found = scalars_of(output)
    table = output.double().numpy()
    table = table[0] if len(table) == 1 else table
    naive = np.sqrt(((table - table.mean(axis=0)) ** 2).mean()) / np.sqrt((table**2).mean())
    # a few columns of wide outputs stand for the others
    assert found["output_spread"] == pytest.approx(naive, rel=0.1)
    assert found["output_rms"] == pytest.approx(np.sqrt((table**2).mean()), rel=0.1)


def test_equal_rows_have_no_spread_and_one_row_has_none_to_have() -> None:
    assert scalars_of(torch.randn(1, 6).expand(20, 6))["output_spread"] < 1e-6
    assert scalars_of(torch.zeros(20, 6))["output_spread"] == 0
    assert "output_spread" not in scalars_of(torch.randn(1, 6))


@pytest.mark.parametrize("shape", [(40, 5), (8, 5, 5), (4, 5, 4, 4)])
def test_predictions(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    output = torch.randn(shape)
    output.movedim(1 if len(shape) > 3 else -1, 0)[2] += 2
    found = scalars_of((output, torch.tensor(1.0)))
    naive = output.argmax(1 if len(shape) > 3 else -1).flatten().tolist()
    assert found["predicted_class"] == 2
    assert found["predicted_share"] == pytest.approx(naive.count(2) / len(naive))
    assert found["predicted_classes"] == len(set(naive))


def test_predictions_of_one_number() -> None:
    values = torch.tensor([-1.0, 0.2, 0.3, 2.0])
    assert scalars_of(values)["predicted_share"] == 0.75
    leaf = values.clone().requires_grad_()
    assert scalars_of((torch.tensor(3.0), leaf.sigmoid()))["predicted_share"] == 0.75


@pytest.mark.parametrize("output", [torch.tensor(1.0), torch.ones(0, 3), torch.arange(3), None])
def test_what_is_no_output(output: object) -> None:
    assert scalars_of(output) == {}


def test_only_forwards_with_gradients_on_steps_of_updates() -> None:
    model = Gives(torch.randn(4, 3))
    signal = Outputs(model)
    signal.arm(0, ONLY_PROBE)
    assert hook_count([model]) == 0
    signal.arm(1, EVERYTHING)
    with torch.no_grad():
        model()
    assert signal.scalars(1) == {}


def noted(loss: Callable[[Tensor], Tensor], end: nn.Module | None = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), end or nn.Identity())
    signal = Outputs(model)
    for step in range(4):
        signal.arm(step, EVERYTHING)
        loss(model(torch.randn(6, 4))).backward()
        assert (dict(signal.info) != {}) is (step > 2)
        list(signal.collect(step))
        assert signal.scalars(step)
    signal.detach()
    return dict(signal.info)


def test_targets_and_their_range() -> None:
    wanted = torch.linspace(-1, 2, 30).view(6, 5)
    lines = noted(lambda output: F.mse_loss(output, wanted), nn.Sigmoid())["targets"]
    assert {line[0] for line in lines} == {0, 1, 2}
    first = lines[0]  # the mean comes first
    assert first[2] == pytest.approx(float(wanted.square().mean().sqrt()), rel=1e-4)
    assert first[3:5] == pytest.approx([-1.0, 2.0], abs=1e-4)
    assert first[5] == pytest.approx(float(((wanted < 0) | (wanted > 1)).float().mean()))
    unbounded = noted(lambda output: F.mse_loss(output, wanted))["targets"]
    assert unbounded[0][5] is None


def test_classes_of_the_targets() -> None:
    labels = torch.tensor([0, 3, 3, 3, 2, 2])
    found = noted(lambda output: F.cross_entropy(output, labels))["target_classes"]
    assert found == {"seen": 18, "most": 3, "share": 0.5, "classes": 3}
    assert "target_classes" not in noted(lambda output: output.square().mean())


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e200])
def test_numbers_that_cannot_be_summed(odd: float) -> None:
    output = torch.ones(6, 3, dtype=torch.float64)
    output[0, 0], output[1, 0] = odd, -odd
    found = scalars_of(output)
    assert "output_rms" not in found
    assert "output_spread" not in found


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_say_nothing_of_targets(odd: float) -> None:
    weights = torch.ones(6, 5)
    weights[2, 2] = odd
    assert noted(lambda output: (output * weights).sum())["targets"] == []
