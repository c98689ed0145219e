"""What `not-learning` finds, what it leaves alone, and that it stands where nothing else does."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checks.shapes import Severity, make_run, only, said, table
from torch import nn
from torch.nn.functional import cross_entropy

from gradwatch.diagnosis import diagnose
from gradwatch.finding import Finding
from gradwatch.live import watch
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind
from gradwatch.store import open_run

NAME = "not-learning"
NOISE = np.random.default_rng(0).standard_normal(300)
CHANCE = math.log(5)


def run_of(
    steps: int = 100, info: Any = None, lr: Any = None, moves: Any = 2e-3, **numbers: Any
) -> Run:
    ratio = {"grad_norm": 1.0, "update_ratio": moves}
    series = {name: table([value, value], steps) for name, value in ratio.items()}
    subjects = [
        Subject(Kind.PARAMETER, f"{n}.weight", n, (4, 4), "float32", 16, 0) for n in ("a", "b")
    ]
    if lr is not None:
        series["lr"] = table([lr], steps)
        subjects.append(Subject(Kind.GROUP, "0", "0"))
    return make_run(series, subjects=subjects, scalars=numbers, info=info)


def warned(run: Run) -> list[Finding]:
    return [item for item in diagnose(run).everything() if item.severity > Severity.INFO]


def headline(run: Run) -> Finding:
    """The one root; the slow loss is no second fault but follows from it."""
    first, *follows = warned(run)
    assert [item.check for item in follows] == ["slow-convergence"]
    assert first.consequences == tuple(follows)
    return first


def at_chance(steps: int) -> np.ndarray:
    return CHANCE * (1 + 0.02 * NOISE[:steps])


def test_a_loss_that_stays_at_chance() -> None:
    finding = headline(run_of(info={"chance": CHANCE}, loss=at_chance(100)))
    assert finding.check == NAME
    assert finding.layers == ()
    assert "a constant guess gives 1.61" in finding.message
    assert "gradients reach every layer" in finding.cause
    assert "inputs are scaled" not in finding.cause  # nobody looked
    assert finding.advice[0].startswith("Train on one batch")


def test_a_loss_that_stands_at_a_level_of_which_nothing_is_known() -> None:
    loss = 3.7 + 0.2 * NOISE
    finding = headline(run_of(200, loss=loss[:200]))
    assert finding.check == NAME


def test_a_reward_that_stands_still() -> None:
    numbers = {"loss": 5 * NOISE[:150], "reward": 20 + 6 * NOISE[-150:]}
    (finding,) = warned(run_of(150, **numbers))
    assert finding.check == NAME
    assert "reward stands still" in finding.message


def test_a_reward_that_falls_while_the_loss_falls() -> None:
    noise = np.random.default_rng(1).normal(size=150)
    loss, reward = np.linspace(-0.132, -1.56, 150), np.linspace(30, 9, 150) + 5 * noise
    run = make_run({}, names=["a.weight"], scalars={"loss": loss + 0.1 * noise, "reward": reward})
    finding = only(NAME, run)
    assert finding.severity is Severity.CRITICAL
    assert "check the sign of the loss" in finding.message
    for steady in (30 + 5 * noise, np.linspace(30, 28, 150) + 5 * noise):
        run = make_run({}, names=["a.weight"], scalars={"loss": loss, "reward": steady})
        assert "stands still" in only(NAME, run).message


def test_a_generator_that_helps_its_discriminator() -> None:
    low, falls = np.geomspace(1.4, 1e-3, 100), -np.geomspace(0.7, 900, 100)
    finding = only(NAME, run_of(d_loss=low, g_loss=falls))
    assert finding.severity is Severity.CRITICAL
    assert "the two work together" in finding.message
    assert finding.advice[0].startswith("Check the sign of g_loss")
    assert not said(NAME, run_of(d_loss=1.4 + 0 * low, g_loss=falls))
    assert not said(NAME, run_of(d_loss=low, g_loss=-falls))


QUIET = {
    "too short": run_of(50, {"chance": CHANCE}, loss=at_chance(50)),
    "too short to be sure": run_of(90, loss=3.7 + 0.2 * NOISE[:90]),
    "a twentieth": run_of(info={"chance": CHANCE}, loss=np.linspace(CHANCE, 0.94 * CHANCE, 100)),
    "fine-tuning": run_of(info={"chance": CHANCE}, loss=0.5 * at_chance(100)),
    "below chance": run_of(info={"chance": CHANCE}, loss=0.8 * at_chance(100)),
    "warm-up": run_of(200, lr=np.linspace(0, 1, 200), loss=3.7 + 0.2 * NOISE[:200]),
    "accuracy": run_of(200, loss=0.7 + 0.1 * NOISE[:200], acc=0.97 + 0.01 * NOISE[:200]),
    "rises": run_of(200, loss=3.7 + 0.2 * NOISE[:200], score=np.linspace(1, 9, 200)),
    "relative": run_of(200, {"loss_level": "relative"}, loss=3.7 + 0.2 * NOISE[:200]),
    "gan": run_of(200, d_loss=1.4 + 0.1 * NOISE[:200], g_loss=0.7 + 0.1 * NOISE[-200:]),
    "few rewards": run_of(80, loss=NOISE[:80], reward=20 + 6 * NOISE[-80:]),
    "learnt at once": run_of(
        160,
        loss=5 * NOISE[:160],
        reward=np.r_[np.linspace(20, 95, 8), np.minimum(100, 95 + 6 * NOISE[:152])],
    ),
    "growing batches": run_of(
        200,
        {"chance": CHANCE},
        loss=CHANCE * np.r_[np.linspace(1, 0.8, 20), np.linspace(0.8, 1.02, 180)],
    ),
    "growing batches, noticed": run_of(
        200,
        {"classes_are_samples": True},
        loss=4.1 * np.r_[np.linspace(1, 0.97, 20), np.linspace(0.97, 1.1, 180)],
    ),
    "small steps, falling": run_of(
        info={"chance": CHANCE},
        moves=3e-5,
        loss=CHANCE * np.linspace(1.02, 1, 100) * (1 + 0.01 * NOISE[:100]),
    ),
    "tiny steps": run_of(info={"chance": CHANCE}, moves=5e-6, loss=at_chance(100)),
    "noise": run_of(200, loss=np.exp(NOISE[:200]) * np.linspace(1, 0.7, 200)),
}


@pytest.mark.parametrize("name", QUIET)
def test_it_keeps_quiet(name: str) -> None:
    assert not said(NAME, QUIET[name])


def test_another_warning_takes_its_place() -> None:
    loss = at_chance(100)
    run = make_run(
        {"grad_norm": table([0.0, 1.0], 100)},
        names=["a.weight", "b.weight"], info={"chance": CHANCE}, scalars={"loss": loss},
    )  # fmt: skip
    assert only(NAME, run).severity is Severity.WARNING
    assert {item.check for item in warned(run)} == {"no-gradient", "slow-convergence"}


def test_a_noisy_loss_without_a_known_chance() -> None:
    noisy = np.linspace(1.03, 0.98, 300) * (1 + 0.12 * NOISE)
    assert only(NAME, run_of(300, loss=noisy)).severity is Severity.WARNING
    assert not said(NAME, run_of(300, loss=np.linspace(1.06, 0.9, 300) * (1 + 0.05 * NOISE)))


def test_easy_batches_at_first_and_a_start_above_chance() -> None:
    sorted_by_class = CHANCE * np.r_[np.linspace(0.9, 0.3, 10), 1.05 + 0.03 * NOISE[:110]]
    assert headline(run_of(120, {"chance": CHANCE}, loss=sorted_by_class)).check == NAME
    towards = CHANCE * np.r_[np.linspace(1.1, 1, 30), 1 + 0.02 * NOISE[:90]]
    assert headline(run_of(120, {"chance": CHANCE}, loss=towards)).check == NAME


def test_a_slow_training_is_not_called_still() -> None:
    loss = np.linspace(CHANCE, 0.9 * CHANCE, 100)
    run = run_of(info={"chance": 0.94 * CHANCE}, loss=loss)
    assert [item.check for item in warned(run)] == ["slow-convergence"]


@pytest.mark.parametrize("learns", [True, False])
def test_labels_that_do_not_belong_to_their_inputs(tmp_path: Path, learns: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with watch(model, optimizer, run=tmp_path / "run") as watcher:
        for _ in range(150):
            inputs = torch.randn(64, 8)
            labels = inputs[:, :4].argmax(1)
            if not learns:
                labels = labels[torch.randperm(64)]
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watcher.log(loss=loss)
    run = open_run(tmp_path / "run")
    if learns:
        assert not warned(run)
    else:
        assert "Adam" not in " ".join(headline(run).advice)
