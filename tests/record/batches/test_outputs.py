"""What the output of a model shows: spread, predictions, targets and a loss by its gradient."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.record.batches.calls import EVERYTHING, ONLY_PROBE, Steps, scalars_of
from torch import Tensor, nn

from gradwatch.stats import Family

torch.set_num_threads(1)


class Gives(nn.Module):
    """Gives what it is told to, for once."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self) -> Any:
        return self.output


def said_of(output: Any) -> dict[str, float]:
    return scalars_of(Gives(output))


@pytest.mark.parametrize(
    "shape", [(32,), (32, 1), (32, 10), (8, 12, 10), (1, 12, 10), (4, 5, 3, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_size_and_spread(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    output = (3 + torch.randn(shape)).to(dtype)
    found = said_of(output)
    table = output.double().numpy()
    table = table[0] if len(table) == 1 else table
    naive = np.sqrt(((table - table.mean(axis=0)) ** 2).mean()) / np.sqrt((table**2).mean())
    # a few columns of wide outputs stand for the others
    assert found["output_spread"] == pytest.approx(naive, rel=0.1)
    assert found["output_rms"] == pytest.approx(np.sqrt((table**2).mean()), rel=0.1)


def test_equal_rows_have_no_spread_and_one_row_has_none_to_have() -> None:
    assert said_of(torch.randn(1, 6).expand(20, 6))["output_spread"] < 1e-6
    assert said_of(torch.zeros(20, 6))["output_spread"] == 0
    assert "output_spread" not in said_of(torch.randn(1, 6))


@pytest.mark.parametrize("shape", [(40, 5), (8, 5, 5), (4, 5, 4, 4)])
def test_predictions(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    output = torch.randn(shape)
    output.movedim(1 if len(shape) > 3 else -1, 0)[2] += 2
    found = said_of((output, torch.tensor(1.0)))
    naive = output.argmax(1 if len(shape) > 3 else -1).flatten().tolist()
    assert found["predicted_class"] == 2
    assert found["predicted_share"] == pytest.approx(naive.count(2) / len(naive))
    assert found["predicted_classes"] == len(set(naive))


def test_predictions_of_one_number() -> None:
    values = torch.tensor([-1.0, 0.2, 0.3, 2.0])
    assert said_of(values)["predicted_share"] == 0.75
    leaf = values.clone().requires_grad_()
    assert said_of((torch.tensor(3.0), leaf.sigmoid()))["predicted_share"] == 0.75


@pytest.mark.parametrize("output", [torch.tensor(1.0), torch.ones(0, 3), torch.arange(3), None])
def test_what_is_no_output(output: object) -> None:
    assert said_of(output) == {}


def test_only_forwards_with_gradients() -> None:
    with torch.no_grad():
        assert set(said_of(torch.randn(4, 3))) == {"evaluations", "evaluations_in_training"}


def test_after_the_first_steps_only_where_updates_or_activations_are_due() -> None:
    model = nn.Linear(3, 2)
    steps = Steps(model)
    for step in range(6):
        due = EVERYTHING if step < 4 else frozenset({Family.GRAD}) | ONLY_PROBE
        with steps.step(step, due) as found:
            model(torch.randn(4, 3)).sum().backward()
        assert ("output_spread" in found.scalars) is (step < 4)


def test_the_first_of_several_forwards_counts() -> None:
    model = Gives(torch.full((4, 3), 2.0))
    steps = Steps(model)
    with steps.step() as found:
        model()
        model.output = torch.full((4, 3), 5.0)
        model()
    assert found.scalars["output_rms"] == 2


def noted(loss: Callable[[Tensor], Tensor], end: nn.Module | None = None) -> dict[str, Any]:
    """What is noted of the targets after three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), end or nn.Identity())
    steps = Steps(model)
    for step in range(4):
        assert (steps.kept.info != {}) is (step > 2)
        with steps.step(step):
            loss(model(torch.randn(6, 4))).backward()
    assert steps.kept.events == []
    return steps.kept.info


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
    found = said_of(output)
    assert "output_rms" not in found
    assert "output_spread" not in found


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_say_nothing_of_targets(odd: float) -> None:
    weights = torch.ones(6, 5)
    weights[2, 2] = odd
    assert noted(lambda output: (output * weights).sum())["targets"] == []


# -- the kind of a loss of which only a number is logged -------------------------------------------

LABELS = torch.tensor([0, 3, 1, 4, 2, 2])
FIVE = {"classes": 5, "chance": pytest.approx(math.log(5))}
GUESSES: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "logits": (
        nn.Identity(),
        lambda y: F.cross_entropy(y, LABELS),
        {"loss_kind": "cross_entropy", **FIVE, "loss_fed_with": "logits"},
    ),
    "probabilities": (
        nn.Softmax(-1),
        lambda y: F.cross_entropy(y, LABELS),
        {"loss_kind": "cross_entropy", **FIVE, "loss_fed_with": "probabilities"},
    ),
    "log-probabilities": (
        nn.LogSoftmax(-1),
        lambda y: F.nll_loss(y, LABELS),
        {"loss_kind": "nll", **FIVE},
    ),
    "log-probabilities over the batch": (nn.LogSoftmax(0), lambda y: F.nll_loss(y, LABELS), {}),
    "scaled": (
        nn.Identity(),
        lambda y: 1024 * F.cross_entropy(y, LABELS),
        {"loss_kind": "cross_entropy", **FIVE, "loss_fed_with": "logits"},
    ),
    "regression": (nn.Identity(), lambda y: F.mse_loss(y, torch.ones(6, 5)), {}),
    "probabilities with mse": (
        nn.Softmax(-1),
        lambda y: F.mse_loss(y, F.one_hot(LABELS, 5).float()),
        {},
    ),
}


@pytest.mark.parametrize("case", GUESSES)
def test_guesses_from_output_and_gradient(case: str) -> None:
    end, loss, expected = GUESSES[case]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), end)
    steps = Steps(model)
    for step in range(3):
        assert steps.batches.loss_guess == {}
        with steps.step(step):
            loss(model(torch.randn(6, 4))).backward()
    assert steps.batches.loss_guess == expected


def test_an_error_of_ours_does_not_reach_the_backward_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr("gradwatch.record.batches._labels", broken)
    model = nn.Linear(4, 5)
    steps = Steps(model)
    with steps.step():
        model(torch.randn(6, 4)).sum().backward()
    assert model.weight.grad is not None
    assert "broken" in steps.kept.events[0].text
