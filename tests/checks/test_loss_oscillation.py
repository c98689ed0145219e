"""What `loss-oscillation` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, only, quiet, run_of, said

RANDOM = np.random.default_rng(0)


def bouncing(swing: float) -> np.ndarray:
    return 2.0 * (1 + swing * np.tile([1, -1], 100)) * (1 + 0.01 * RANDOM.normal(size=200))


def test_oscillation_of_steps_that_undo_each_other() -> None:
    assert only("loss-oscillation", run_of(bouncing(0.3))).severity is Severity.WARNING


def test_oscillation_at_the_border() -> None:
    assert only("loss-oscillation", run_of(bouncing(0.06))).severity is Severity.INFO
    assert not said("loss-oscillation", run_of(bouncing(0.02)))


def test_the_noise_of_small_batches_counts_when_steps_are_far_too_large() -> None:
    loss = 1.6 * np.exp(0.5 * RANDOM.normal(size=200))
    assert quiet("loss-oscillation", run_of(loss, update_ratio=np.full(200, 1e-3)))
    assert not quiet("loss-oscillation", run_of(loss, update_ratio=np.full(200, 0.2)))
