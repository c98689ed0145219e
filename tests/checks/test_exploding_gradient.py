"""What `exploding-gradient` finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.checks.shapes import NAMES, Severity, gradients, make_run, only, quiet, said, table
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding


def test_exploding_on_three_steps() -> None:
    column = np.ones(60)
    column[[20, 30, 40]] = 5e3
    finding = only("exploding-gradient", gradients(1.0, column, 1.0))
    assert finding.layers[0] == "mid"
    assert finding.first_step == 20
    assert finding.severity is Severity.WARNING


def test_exploding_once_beyond_a_million_is_critical() -> None:
    column = np.ones(60)
    column[50] = 2e6
    assert only("exploding-gradient", gradients(1.0, column, 1.0)).severity is Severity.CRITICAL


def test_exploding_grows_a_thousandfold() -> None:
    column = np.geomspace(0.01, 500, 60)
    assert not quiet("exploding-gradient", gradients(column, 1.0, 1.0))


def test_exploding_is_quiet_below_the_border() -> None:
    column = np.ones(60)
    column[[20, 30]] = 5e3
    assert not said("exploding-gradient", gradients(1.0, column, 1.0))
    assert quiet("exploding-gradient", gradients(1.0, np.full(60, 300.0), 1.0))


def test_exploding_ignores_steps_the_scaler_skipped() -> None:
    column = np.ones(60)
    column[:5] = 1e9
    skipped_steps = (np.arange(60) < 5).astype(float)
    assert not said(
        "exploding-gradient", gradients(column, 1, 1, scalars={"skipped": skipped_steps})
    )


def test_a_summed_loss_is_only_an_information() -> None:
    loss = np.linspace(4000, 400, 60)
    run = make_run(
        {"grad_norm": table([2e3, 1.5e3], 60), "update_ratio": table([1e-3, 1e-3], 60)},
        names=NAMES[:2],
        scalars={"loss": loss},
    )
    assert quiet("exploding-gradient", run)


# -- at the end of what was seen -------------------------------------------------------------------


def jump(steps: int, samples: int, high: float, usual: float = 1.0) -> np.ndarray:
    column = np.full(steps, usual)
    column[steps - samples :] = high
    return column


@pytest.mark.parametrize("samples", [1, 2, 4])
@pytest.mark.parametrize("steps", [12, 60])
def test_exploding_on_the_last_steps(samples: int, steps: int) -> None:
    run = gradients(1.0, jump(steps, samples, 1100.0), 1.0, steps=steps)
    finding = only("exploding-gradient", run)
    assert finding.layers == ("mid",)
    assert (finding.first_step, finding.last_step) == (steps - samples, steps - 1)
    assert finding.severity is Severity.WARNING


def test_exploding_on_the_last_step_has_its_own_sentence() -> None:
    message = only("exploding-gradient", gradients(1.0, jump(30, 1, 5e3), 1.0, steps=30)).message
    assert "5000 times its own past of 1, and nothing after it is lower" in message


def test_exploding_needs_three_decades_and_five_samples_of_past() -> None:
    assert not said("exploding-gradient", gradients(1.0, jump(30, 1, 900.0), 1.0, steps=30))
    assert not said("exploding-gradient", gradients(1.0, jump(5, 1, 5e3), 1.0, steps=5))
    assert said("exploding-gradient", gradients(1.0, jump(6, 1, 5e3), 1.0, steps=6))


def test_a_spike_that_comes_back_is_no_explosion() -> None:
    column = np.ones(60)
    column[57] = 5e3
    assert not said("exploding-gradient", gradients(1.0, column, 1.0))


def test_a_layer_used_to_such_jumps_does_not_explode_at_the_end() -> None:
    column = np.ones(60)
    column[[20, 59]] = 5e3
    assert not said("exploding-gradient", gradients(1.0, column, 1.0))


def test_a_jump_on_the_last_step_counts_from_a_hundredth_of_the_others_on() -> None:
    finding = only("exploding-gradient", gradients(0.05, jump(60, 1, 0.04, 4.7e-6), 0.05))
    assert (finding.layers, finding.first_step) == (("mid",), 59)
    assert quiet("exploding-gradient", gradients(5.0, jump(60, 1, 0.04, 4.7e-6), 5.0))


def test_a_jump_that_stays_below_the_others_is_no_explosion() -> None:
    assert not said("exploding-gradient", gradients(1.0, jump(60, 1, 1e-5, 1e-9), 1.0))


def test_a_jump_of_all_layers_is_one_however_small_they_are() -> None:
    column = jump(60, 2, 1e-5, 1e-9)
    finding = only("exploding-gradient", gradients(column, column, column))
    assert set(finding.layers) == {"in", "mid", "out"}


def test_branches_that_start_at_zero_grow_without_exploding() -> None:
    grows = np.geomspace(1e-8, 0.5, 60)
    grows[0] = 0.0
    assert not said("exploding-gradient", gradients(1.0, grows, 1.0))
    assert not said("exploding-gradient", gradients(1.0, np.r_[np.zeros(30), np.ones(30)], 1.0))


def test_a_network_that_leaves_a_saddle_does_not_explode() -> None:
    leaves = np.r_[np.full(30, 1e-6), np.geomspace(1e-6, 2.0, 30)]
    assert not said("exploding-gradient", gradients(leaves, leaves, leaves))


def test_gradient_noise_is_no_explosion() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        columns = random.lognormal(0, 1.5, (60, 3)).T
        assert quiet("exploding-gradient", gradients(*columns))


def test_everything_enormous_from_the_start() -> None:
    finding = only("exploding-gradient", gradients(1e12, 1e12, 1e12))
    assert finding.severity is Severity.CRITICAL
    assert set(finding.layers) == {"in", "mid", "out"}


# -- the scale of the loss -------------------------------------------------------------------------


def scaled(folder: Path, loss: Callable[[Tensor, Tensor], Tensor], spread: float = 0.0) -> Finding:
    """A training whose gradients are large from the first step on."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)), nn.Linear(16, 2))
    if spread:
        for layer in model:
            nn.init.normal_(layer.weight, std=spread)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(64, 16)
        return loss(model(given), given[:, :2])

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    return only(
        "exploding-gradient", trained(folder, model, loss_of, steps=30, optimizer=optimizer)
    )


