"""The wider zoo: its size, its names, and that every family can be made and trained."""

import pytest

from gradwatch.zoo.families import EVERY, WIDER, half
from gradwatch.zoo.score import prepare
from gradwatch.zoo.training import Length, ZooFamily, train


def test_there_are_sixty_sick_and_sixty_healthy_families_more() -> None:
    assert sum(family.sick for family in WIDER) >= 60
    assert sum(not family.sick for family in WIDER) >= 60
    assert len({family.name for family in EVERY}) == len(EVERY)
    assert all(family.about.endswith(".") for family in WIDER)
    assert len({family.kind for family in WIDER}) >= 12


def test_the_halves_of_the_wider_zoo() -> None:
    calibrate, report = (half(name, WIDER) for name in ("calibrate", "report"))
    assert not set(calibrate) & set(report)
    assert set(calibrate) | set(report) == set(WIDER)
    assert abs(sum(f.sick for f in calibrate) - sum(f.sick for f in report)) <= 1


@pytest.mark.parametrize("family", WIDER[::5], ids=lambda family: family.name)
def test_a_fifth_of_the_families_can_be_made_and_trained(family: ZooFamily) -> None:
    trains(family)


@pytest.mark.long
@pytest.mark.parametrize("family", WIDER, ids=lambda family: family.name)
def test_every_family_can_be_made_and_trained(family: ZooFamily) -> None:
    trains(family)


def trains(family: ZooFamily) -> None:
    training = prepare(family, 0, Length.SHORT)
    assert training.steps == 60
    layers = {name for name, _ in training.model.named_modules()}
    assert set(training.culprits) <= layers
    training.steps = 2
    train(training, [])
