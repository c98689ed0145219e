"""What `output-range` finds, and what it leaves alone."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run

NAME = "output-range"


def regression(folder: Path, end: nn.Module, low: float, high: float) -> Run:
    """Targets spread evenly between two numbers, and a model that ends with `end`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2), end)

    def loss_of(step: int) -> Tensor:
        given = torch.rand(64, 6)
        return F.mse_loss(model(given), low + (high - low) * given[:, :2])

    return trained(folder, model, loss_of, steps=12, as_number=True)


SICK = {"sigmoid": (nn.Sigmoid(), -1, 1), "tanh": (nn.Tanh(), 0, 3), "relu": (nn.ReLU(), -2, 1)}


@pytest.mark.parametrize("case", SICK)
def test_targets_that_cannot_be_reached(tmp_path: Path, case: str) -> None:
    end, low, high = SICK[case]
    finding = only(NAME, regression(tmp_path, end, low, high))
    assert finding.layers == ("3", "2")
    assert f"ends with {case}" in finding.message


HEALTHY = {
    "inside": (nn.Sigmoid(), 0, 1),
    "above zero": (nn.ReLU(), 0, 5),
    "no bounds": (nn.Identity(), -5, 5),
    "bounds of its own": (nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), -5, 5),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_targets_within_reach(tmp_path: Path, case: str) -> None:
    assert not said(NAME, regression(tmp_path, *HEALTHY[case]))


def test_at_the_limit(tmp_path: Path) -> None:
    """Four and eight per cent of the targets lie beyond the range."""
    assert not said(NAME, regression(tmp_path / "a", nn.Sigmoid(), 0, 1 / 0.97))
    assert said(NAME, regression(tmp_path / "b", nn.Sigmoid(), 0, 1 / 0.90))


def test_a_classifier_has_no_range(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())

    def loss_of(step: int) -> Tensor:
        given = torch.randn(64, 6)
        return F.binary_cross_entropy(model(given), (given[:, :1] > 0).float())

    assert not said(NAME, trained(tmp_path, model, loss_of, steps=12))
