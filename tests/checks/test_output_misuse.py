"""What `output-misuse` finds, and what it leaves alone."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import make_run, net, said, weight
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding


@pytest.mark.parametrize(
    ("fed", "expected"), [("probabilities", True), ("logits", False), (None, False)]
)
def test_probabilities_into_cross_entropy(fed: str | None, expected: bool) -> None:
    chain = net("a", "out", "soft", kinds=["Linear", "Linear", "Softmax"])
    run = make_run(
        {}, subjects=[weight("a"), weight("out")], graph=chain, scalars={"loss": [1.5] * 5},
        info={"loss_fed_with": fed} if fed else {},
    )  # fmt: skip
    found = said("output-misuse", run)
    assert bool(found) is expected
    assert not expected or found[0].layers == ("soft", "out")


def words(folder: Path, dim: int, *, as_number: bool) -> list[Finding]:
    """A language model of 200 words, fed with 35 places of four texts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(200, 8), nn.Linear(8, 200), nn.LogSoftmax(dim))

    def loss_of(step: int) -> Tensor:
        given = torch.randint(200, (35, 4))
        return F.nll_loss(model(given).view(-1, 200), given.view(-1).roll(1))

    run = trained(folder, model, loss_of, steps=8, as_number=as_number)
    assert run.scalars["loss"][0] == pytest.approx(math.log(35 if dim == 0 else 200), rel=0.1)
    return said("output-misuse", run)


def test_a_softmax_over_the_wrong_dimension(tmp_path: Path) -> None:
    """Where the loss is logged as a tensor: its graph tells over what the softmax runs."""
    (finding,) = words(tmp_path, 0, as_number=False)
    assert "dimension of 35, but the loss chooses between 200 classes" in finding.message
    assert "a guess would give 5.3" in finding.message
    assert finding.layers == ("2", "1")


@pytest.mark.parametrize("as_number", [True, False])
def test_a_softmax_over_the_words(tmp_path: Path, as_number: bool) -> None:
    assert not words(tmp_path, -1, as_number=as_number)


def test_a_low_first_loss_alone_says_nothing() -> None:
    """A model that was trained before starts below chance."""
    run = make_run(
        {},
        subjects=[weight("out")],
        scalars={"loss": [1.0] * 5},
        info={"chance": 7.6, "classes": 2000},
    )
    assert not said("output-misuse", run)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "written"])
@pytest.mark.parametrize("flat", ["targets", "outputs"])
def test_every_output_compared_with_every_target(tmp_path: Path, loss: str, flat: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss_of(step: int) -> Tensor:
        given = torch.randn(24, 8)
        outputs, targets = model(given), given[:, :1]
        outputs, targets = (
            (outputs, targets[:, 0]) if flat == "targets" else (outputs.squeeze(1), targets)
        )
        if loss == "written":
            return (targets - outputs).pow(2).mean()
        differences: Tensor = getattr(F, loss)(outputs, targets)
        return differences

    (finding,) = said("output-misuse", trained(tmp_path, model, loss_of, steps=8))
    assert "each of 24 outputs with each of 24 targets" in finding.message
    shapes = ("(24, 1)", "(24,)") if flat == "targets" else ("(24,)", "(24, 1)")
    assert "shape {} and targets of shape {}".format(*shapes) in finding.message
    assert ("unsqueeze" if flat == "targets" else "squeeze(1)") in finding.advice[0]
    assert finding.layers == ("2",)


MEANT = {
    "equal shapes": lambda out, y: F.mse_loss(out, y),
    "one target for all": lambda out, y: (out - y.mean()).pow(2).mean(),
    "pairs of outputs": lambda out, y: (out - out.T).pow(2).mean(),
    "pairs on purpose": lambda out, y: (out[:, 0].unsqueeze(1) - y.T).abs().mean(),
    "quantiles": lambda out, y: (out.expand(24, 5) - y).abs().mean(),
}


@pytest.mark.parametrize("meant", MEANT)
def test_broadcasting_that_is_meant(tmp_path: Path, meant: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(24, 8)
        return MEANT[meant](model(given), given[:, :1])

    assert not said("output-misuse", trained(tmp_path, model, loss_of, steps=8))