def test_large_targets_are_named_not_the_layers(tmp_path: Path) -> None:
    finding = scaled(tmp_path, lambda x, y: F.mse_loss(x, 3000 * y))
    assert finding.layers == ()
    assert "because the targets are (RMS 2" in finding.cause
    assert "nothing is amplified" in finding.cause
    assert "standard deviation" in finding.advice[0]


@pytest.mark.parametrize(("offset", "expected"), [(2, Severity.WARNING), (0, Severity.INFO)])
def test_a_loss_that_falls_excuses_large_gradients_but_not_of_unlearnt_targets(
    tmp_path: Path, offset: int, expected: Severity
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)

    def loss_of(step: int) -> Tensor:
        given = torch.randn(64, 16)
        return F.mse_loss(model(given), 2000 * (given[:, :2] + offset * torch.rand(64, 2)))

    run = trained(tmp_path, model, loss_of, steps=150, optimizer=optimizer)
    assert only("exploding-gradient", run).severity is expected


def test_a_sum_is_named(tmp_path: Path) -> None:
    finding = scaled(tmp_path, lambda x, y: F.l1_loss(30 * x, 30 * y, reduction="sum"))
    assert finding.layers == ()
    assert "a sum over the batch" in finding.cause
    assert 'reduction="mean"' in finding.advice[0]


@pytest.mark.parametrize(
    ("optimizer", "last", "expected"),
    [("Adam", 100.0, Severity.INFO), ("SGD", 100.0, Severity.WARNING), ("Adam", 270.0, None)],
)
def test_to_adam_the_scale_of_a_loss_that_falls_is_all_the_same(
    optimizer: str, last: float, expected: Severity | None
) -> None:
    """A sum over images, logged as the mean of each epoch: how the VAE of the tutorials does it."""
    loss = np.full(240, np.nan)
    loss[15::30] = np.linspace(270.0, last, 8)
    run = make_run(
        {
            "grad_norm": table([1.2e4, 9e3], 240),
            "weight_norm": table([4.0, 4.0], 240),
            "update_ratio": table([1e-3, 1e-3], 240),
        },
        names=NAMES[:2],
        scalars={"loss": loss, "output_rms": np.full(240, 0.5)},
        info={"optimizer": optimizer},
    )
    assert only("exploding-gradient", run).severity is (expected or Severity.WARNING)


def test_rewards_of_a_thousand_are_named(tmp_path: Path) -> None:
    def policy(x: Tensor, y: Tensor) -> Tensor:
        return -(F.log_softmax(x, 1)[:, 0] * 3000 * (1 + y[:, 0])).mean()

    finding = scaled(tmp_path, policy)
    assert finding.layers == ()
    assert "in proportion" in finding.cause
    assert "rewards" in finding.advice[0]


def test_weights_that_amplify_are_still_named(tmp_path: Path) -> None:
    finding = scaled(tmp_path, F.mse_loss, spread=0.75)  # three times as much in each layer
    assert finding.layers
    assert "Amplified on the way back" in finding.cause
