"""What `dropout-in-evaluation` finds, and what it leaves alone."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import only, said, skipped
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run


class Net(nn.Module):
    def __init__(self, rate: float, norm: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity()
        self.drop, self.last = nn.Dropout(rate), nn.Linear(16, 3)

    def forward(self, given: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(given)))))


def run_of(
    folder: Path,
    mode: str,
    *,
    rate: float = 0.3,
    norm: bool = True,
    name: str = "val_loss",
    every: int = 5,
    pseudo_labels: bool = False,
) -> Run:
    """Validations in `mode`: "training", "evaluation", "dropout" (only that), "another model"."""
    model = Net(rate, norm)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(16, 6)
        if pseudo_labels:
            with torch.no_grad():
                model(given)
        return F.cross_entropy(model(given), given[:, :3].argmax(1))

    def validate(step: int) -> Mapping[str, float]:
        if (step + 1) % every:
            return {}
        model.train(mode == "training")
        model.drop.train(mode in ("training", "dropout"))
        with torch.no_grad():
            given = torch.randn(16, 6)
            if mode != "another model":
                loss = F.cross_entropy(model(given), given[:, :3].argmax(1)).item()
        model.train()
        return {name: 1.0 if mode == "another model" else loss}

    return trained(folder, model, loss_of, after=validate)


def test_a_validation_in_training_mode(tmp_path: Path) -> None:
    run = run_of(tmp_path, "training")
    finding = only("dropout-in-evaluation", run)
    assert finding.layers == ()
    assert "val_loss comes from a model in training mode: dropout and BatchNorm" in finding.message
    assert "of the 7 validations" in finding.message  # the eighth comes after the last step
    assert finding.first_step == 5


def test_with_pseudo_labels_on_every_step(tmp_path: Path) -> None:
    assert said("dropout-in-evaluation", run_of(tmp_path, "training", pseudo_labels=True))


@pytest.mark.parametrize("mode", ["evaluation", "dropout", "another model"])
@pytest.mark.parametrize("pseudo_labels", [True, False])
def test_validations_as_they_should_be(tmp_path: Path, mode: str, pseudo_labels: bool) -> None:
    assert not said("dropout-in-evaluation", run_of(tmp_path, mode, pseudo_labels=pseudo_labels))


def test_what_has_no_mode_cannot_be_in_the_wrong_one(tmp_path: Path) -> None:
    assert not said("dropout-in-evaluation", run_of(tmp_path, "training", rate=0.0, norm=False))


def test_without_a_validation_number_nobody_validates(tmp_path: Path) -> None:
    run = run_of(tmp_path, "training", name="value_loss")
    assert not said("dropout-in-evaluation", run)
    assert not skipped("dropout-in-evaluation", run)


def test_validations_that_were_not_seen(tmp_path: Path) -> None:
    assert skipped("dropout-in-evaluation", run_of(tmp_path, "another model"))
