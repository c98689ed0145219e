"""Labels of adversarial trainings and of bootstrapped targets."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from gradwatch.zoo.criteria_outcome import moving, overpowering, runaway
from gradwatch.zoo.recipes.odd import looped
from gradwatch.zoo.recipes.reinforcement import dqn, td3
from gradwatch.zoo.training import Draw, Length, Training, Turn, train
from gradwatch.zoo.witness import Label, Witness

STEPS = 60


def witnessed(training: Training) -> Witness:
    witness = Witness(training)
    train(training, [witness])
    witness.close()
    return witness


def scripted(
    judge: Callable[[int], float], maker: Callable[[int], float], pull: Callable[[int], float]
) -> Witness:
    """Two networks whose losses, and the generator's gradient, follow functions of the step."""
    model = nn.ModuleDict({"generator": nn.Linear(1, 1), "discriminator": nn.Linear(1, 1)})
    calls = {"d_loss": 0, "g_loss": 0}

    def turn(name: str, part: str, level: Callable[[int], float]) -> Turn:
        weight = next(model[part].parameters())

        def loss() -> Tensor:
            step, calls[name] = calls[name], calls[name] + 1
            return level(step) + pull(step) * (weight - weight.detach()).sum()

        return Turn(name, loss, SGD(model[part].parameters(), 1e-3))

    turns = [turn("d_loss", "discriminator", judge), turn("g_loss", "generator", maker)]
    return witnessed(looped(Draw(0, Length.SHORT), model, turns, STEPS, lambda: 1.0))


def falling(to: float) -> Callable[[int], float]:
    return lambda step: 1.4 * to ** min(1.0, step / 20)


@pytest.mark.parametrize(
    ("judge", "maker", "pull", "expected"),
    [
        (falling(0.01), lambda step: 1.0, falling(0.005), [True]),
        (falling(0.01), lambda step: 1.0 + step / 20, lambda step: 1.0, [True]),
        (falling(0.01), lambda step: 1.0, lambda step: 1.0, []),
        (falling(0.1), lambda step: 1.0, falling(0.05), [False]),
        (falling(0.1), lambda step: 1.0 + step / 20, lambda step: 1.0, [False]),
        (falling(0.5), lambda step: 1.0 + step / 20, falling(0.005), []),
    ],
)
def test_a_discriminator_overpowers_when_it_wins_and_the_generator_gets_nothing(
    judge: Callable[[int], float],
    maker: Callable[[int], float],
    pull: Callable[[int], float],
    expected: list[bool],
) -> None:
    found = list(overpowering(scripted(judge, maker, pull)))
    assert [label.strong for label in found] == expected


@pytest.mark.parametrize(
    ("judge", "expected"),
    [
        (lambda step: -2.0 * step, [Label("divergence", True, frozenset(), 5)]),
        (lambda step: step / 6, [Label("divergence", False)]),
        (lambda step: 100.0 + step, []),
    ],
)
def test_a_loss_without_a_level_runs_away_when_it_grows_twentyfold(
    judge: Callable[[int], float], expected: list[Label]
) -> None:
    found = runaway(scripted(judge, lambda step: 1.0, lambda step: 1.0))
    assert list(found) == expected


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (partial(dqn, every=0), [Label("moving-targets", False)]),
        (partial(dqn, every=6), []),
        (td3, [Label("moving-targets", False)]),
    ],
)
def test_targets_move_when_they_change_on_every_step(
    recipe: Callable[[Draw], Training], expected: list[Label]
) -> None:
    torch.manual_seed(0)
    assert list(moving(witnessed(recipe(Draw(0, Length.SHORT))))) == expected
