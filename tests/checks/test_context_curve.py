"""Healthy losses are quiet in every check that reads the loss's curve."""

import numpy as np
import pytest
from tests.checks.shapes import falling, quiet, run_of

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
