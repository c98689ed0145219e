"""What `overpowering-discriminator` finds and leaves alone, and that GANs get a verdict."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checks.shapes import Severity, make_run, only, quiet, said, table
from torch import nn
from torch.nn.functional import softplus

from gradwatch.diagnosis import diagnose
from gradwatch.live import watch
from gradwatch.run import Run
from gradwatch.store import open_run

NAME = "overpowering-discriminator"
STEPS = 100
NOISE = np.random.default_rng(0).standard_normal(STEPS)


def made(
    d_loss: np.ndarray, g_loss: np.ndarray, gradient: np.ndarray | float = 1.0, **more: np.ndarray
) -> Run:
    return make_run(
        {"grad_norm": table([gradient, 1.0], STEPS)},
        names=["generator.0.weight", "discriminator.0.weight"],
        scalars={"errD": d_loss, "errG": g_loss, **more},
    )


LOW = np.geomspace(1.4, 0.01, STEPS)
LEVEL = 0.7 + 0.05 * NOISE
RISING = np.geomspace(0.7, 9, STEPS)
FAINT = np.geomspace(1, 1e-4, STEPS)


def test_a_discriminator_that_wins() -> None:
    rises = only(NAME, made(LOW, RISING))
    assert rises.severity is Severity.WARNING
    assert rises.layers == ("discriminator.0",)
    assert "errG rises, from 0.7" in rises.message
    fades = only(NAME, made(LOW, LEVEL, FAINT))
    assert fades.severity is Severity.WARNING
    assert "gradient has fallen to" in fades.message


def test_a_generator_that_has_lost_for_good() -> None:
    lost = np.r_[np.geomspace(0.7, 22, 30), 22 + 0.1 * NOISE[30:]]
    assert "errG has risen, from 0.7" in only(NAME, made(LOW, lost)).message
    recovers = np.r_[np.geomspace(0.7, 22, 30), np.geomspace(22, 3, STEPS - 30)]
    assert not said(NAME, made(LOW, recovers))


def test_one_that_wins_by_less_is_mentioned() -> None:
    weak = only(NAME, made(np.geomspace(1.4, 0.15, STEPS), RISING))
    assert weak.severity is Severity.INFO


@pytest.mark.parametrize(
    "run",
    [
        made(LOW, LEVEL),
        made(np.geomspace(1.4, 0.6, STEPS), RISING),
        made(-RISING, RISING, FAINT),
        made(LOW, RISING, FAINT, reward=LEVEL),
    ],
)
def test_it_needs_both_a_low_loss_and_a_generator_that_suffers(run: Run) -> None:
    assert not said(NAME, run)


def gan(run: Path, *, rate: float, handicap: float, steps: int = 150, named: bool = True) -> Run:
    """A generator of points on a line against a discriminator, each with an optimizer."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    pair: nn.Module = nn.ModuleList([generator, discriminator])
    if named:
        pair = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    g_steps = torch.optim.Adam(generator.parameters(), rate * handicap, betas=(0.5, 0.999))
    d_steps = torch.optim.Adam(discriminator.parameters(), rate, betas=(0.5, 0.999))
    with watch(pair, g_steps, d_steps, run=run) as watcher:
        for _ in range(steps):
            real = torch.randn(64, 2) * torch.tensor([1.0, 0.3]) + 1.0
            made = generator(torch.randn(64, 4))
            real_loss = softplus(-discriminator(real)).mean()
            d_loss = real_loss + softplus(discriminator(made.detach())).mean()
            d_steps.zero_grad()
            d_loss.backward()
            d_steps.step()
            g_loss = softplus(-discriminator(made)).mean()
            g_steps.zero_grad()
            g_loss.backward()
            g_steps.step()
            watcher.log(d_loss=d_loss, g_loss=g_loss)
    return open_run(run)


def test_gans_get_a_verdict(tmp_path: Path) -> None:
    diagnosis = diagnose(gan(tmp_path / "fair", rate=2e-3, handicap=1.0))
    assert diagnosis.healthy is True
    assert quiet(NAME, open_run(tmp_path / "fair"))
    assert not [item for item in diagnosis.skipped if "no loss was logged" in item.reason]


def test_a_real_discriminator_that_wins(tmp_path: Path) -> None:
    run = gan(tmp_path / "unfair", rate=2e-2, handicap=1e-4)
    finding = only(NAME, run)
    assert finding.severity is Severity.WARNING
    assert finding.layers == ("discriminator.0", "discriminator.2")
    assert diagnose(run).healthy is False


def test_without_names_the_graphs_of_the_losses_tell_who_is_who(tmp_path: Path) -> None:
    run = gan(tmp_path / "unnamed", rate=2e-2, handicap=1e-4, named=False)
    assert run.info["loss_reaches"] == {"d_loss": ["1"], "g_loss": ["0", "1"]}
    assert only(NAME, run).layers == ("1.0", "1.2")
