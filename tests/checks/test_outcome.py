"""What the logged numbers say of how a training turned out."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.making import make_run

from gradwatch.checks.context import context
from gradwatch.checks.outcome import Learning, agreement, outcome

NOISE = np.random.default_rng(0).standard_normal(100)


def learning(**numbers: NDArray[np.float64]) -> Learning:
    run = make_run({}, names=["a.weight"], steps=list(range(100)), scalars=numbers)
    return outcome(context(run)).learning


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (np.linspace(2.0, 0.1, 100), Learning.WORKS),
        (np.linspace(2.0, 1.2, 100), Learning.IMPROVES),
        (2.0 + 0.1 * NOISE, Learning.STANDS),
        (np.linspace(2.0, 4.0, 100), Learning.WORSE),
        (np.r_[2.0, 1.0, np.full(98, np.nan)], Learning.UNKNOWN),
    ],
)
def test_a_loss_says_how_a_training_turned_out(
    loss: NDArray[np.float64], expected: Learning
) -> None:
    assert learning(loss=loss) is expected


def test_a_rising_reward_outweighs_a_loss_that_rises() -> None:
    reward = np.linspace(10, 300, 100) + 20 * NOISE
    assert learning(loss=np.linspace(1, 30, 100), episode_reward=reward) is Learning.WORKS
    assert learning(loss=np.linspace(1, 30, 100), reward=5 + NOISE) is Learning.STANDS
    assert learning(reward=-reward) is Learning.WORSE


def test_the_agreement_is_that_of_all_pairs() -> None:
    values = np.array([3.0, 1.0, 2.0, 9.0, 9.0, 4.0, 2.5, 0.5, 7.0])
    early, late = values[:3], values[-3:]
    pairs = [late_one > early_one for early_one in early for late_one in late]
    assert agreement(values) == pytest.approx(sum(pairs) / len(pairs))
