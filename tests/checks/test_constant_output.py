"""What `constant-output` finds, and what it leaves alone."""

from pathlib import Path

import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, make_run, only, quiet, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run

NAME = "constant-output"


def classifier(folder: Path, *, bias: float = 0.0, rows: int = 32, lr: float = 0.1) -> Run:
    """With a bias of minus a hundred no hidden unit ever fires."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias, bias)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(rows, 6)
        return F.cross_entropy(model(given), given[:, :3].argmax(1))

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return trained(folder, model, loss_of, steps=60, optimizer=optimizer)


def test_units_that_never_fire(tmp_path: Path) -> None:
    finding = only(NAME, classifier(tmp_path, bias=-100.0))
    assert (finding.severity, finding.layers, finding.first_step) == (Severity.WARNING, ("2",), 0)
    assert "since step 0 they differ by 0 of their size (on 100 %" in finding.message
    assert "loss went from" in finding.message


def test_outputs_that_differ(tmp_path: Path) -> None:
    assert not said(NAME, classifier(tmp_path))


def test_one_row_has_nothing_to_differ_from(tmp_path: Path) -> None:
    run = classifier(tmp_path, bias=-100.0, rows=1)
    assert "output_spread" not in run.scalars


def spread(late: float, loss: list[float]) -> Run:
    values = [0.3] * 10 + [late] * 30
    return make_run({}, names=["a.weight"], scalars={"output_spread": values, "loss": loss})


STANDS = [1.1, 1.0] * 20


def test_at_the_limit() -> None:
    assert only(NAME, spread(0.9e-4, STANDS)).first_step == 10
    assert not said(NAME, spread(1.1e-4, STANDS))


def test_a_training_that_learns_may_have_nearly_constant_targets() -> None:
    assert not said(NAME, spread(1e-5, [1.0 * 0.8**step for step in range(40)]))
    assert quiet(NAME, spread(1e-5, [1.0 - 0.015 * step for step in range(40)]))
