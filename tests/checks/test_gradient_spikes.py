"""What `gradient-spikes` finds, and what it leaves alone."""

from dataclasses import replace

import numpy as np
from tests.checks.shapes import (
    NAMES,
    Severity,
    gradients,
    make_run,
    only,
    quiet,
    said,
    skipped,
    table,
    weight,
)


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


def test_a_spike_in_a_network_that_has_learnt_must_exceed_its_beginning() -> None:
    loss = np.geomspace(2.0, 1e-2, 200)
    column = noise(200, 0.05) * np.geomspace(1.0, 1e-2, 200)
    column[150] = 1.5  # one hard sample
    finding = only("gradient-spikes", gradients(column, column, column, steps=200))
    assert finding.severity is Severity.WARNING, "nobody knows whether it has learnt"
    run = gradients(column, column, column, steps=200, scalars={"loss": loss})
    assert quiet("gradient-spikes", run)
    column[150] = 9.0  # a broken one
    run = gradients(column, column, column, steps=200, scalars={"loss": loss})
    assert not quiet("gradient-spikes", run)


def test_the_model_s_own_parameter_is_no_layer_to_open() -> None:
    spiky, calm = noise(100, 0.1), noise(100, 0.1, 1)
    spiky[70] *= 300
    values = {"grad_norm": table([spiky, calm, spiky], 100)}
    own = replace(weight("own"), name="scale", layer="")
    run = make_run(values, subjects=[own, weight("a"), weight("b")])
    assert only("gradient-spikes", run).layers == ("b",)
