"""What `class-imbalance` finds, and what it leaves alone."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run

NAME = "class-imbalance"


def classifier(
    folder: Path, rare: float, *, learns: bool = False, binary: bool = False, steps: int = 120
) -> Run:
    """A share of `rare` samples is of the other class, which the input shows or does not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1 if binary else 2))

    def loss_of(step: int) -> Tensor:
        labels = (torch.rand(64) < rare).long()
        given = torch.randn(64, 6)
        if learns:
            given[:, 0] += 6.0 * labels
        if binary:
            return F.binary_cross_entropy_with_logits(model(given)[:, 0], labels.float())
        return F.cross_entropy(model(given), labels)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return trained(folder, model, loss_of, steps=steps, optimizer=optimizer)


@pytest.mark.parametrize("binary", [True, False])
def test_only_the_common_class_is_predicted(tmp_path: Path, binary: bool) -> None:
    finding = only(NAME, classifier(tmp_path, 0.06, binary=binary))
    assert (finding.severity, finding.layers) == (Severity.WARNING, ())
    assert "of the predictions are class 0" in finding.message
    assert "1 of 2 classes are never predicted" in finding.message


@pytest.mark.parametrize("binary", [True, False])
def test_rare_classes_that_are_learnt(tmp_path: Path, binary: bool) -> None:
    run = classifier(tmp_path, 0.06, learns=True, binary=binary)
    assert run.info["target_classes"]["share"] > 0.9
    assert not said(NAME, run)


def test_classes_of_equal_share(tmp_path: Path) -> None:
    assert not said(NAME, classifier(tmp_path, 0.5))


def test_a_loss_that_still_falls(tmp_path: Path) -> None:
    assert not said(NAME, classifier(tmp_path, 0.06, learns=True, steps=20))
