"""What `bad-init` finds, and what it leaves alone."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import Severity, flat, layer, make_run, net, only, said, table, weight
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.run import Run


def start(first_loss: float = 1.7, spreads: tuple[float, float, float] = (1.0, 0.8, 0.5)) -> Run:
    return make_run(
        {"act_std": table(spreads, 20)},
        subjects=[weight("a"), weight("b"), weight("c"), layer("a"), layer("b"), layer("c")],
        graph=net("a", "b", "c"),
        scalars={"loss": np.linspace(first_loss, 1.0, 20)},
        info={"chance": math.log(5)},
    )


def test_a_usual_start_is_quiet() -> None:
    assert not said("bad-init", start())


def test_a_first_loss_far_above_chance() -> None:
    assert only("bad-init", start(40.0)).severity is Severity.WARNING
    assert only("bad-init", start(8.0)).severity is Severity.INFO
    assert not said("bad-init", start(5.0))


def test_outputs_that_grow_from_layer_to_layer() -> None:
    finding = only("bad-init", start(spreads=(1.0, 30.0, 5e4)))
    assert finding.severity is Severity.WARNING
    assert "c" in finding.layers
    assert only("bad-init", start(spreads=(1.0, 10.0, 100.0))).severity is Severity.INFO


def test_branches_that_start_at_zero_are_left_out() -> None:
    assert not said("bad-init", start(spreads=(1.0, 0.0, 0.5)))


def test_a_squared_error_whose_outputs_dwarf_the_targets() -> None:
    run = make_run(
        {"act_std": table([1.0, 10.0], 20), "act_mean": table([0.0, 0.0], 20)},
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
        scalars={"loss": np.linspace(101.0, 1.0, 20)},
        info={"loss_kind": "mse"},
    )
    assert only("bad-init", run).severity is Severity.WARNING


def test_constant_weights_still_symmetric_after_ten_steps() -> None:
    run = make_run(
        {
            "weight_std": table([0.0, 0.3], 20),
            "weight_norm": table([1.0, 1.0], 20),
            "weight_row_spread": table([0.0, 0.9], 20),
        },
        names=["a.weight", "b.weight"],
    )
    assert only("bad-init", run).layers == ("a",)


def test_units_that_start_flat() -> None:
    run = flat(np.r_[0.9, np.zeros(39)])
    assert only("bad-init", run).layers == ("a",)


def characters(
    folder: Path, std: float, *, as_number: bool, lr: float = 1e-3, steps: int = 40
) -> Run:
    """A model of 65 characters, whose weights are drawn with this spread."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(65, 64), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 65))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)

    def loss_of(step: int) -> Tensor:
        given = torch.randint(65, (64,))
        return F.cross_entropy(model(given), (given + 1) % 65)

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return trained(folder, model, loss_of, steps=steps, optimizer=optimizer, as_number=as_number)


@pytest.mark.parametrize("as_number", [True, False])
def test_many_classes_and_weights_of_spread_one(tmp_path: Path, as_number: bool) -> None:
    run = characters(tmp_path, 1.0, as_number=as_number)
    assert 4 < run.scalars["loss"][0] / math.log(65) < 10
    finding, _units_are_flat_too = said("bad-init", run)
    assert finding.severity is Severity.WARNING
    assert "among 65 classes would give (4.17)" in finding.message
    assert set(finding.layers) == {"1", "3"}


@pytest.mark.parametrize("as_number", [True, False])
def test_many_classes_and_usual_weights(tmp_path: Path, as_number: bool) -> None:
    assert not said("bad-init", characters(tmp_path, 0.05, as_number=as_number))


def test_a_bad_start_that_was_made_up_for(tmp_path: Path) -> None:
    run = characters(tmp_path, 1.0, as_number=True, lr=3e-2, steps=150)
    assert run.scalars["loss"][0] > 4 * math.log(65) > 10 * run.scalars["loss"][149]
    assert said("bad-init", run)[0].severity is Severity.INFO
