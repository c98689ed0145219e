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


def every(distance: int, values: list[float]) -> NDArray[np.float64]:
    """Values of an evaluation that is made now and then."""
    sparse = np.full(100, np.nan)
    sparse[::distance][: len(values)] = values
    return sparse


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("val_acc", [0.2, 0.5, 0.6, 0.59, 0.8], Learning.WORKS),
        ("val_acc", [20, 50, 60, 59, 80], Learning.WORKS),
        ("val_acc", [0.2, 0.21, 0.24, 0.26, 0.27], Learning.IMPROVES),
        ("eval/accuracy", [0.97, 0.98, 0.96, 0.97, 0.98], Learning.WORKS),
        ("eval/accuracy", [97.0, 98, 96, 97, 98], Learning.WORKS),
        ("val_acc", [0.2, 0.19, 0.21, 0.2, 0.18], Learning.STANDS),
        ("val_acc", [0.8, 0.7, 0.6, 0.61, 0.5], Learning.WORSE),
        ("val_acc", [0.2, 0.5, 0.6, 0.8], Learning.UNKNOWN),
        ("val_loss", [2.0, 1.6, 1.2, 1.3, 1.0], Learning.IMPROVES),
        ("val_loss", [2.0, 1.0, 0.5, 0.2, 0.1], Learning.WORKS),
        ("val_loss", [2.0, 2.1, 1.9, 2.05, 2.0], Learning.STANDS),
    ],
)
def test_five_evaluations_count(name: str, values: list[float], expected: Learning) -> None:
    assert learning(**{name: every(20, values)}) is expected


def test_a_high_accuracy_at_a_loss_of_chance_is_no_success() -> None:
    run = make_run(
        {}, names=["a.weight"], info={"chance": 2.0},
        scalars={"loss": 2.0 + 0.02 * NOISE, "acc": np.full(100, 0.95)},
    )  # fmt: skip
    assert outcome(context(run)).learning is Learning.STANDS


def test_noisy_rewards() -> None:
    noisy = np.random.default_rng(3).normal(size=100)
    assert learning(reward=np.linspace(-1200, -500, 100) + 300 * noisy) is Learning.IMPROVES
    assert learning(reward=np.linspace(-500, -1200, 100) + 300 * noisy) is Learning.WORSE
    assert learning(reward=-900 + 300 * noisy) is Learning.STANDS


def test_a_loss_below_zero_is_measured_by_its_scatter() -> None:
    assert learning(loss=np.linspace(1.5, -4, 100) + 0.1 * NOISE) is Learning.WORKS
    assert learning(loss=np.linspace(-1.0, -4, 100) + 0.1 * NOISE) is Learning.WORKS
    assert learning(loss=-3 + 0.1 * NOISE) is Learning.STANDS
    assert learning(loss=np.linspace(-4, 2, 100) + 0.1 * NOISE) is Learning.WORSE


def test_the_agreement_is_that_of_all_pairs() -> None:
    values = np.array([3.0, 1.0, 2.0, 9.0, 9.0, 4.0, 2.5, 0.5, 7.0])
    early, late = values[:3], values[-3:]
    pairs = [late_one > early_one for early_one in early for late_one in late]
    assert len(values) < 10
    later = [b > a for i, a in enumerate(values) for b in values[i + 1 :]]
    assert agreement(values) == pytest.approx(sum(later) / len(later))
    values = np.r_[values[:3], np.zeros(6), values[-3:]]
    assert agreement(values) == pytest.approx(sum(pairs) / len(pairs))


def test_a_network_trained_before_that_gets_worse_does_not_work() -> None:
    loss, info = np.linspace(0.5, 1.6, 100), {"chance": 1.6}
    run = make_run({}, names=["a.weight"], steps=range(100), scalars={"loss": loss}, info=info)
    assert outcome(context(run)).learning is not Learning.WORKS


def test_a_loss_that_falls_without_bound_is_no_success() -> None:
    assert learning(loss=-np.geomspace(1.6, 900, 100)) is Learning.STANDS
    assert learning(loss=np.geomspace(6, 1, 100) - 4) is Learning.WORKS


def test_a_fall_to_chance_is_no_improvement() -> None:
    falls = np.geomspace(6, 3.9, 100)
    for chance, expected in ((3.9, Learning.STANDS), (5.0, Learning.IMPROVES)):
        run = make_run({}, names=["a.weight"], scalars={"loss": falls}, info={"chance": chance})
        assert outcome(context(run)).learning is expected
