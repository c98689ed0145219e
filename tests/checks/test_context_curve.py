"""Healthy losses are quiet in every check that reads the loss's curve."""

import math

import numpy as np
import pytest
from tests.checks.shapes import falling, make_run, quiet, run_of

from gradwatch.checks.context import context

RANDOM = np.random.default_rng(0)


def noisy_floor(steps: int = 300) -> np.ndarray:
    """Batches of two: a fast fall, then noise around a level it cannot leave."""
    level = np.maximum(1.6 * np.exp(-np.arange(steps) / 20), 1.0)
    return level * np.exp(0.5 * RANDOM.normal(size=steps))


HEALTHY = ["divergence", "loss-spike", "loss-oscillation", "slow-convergence"]


@pytest.mark.parametrize("check", HEALTHY)
@pytest.mark.parametrize("make", [lambda: falling(RANDOM), noisy_floor, lambda: falling(RANDOM, 6)])
def test_healthy_losses_are_quiet(check: str, make: object) -> None:
    assert quiet(check, run_of(make()))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("first", "last", "kind", "known"),
    [
        (3.90, 1.0, "cross_entropy", True),  # begins where a constant guess stands
        (6.40, 3.84, "cross_entropy", True),  # ends there
        (1.95, 1.0, "cross_entropy", False),  # halved: by how much, nobody knows
        (3.90, 1.0, "nll", False),
    ],
)
def test_the_level_of_a_constant_guess_that_a_loss_shows_itself(
    first: float, last: float, kind: str, known: bool
) -> None:
    run = make_run(
        {}, names=["a.weight"], scalars={"loss": np.linspace(first, last, 60)},
        steps=list(range(60)), info={"loss_kind": kind, "classes": 48},
    )  # fmt: skip
    loss = context(run).loss
    assert loss is not None
    assert loss.chance == (pytest.approx(math.log(48)) if known else None)
