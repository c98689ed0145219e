"""What `slow-convergence` finds, and what it leaves alone."""

import math

import numpy as np
from tests.checks.shapes import Severity, only, quiet, run_of, said

RANDOM = np.random.default_rng(0)


def test_a_loss_that_never_leaves_chance() -> None:
    loss = math.log(5) * (1 + 0.02 * RANDOM.normal(size=100))
    assert only("slow-convergence", run_of(loss, math.log(5))).severity is Severity.WARNING


def test_a_loss_that_creeps_with_tiny_updates() -> None:
    loss = np.linspace(1.6, 1.5, 100)
    assert not quiet("slow-convergence", run_of(loss, update_ratio=np.full(100, 1e-6)))
    assert quiet("slow-convergence", run_of(loss, update_ratio=np.full(100, 1e-2)))


def test_fine_tuning_far_below_chance_is_not_slow() -> None:
    loss = np.linspace(0.5, 0.49, 100)
    assert quiet("slow-convergence", run_of(loss, math.log(5), update_ratio=np.full(100, 1e-6)))
    assert quiet(
        "update-ratio-too-small", run_of(loss, math.log(5), update_ratio=np.full(100, 1e-8))
    )


def test_slow_waits_for_forty_steps_and_is_content_with_progress() -> None:
    assert not said("slow-convergence", run_of(np.full(30, 1.6), math.log(5)))
    assert not said("slow-convergence", run_of(np.linspace(1.6, 1.1, 100), math.log(5)))
