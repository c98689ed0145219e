"""What `target-scale` finds, what it leaves alone, and how the targets are known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.checks.context import context
from gradwatch.checks.target_scale import targets
from gradwatch.run import Run

NAME = "target-scale"
Loss = Callable[[Tensor, Tensor], Tensor]


def regression(
    folder: Path,
    scale: float,
    loss: Loss = F.mse_loss,
    *,
    as_number: bool = True,
    lr: float = 1e-6,
    seen: list[Tensor] | None = None,
) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss_of(step: int) -> Tensor:
        given = torch.randn(32, 6)
        wanted = scale * (given[:, :2] + 0.3)
        if seen is not None:
            seen.append(wanted)
        return loss(model(given), wanted)

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return trained(folder, model, loss_of, steps=20, optimizer=optimizer, as_number=as_number)


LOSSES: dict[str, Loss] = {
    "mean": F.mse_loss,
    "sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "sum over columns": lambda x, y: (x - y).square().sum(1).mean(),
    "half": lambda x, y: 0.5 * F.mse_loss(x, y),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1000.0, 1.0, 0.001])
def test_targets_are_read_from_the_gradient(tmp_path: Path, loss: str, scale: float) -> None:
    seen: list[Tensor] = []
    run = regression(tmp_path, scale, LOSSES[loss], seen=seen)
    known = targets(context(run))
    assert known is not None
    naive = [float(wanted.double().square().mean().sqrt()) for wanted in seen[:3]]
    assert known.rms == pytest.approx(np.median(naive), rel=1e-3)
    assert known.least == pytest.approx(np.median([float(w.min()) for w in seen[:3]]), rel=1e-2)
    assert known.largest == pytest.approx(np.median([float(w.max()) for w in seen[:3]]), rel=1e-2)


@pytest.mark.parametrize("as_number", [True, False])
@pytest.mark.parametrize("scale", [1000.0, 0.001])
def test_targets_of_an_odd_scale(tmp_path: Path, scale: float, as_number: bool) -> None:
    finding = only(NAME, regression(tmp_path, scale, as_number=as_number))
    assert (finding.severity, finding.layers, finding.first_step) == (Severity.WARNING, (), 0)
    assert "networks are made for about 1" in finding.message


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.0, None), (5.0, None), (0.2, None), (30.0, Severity.INFO), (0.03, Severity.INFO)],
)
def test_usual_targets(tmp_path: Path, scale: float, expected: Severity | None) -> None:
    found = said(NAME, regression(tmp_path, scale))
    assert [item.severity for item in found] == ([] if expected is None else [expected])


def test_a_training_that_works_with_large_targets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(32, 6)
        return F.mse_loss(model(given), 200 * given[:, :1])

    run = trained(tmp_path, model, loss_of, steps=60, optimizer=optimizer, as_number=True)
    assert only(NAME, run).severity is Severity.INFO


@pytest.mark.parametrize(
    ("noise", "expected"), [(0.3, Severity.WARNING), (0.0, Severity.INFO)], ids=["noisy", "learnt"]
)
def test_tiny_targets_are_learnt_when_less_than_they_is_left(
    tmp_path: Path, noise: float, expected: Severity
) -> None:
    """The first loss is that of the outputs: that it falls says nothing of the targets."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(32, 6)
        return F.mse_loss(model(given), 0.003 * (given[:, :1] + noise * torch.randn(32, 1)))

    run = trained(tmp_path, model, loss_of, steps=80, optimizer=optimizer, as_number=True)
    losses = run.scalars["loss"]
    assert losses[-2] < 1e-3 * losses[0]
    assert only(NAME, run).severity is expected


def test_absolute_errors_say_how_large_targets_are_at_least(tmp_path: Path) -> None:
    finding = only(NAME, regression(tmp_path, 1000.0, F.l1_loss, as_number=False))
    assert "RMS of at least" in finding.message
    assert not said(NAME, regression(tmp_path / "b", 1.0, F.l1_loss, as_number=False))


OTHERS: dict[str, Loss] = {
    "cross-entropy": lambda x, y: F.cross_entropy(x, (y[:, 0] > 0).long()),
    "with a penalty": lambda x, y: F.mse_loss(x, y) + 100 * x.abs().mean(),
    "of something else": lambda x, y: F.mse_loss(x.exp(), y),
}


@pytest.mark.parametrize("loss", OTHERS)
def test_what_is_no_squared_error_says_nothing(tmp_path: Path, loss: str) -> None:
    run = regression(tmp_path, 1000.0, OTHERS[loss])
    assert targets(context(run)) is None
    assert not said(NAME, run)
