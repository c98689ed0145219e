"""Recipes with odd loops: what they measure is right, they learn, and their faults are there."""

import math

import pytest
import torch
from torch.func import jacrev

from gradwatch.zoo.criteria import labels
from gradwatch.zoo.families import (
    wider_adversarial,
    wider_generative,
    wider_reinforcement,
    wider_representation,
)
from gradwatch.zoo.recipes.generative import Coupling
from gradwatch.zoo.recipes.odd import Mixture, copied, energy_distance, fixed
from gradwatch.zoo.recipes.reinforcement import LIMIT, play, pushed
from gradwatch.zoo.score import prepare
from gradwatch.zoo.training import Draw, Length, ZooFamily, train
from gradwatch.zoo.witness import Witness

ODD: tuple[ZooFamily, ...] = (
    *wider_adversarial.FAMILIES,
    *wider_reinforcement.FAMILIES,
    *wider_generative.FAMILIES,
    *wider_representation.FAMILIES,
)
BY_NAME = {family.name: family for family in ODD}


def test_there_are_enough_of_them() -> None:
    assert sum(family.sick for family in ODD) >= 18
    assert sum(not family.sick for family in ODD) >= 22
    assert len(BY_NAME) == len(ODD)


def witnessed(family: ZooFamily, seed: int, length: Length = Length.DEFAULT) -> Witness:
    training = prepare(family, seed, length)
    witness = Witness(training)
    train(training, [witness])
    witness.close()
    return witness


def strong(family: ZooFamily, seed: int) -> set[str]:
    return {label.fault for label in labels(witnessed(family, seed)) if label.strong}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gan/overpowering-discriminator", "overpowering-discriminator"),
        ("gan/silent-generator", "no-optimizer-step"),
        ("rl/reinforce-flipped", "not-learning"),
        ("vae/divergence-times-1000", "not-learning"),
        ("vae/huge-variance", "nonfinite"),
        ("experts/one-takes-all", "no-gradient"),
        ("multitask/forgotten-head", "not-updated"),
    ],
)
def test_the_labeller_sees_the_planted_fault(name: str, fault: str) -> None:
    assert fault in strong(BY_NAME[name], 0)


@pytest.mark.parametrize(
    "name", ["gan/classic", "rl/ppo", "flow/plain", "contrastive/growing-batches"]
)
def test_the_labeller_sees_nothing_strong_where_the_outcome_is_good(name: str) -> None:
    assert strong(BY_NAME[name], 0) == set()


@pytest.mark.long
@pytest.mark.parametrize("name", BY_NAME)
def test_labels_agree_with_the_family_for_most_seeds(name: str) -> None:
    family = BY_NAME[name]
    agreed = [bool(strong(family, seed)) == family.sick for seed in range(3)]
    assert sum(agreed) >= 2


@pytest.mark.parametrize("name", ["rl/dqn", "gan/classic"])
def test_a_seed_gives_the_same_training_each_time(name: str) -> None:
    first, second = (witnessed(BY_NAME[name], 3, Length.SHORT) for _ in range(2))
    assert first.losses == second.losses
    assert first.probes == second.probes


# -- what outcomes are measured with -------------------------------------------------------------


def test_the_density_of_a_mixture_sums_to_one_and_agrees_with_its_parts() -> None:
    mixture = Mixture(Draw(1), radius=1.0, spread=0.4)
    axis = torch.linspace(-4, 4, 161)
    grid = torch.cartesian_prod(axis, axis)
    density = mixture.log_density(grid, 0.3).exp()
    assert float(density.sum()) * 0.05**2 == pytest.approx(1.0, abs=1e-3)
    x, y = 0.3, -0.2
    variance = 0.4**2 + 0.3**2
    naive = math.fsum(
        math.exp(-((x - float(a)) ** 2 + (y - float(b)) ** 2) / (2 * variance))
        / (2 * math.pi * variance * len(mixture.centres))
        for a, b in mixture.centres
    )
    assert float(mixture.log_density(torch.tensor([[x, y]]), 0.3)) == pytest.approx(
        math.log(naive), rel=1e-4
    )


def test_energy_distance_is_small_only_for_one_distribution() -> None:
    mixture = Mixture(Draw(1))
    first, second = mixture.sample(400, fixed(1)), mixture.sample(400, fixed(2))
    assert abs(energy_distance(first, second)) < 0.02
    assert energy_distance(first, second + 1) > 0.2


def test_a_coupling_knows_how_much_room_points_gain() -> None:
    layer = Coupling(2, 16, flip=True)
    points = torch.randn(5, 2)
    _, gained = layer(points)
    for point, gain in zip(points, gained, strict=True):
        jacobian = jacrev(lambda p: layer(p[None])[0][0])(point).detach()
        assert float(torch.linalg.det(jacobian.double()).abs().log()) == pytest.approx(
            float(gain.detach()), abs=1e-4
        )


def test_a_pole_falls_to_the_side_it_leans_to_and_rewards_are_those_to_come() -> None:
    pole = (0.0, 0.0, 0.05, 0.0)
    for _ in range(10):
        pole = pushed(pole, 0)
    assert pole[0] < 0
    assert pole[2] > 0.05
    always = play(lambda states: torch.tensor([[0.0, 100.0]]).expand(len(states), 2), 2, fixed())
    assert (always.actions == 1).all()
    assert always.length < 15 < LIMIT
    assert len(always.states) == len(always.returns) == round(2 * always.length)
    length = int((always.returns[1:] > always.returns[:-1]).nonzero()[0]) + 1
    naive = [sum(0.98**k for k in range(length - at)) for at in range(length)]
    assert always.returns[:length].tolist() == pytest.approx(naive)


def test_a_target_network_goes_a_share_of_the_way() -> None:
    source, target = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    wanted = target.weight.detach() * 0.75 + source.weight.detach() * 0.25
    copied(source, target, 0.25)
    assert torch.allclose(target.weight, wanted)
