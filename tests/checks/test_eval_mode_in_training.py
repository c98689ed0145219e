"""What `eval-mode-in-training` finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import only, said
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding
from gradwatch.run import Run


def net(rate: float = 0.3, norm: type[nn.Module] = nn.LayerNorm) -> nn.Sequential:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(6, 16), norm(16), nn.ReLU(), nn.Dropout(rate))
    return nn.Sequential(trunk, nn.Linear(16, 16), nn.Dropout(rate), nn.Linear(16, 3))


def run_of(folder: Path, model: nn.Module, mode: Callable[[int], object]) -> Run:
    def loss_of(step: int) -> Tensor:
        mode(step)
        given = torch.randn(16, 6)
        return F.cross_entropy(model(given), given[:, :3].argmax(1))

    return trained(folder, model, loss_of)


def test_a_model_that_stays_in_evaluation_mode(tmp_path: Path) -> None:
    model = net()
    run = run_of(tmp_path, model, lambda step: model.train(step < 1))
    finding = only("eval-mode-in-training", run)
    assert finding.layers == ()
    assert finding.message.startswith("dropout, everywhere in the model, was in evaluation mode")
    assert "model.train()" in finding.advice[0]


def test_only_a_part(tmp_path: Path) -> None:
    model = net()
    run = run_of(tmp_path, model, lambda step: model[0].eval())
    assert only("eval-mode-in-training", run).layers == ("0.3",)


HEALTHY: dict[str, tuple[float, type[nn.Module], Callable[[nn.Sequential], object]]] = {
    "training": (0.3, nn.LayerNorm, lambda model: model.train()),
    "nothing is dropped": (0.0, nn.LayerNorm, lambda model: model.eval()),
    "a frozen trunk": (0.3, nn.LayerNorm, lambda model: model[0].requires_grad_(False).eval()),
    "batch norm alone": (0.0, nn.BatchNorm1d, lambda model: model.eval()),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_what_is_meant(case: str, tmp_path: Path) -> None:
    rate, norm, prepare = HEALTHY[case]
    model = net(rate, norm)
    prepare(model)
    run = run_of(tmp_path, model, lambda step: None)
    assert not said("eval-mode-in-training", run)
    assert bool(said("norm-misuse", run)) is (case == "batch norm alone")


def test_some_steps_in_evaluation_mode(tmp_path: Path) -> None:
    model = net()
    assert not said(
        "eval-mode-in-training", run_of(tmp_path, model, lambda step: model.train(step % 4 == 0))
    )


def test_one_finding_for_dropout_and_batch_norm(tmp_path: Path) -> None:
    from gradwatch.diagnosis import diagnose

    model = net(norm=nn.BatchNorm1d)
    found = diagnose(run_of(tmp_path, model, lambda step: model.eval())).findings
    roots: list[Finding] = [item for item in found if "mode" in item.message]
    assert [item.check for item in roots] == ["eval-mode-in-training"]
    assert "norm-misuse" in [item.check for item in roots[0].consequences]
