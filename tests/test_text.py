"""Parameters of the model itself have a layer without a name; sentences say so."""

from pathlib import Path

import torch
from tests.checks.shapes import only
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding, Severity
from gradwatch.text import named, several


def test_the_model_itself() -> None:
    assert (named(""), named("a.b")) == ("the model itself", "a.b")
    assert several(["", "a"]) == "the model itself and a"
    found = Finding("no-gradient", Severity.WARNING, ("",), 0, 9, "nothing", ())
    assert "<code>the model itself</code>" in found.html_line()


class Bare(nn.Module):
    """A weight of its own in front of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.head = nn.Parameter(0.01 * torch.randn(6, 8)), nn.Linear(8, 2, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.head(given @ self.own)
        return out


def test_a_huge_gradient_of_the_model_itself(tmp_path: Path) -> None:
    model = Bare()

    def loss_of(step: int) -> Tensor:
        return 1e6 * (model(torch.randn(4, 6)) - 1).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    run = trained(tmp_path, model, loss_of, steps=20, optimizer=optimizer)
    assert "in the model itself at step" in only("exploding-gradient", run).message
