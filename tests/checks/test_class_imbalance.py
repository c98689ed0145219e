"""What `class-imbalance` finds, and what it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, make_run, only, said, weight
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.checks.context import context
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


@pytest.mark.parametrize(("late", "expected"), [("scattered", [Severity.WARNING]), ("falling", [])])
def test_scatter_of_few_rare_targets_is_no_fall(late: str, expected: list[Severity]) -> None:
    """The medians of 60 losses differ by a tenth where they only scatter."""
    scatter = np.array([0.09, 0.16, 0.21] * 15 + [0.09, 0.14, 0.21] * 5)
    slope = np.concatenate([np.full(30, 0.2), np.linspace(0.2, 0.13, 30)])
    loss = scatter if late == "scattered" else slope
    one = [1.0] * 60
    run = make_run(
        {}, subjects=[weight("a")], scalars={
            "loss": loss, "predicted_share": one, "predicted_classes": one,
            "predicted_class": [0.0] * 60,
        },
        info={"loss_kind": "cross_entropy", "classes": 2,
              "target_classes": {"seen": 192, "most": 0, "share": 0.97, "classes": 2}},
    )  # fmt: skip
    curve = context(run).loss
    assert curve is not None
    assert curve.gain(0.5) > 0.05
    assert [item.severity for item in said(NAME, run)] == expected
