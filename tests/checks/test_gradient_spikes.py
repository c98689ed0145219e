"""What `gradient-spikes` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, gradients, make_run, only, quiet, said, skipped, table


def noise(steps: int, spread: float, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, steps))


def test_spikes_names_the_layer_that_jumped_most() -> None:
    first, rest = noise(100, 0.2), noise(100, 0.2, 1)
    first[70] *= 200
    rest[70] *= 40
    finding = only("gradient-spikes", gradients(first, rest, rest, steps=100))
    assert (finding.first_step, finding.layers[0]) == (70, "in")


def test_spikes_of_noisy_small_batches_are_only_mentioned() -> None:
    wild = noise(400, 1.6)
    assert quiet("gradient-spikes", gradients(wild, wild, wild, steps=400))


def test_a_crowd_of_spikes_is_an_oscillation() -> None:
    column = noise(120, 0.1)
    column[60:72:2] *= 60
    assert quiet("gradient-spikes", gradients(column, column, column, steps=120))


def test_spikes_that_stay_are_no_spikes() -> None:
    column = noise(100, 0.1)
    column[60:] *= 100
    assert not said("gradient-spikes", gradients(column, column, column, steps=100))


def test_spikes_under_twenty_times_are_not_named() -> None:
    column = noise(100, 0.05)
    column[60] = 15.0
    assert not said("gradient-spikes", gradients(column, column, column, steps=100))


def test_spikes_need_every_step() -> None:
    values = table([1.0, 1.0, 1.0], 40)
    run = make_run({"grad_norm": values}, names=NAMES, steps=list(range(0, 320, 8)))
    (reason,) = skipped("gradient-spikes", run)
    assert "every 8 steps" in reason.reason
