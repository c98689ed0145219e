"""Losses whose level says nothing are noticed, and no check compares them with their start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.checks.shapes import make_run, said, skipped
from torch import nn

from gradwatch.checks.context import context
from gradwatch.checks.logged import hovers, is_loss, losses, rises, words
from gradwatch.diagnosis import diagnose
from gradwatch.errors import GradwatchError
from gradwatch.finding import Severity
from gradwatch.live import watch
from gradwatch.run import Run
from gradwatch.store import open_run

STEPS = 200
NOISE = np.random.default_rng(0).standard_normal((4, STEPS))
LEVEL_CHECKS = (
    *("divergence", "slow-convergence", "loss-oscillation", "loss-spike", "update-leads-loss"),
)


def run_with(info: Any = None, **numbers: Any) -> Run:
    steps = len(next(iter(numbers.values())))
    series = {
        "grad_norm": np.ones((steps, 2)),
        "update_norm": np.full((steps, 2), 1e-2),
        "update_ratio": np.full((steps, 2), 1e-3),
    }
    return make_run(series, names=["a.weight", "b.weight"], scalars=numbers, info=info)


def warnings(run: Run) -> list[str]:
    return [item.check for item in diagnose(run).at_least(Severity.WARNING)]


GROWING = np.geomspace(8, 300, STEPS) * np.exp(0.4 * NOISE[0])
REWARD = np.geomspace(13, 349, STEPS) * np.exp(0.3 * NOISE[1])
PPO = 0.02 * NOISE[2]
CRITIC = np.geomspace(1, 40, STEPS) * np.exp(0.3 * NOISE[3])


@pytest.mark.parametrize(
    "numbers",
    [
        {"loss": GROWING, "reward": REWARD},
        {"loss": GROWING, "episode/return": REWARD},
        {"loss": GROWING + CRITIC, "actor_loss": GROWING, "critic_loss": CRITIC},
        {"actor_loss": PPO, "critic_loss": CRITIC, "reward": REWARD},
        {"loss": PPO},
        {"loss": PPO + 0.3, "policy_loss": PPO, "value_loss": np.abs(PPO)},
        {"d_loss": np.abs(1.3 + 0.1 * NOISE[0]), "g_loss": CRITIC},
        {"lossD": -np.abs(CRITIC), "lossG": CRITIC},
    ],
)
def test_losses_whose_level_says_nothing_raise_no_alarm(
    numbers: dict[str, NDArray[np.float64]],
) -> None:
    run = run_with(**numbers)
    assert warnings(run) == []
    assert context(run).losses
    assert not context(run).judged
    for name in LEVEL_CHECKS:
        assert not said(name, run)
        assert len(skipped(name, run)) == 1


def test_the_user_may_say_that_the_level_says_nothing_or_counts() -> None:
    assert "divergence" in warnings(run_with(loss=GROWING))
    assert warnings(run_with({"loss_level": "relative"}, loss=GROWING)) == []
    told = run_with({"loss_level": "absolute"}, loss=GROWING, reward=REWARD)
    assert said("divergence", told)


def test_a_likelihood_that_falls_through_zero_once_is_an_ordinary_loss() -> None:
    falling = np.linspace(1.5, -4, STEPS) + 0.3 * NOISE[0]
    level_at_zero = 3 * np.exp(-np.arange(STEPS) / 8) + 0.1 * NOISE[1]
    for loss in (falling, level_at_zero):
        run = run_with(loss=loss)
        assert not hovers(loss)
        assert context(run).judged
        assert warnings(run) == []
    assert hovers(PPO)
    assert hovers(0.1 + PPO * 20)
    assert not hovers(PPO[:10])


def test_other_losses_still_count() -> None:
    stuck = 1.6 + 0.01 * NOISE[0]
    for numbers in ({"loss": stuck}, {"train_loss": stuck}, {"mlm_loss": stuck, "nsp_loss": stuck}):
        assert context(run_with(**numbers)).judged
        numbers = {name: 10 * np.geomspace(1, 99, STEPS) for name in numbers}
        assert "divergence" in warnings(run_with(**numbers))


def test_terms_weighed_against_another_loss_may_rise() -> None:
    fell = np.geomspace(3, 0.3, STEPS)
    run = run_with(recon_loss=fell, kl_loss=np.geomspace(0.01, 20, STEPS))
    assert [loss.name for loss in context(run).judged] == ["recon_loss"]
    assert warnings(run) == []


def test_names() -> None:
    assert {"val", "loss", "d"} <= words("val/lossD")
    assert all(is_loss(name) for name in ("loss", "errD", "loss_G", "train/loss", "q_loss", "nll"))
    assert not any(is_loss(n) for n in ("loss_nonfinite", "loss_scale", "lr", "reward", "trace"))
    assert losses(["kl_loss", "loss", "val_loss"]) == ["loss"]
    assert losses(["train/loss", "aux_loss", "lr"]) == ["train/loss"]
    assert losses(["val_loss", "d_loss", "g_loss"]) == ["d_loss", "g_loss"]
    named = ("reward", "episode_return", "val/acc", "train_accuracy", "F1", "eval.top1", "mIoU")
    assert all(rises(name) for name in named)
    assert not any(rises(name) for name in ("loss", "score_loss", "reward_error", "lr", "trace"))


def reinforce(
    run: Path, *, sign: float = 1.0, episodes: int = 120
) -> tuple[Run, NDArray[np.float64]]:
    """Three in ten wrong answers end an episode; what counts is how long it goes on."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    rewards = []
    with watch(model, optimizer, run=run) as watcher:
        for _ in range(episodes):
            seen = torch.randn(32, 200, 4)
            chances = model(seen).log_softmax(-1)
            with torch.no_grad():
                taken = torch.distributions.Categorical(logits=chances).sample()
            wrong = (taken != (seen[..., 0] > 0).long()) & (torch.rand(32, 200) < 0.3)
            wrong[:, -1] = True
            lengths = wrong.int().argmax(1) + 1
            left = (lengths[:, None] - torch.arange(200.0)).clamp(min=0)
            loss = -sign * (chances.gather(-1, taken[..., None])[..., 0] * left).sum() / 32
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rewards.append(float(lengths.float().mean()))
            watcher.log(loss=loss, reward=rewards[-1])
    return open_run(run), np.array(rewards)


def test_a_policy_that_learns_while_its_loss_grows(tmp_path: Path) -> None:
    run, rewards = reinforce(tmp_path / "policy")
    assert np.median(rewards[-20:]) > 3 * np.median(rewards[:20])
    loss = context(run).curve("loss")
    assert loss is not None
    assert loss.late > 3 * loss.start
    assert warnings(run) == []


def test_a_policy_with_its_sign_flipped(tmp_path: Path) -> None:
    for episodes in (60, 120):
        run, rewards = reinforce(tmp_path / f"{episodes}", sign=-1.0, episodes=episodes)
        assert np.median(rewards[-10:]) < 0.8 * np.median(rewards[:10])
        finding = next(diagnose(run).everything())
        assert finding.check == "not-learning"
        assert finding.message.startswith("reward fell from")
        assert finding.advice[0].startswith("Check the sign of the loss")
        assert finding.layers == ()


def test_wrong_words_are_an_error_of_watch(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(GradwatchError, match="auto, absolute, relative; got 'upwards'"):
        watch(model, run=tmp_path / "no", loss="upwards")
    watch(model, run=tmp_path / "yes", loss="relative").close()
    assert open_run(tmp_path / "yes").info["loss_level"] == "relative"
