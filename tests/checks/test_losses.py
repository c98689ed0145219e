"""Checks that read the loss."""

import math

import numpy as np
import pytest
from tests.checks.shapes import Severity, make_run, only, quiet, said, table

from gradwatch.run import Run

RANDOM = np.random.default_rng(0)


def run_of(loss: np.ndarray, chance: float | None = None, **series: object) -> Run:
    steps = len(loss)
    values = {name: table([column, column], steps) for name, column in series.items()}
    return make_run(
        values,
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
        info={} if chance is None else {"chance": chance},
    )


def falling(steps: int = 200, noise: float = 0.02) -> np.ndarray:
    return np.geomspace(1.6, 0.1, steps) * (1 + noise * RANDOM.normal(size=steps))


def noisy_floor(steps: int = 300) -> np.ndarray:
    """Batches of two: a fast fall, then noise around a level it cannot leave."""
    level = np.maximum(1.6 * np.exp(-np.arange(steps) / 20), 1.0)
    return level * np.exp(0.5 * RANDOM.normal(size=steps))


HEALTHY = ["divergence", "loss-spike", "loss-oscillation", "slow-convergence"]


@pytest.mark.parametrize("check", HEALTHY)
@pytest.mark.parametrize("make", [falling, noisy_floor, lambda: falling(6)])
def test_healthy_losses_are_quiet(check: str, make: object) -> None:
    assert quiet(check, run_of(make()))  # type: ignore[operator]


# -- divergence ------------------------------------------------------------------------------------


def test_divergence_begins_where_the_loss_leaves_for_good() -> None:
    loss = np.r_[np.linspace(2, 1, 50), np.geomspace(1, 50, 50)]
    finding = only("divergence", run_of(loss))
    assert finding.severity is Severity.CRITICAL
    assert 65 <= finding.first_step <= 72


def test_divergence_at_the_border() -> None:
    assert only("divergence", run_of(np.linspace(1, 1.6, 50))).severity is Severity.INFO
    assert not said("divergence", run_of(np.linspace(1, 1.2, 50)))


def test_a_loss_that_falls_without_bound() -> None:
    finding = only("divergence", run_of(-np.geomspace(1.6, 900, 80)))
    assert "without bound" in finding.message


def test_a_likelihood_below_zero_is_not_unbounded() -> None:
    assert not said("divergence", run_of(np.linspace(1.5, -4, 80)))


def test_divergence_into_nan() -> None:
    loss = np.r_[1.0, 5.0, 40.0, 900.0, np.nan, np.nan]
    run = make_run(
        {}, names=["a.weight"], steps=list(range(6)),
        scalars={"loss": loss, "loss_nonfinite": np.isnan(loss).astype(float)},
    )  # fmt: skip
    assert "then NaN" in only("divergence", run).message


# -- spikes ------------------------------------------------------------------------------------


def test_a_spike_that_comes_back() -> None:
    loss, ratio = falling(), np.full(200, 1e-3)
    loss[120], loss[121] = 9.0, 3.0
    ratio[119] = 0.5
    finding = only("loss-spike", run_of(loss, 1.6, update_ratio=ratio))
    assert finding.first_step == 120
    assert finding.layers[0] == "a"


def test_a_rise_that_stays_is_no_spike_and_small_ones_do_not_count() -> None:
    loss = falling()
    loss[120:] += 9.0
    assert not said("loss-spike", run_of(loss, 1.6))
    loss = falling()
    loss[120] = 1.5
    assert not said("loss-spike", run_of(loss, 1.6))


# -- oscillation -----------------------------------------------------------------------------------


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


# -- slow ------------------------------------------------------------------------------------------


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


# -- overfitting -----------------------------------------------------------------------------------


def validated(end: float, train: float = 0.05) -> Run:
    valid = np.full(200, np.nan)
    valid[::10] = np.r_[np.linspace(1.6, 0.8, 8), np.linspace(0.8, end, 12)]
    return make_run({}, scalars={"loss": np.geomspace(1.6, train, 200), "val_loss": valid})


def test_overfitting_begins_at_the_best_validation() -> None:
    finding = only("overfitting", validated(2.0))
    assert finding.first_step in (70, 80)


def test_overfitting_at_the_border() -> None:
    assert not said("overfitting", validated(1.15))
    assert said("overfitting", validated(1.4))
    assert not said("overfitting", validated(2.0, train=0.9))


def test_a_validation_loss_near_nothing_is_not_overfitting() -> None:
    valid = np.full(200, np.nan)
    valid[::10] = np.r_[1.6, np.geomspace(1e-3, 1e-5, 9), np.linspace(1e-5, 1e-4, 10)]
    run = make_run({}, scalars={"loss": np.geomspace(1.6, 1e-4, 200), "val_loss": valid})
    assert not said("overfitting", run)


# -- who moved first -------------------------------------------------------------------------------


def test_the_update_that_led_the_loss() -> None:
    loss, first, second = np.full(100, 0.5), np.full(100, 0.01), np.full(100, 0.01)
    first[71:] *= 5
    second[78:] *= 5
    loss[80:] = 6.0
    run = make_run(
        {"update_norm": table([first, second], 100)},
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
    )
    finding = only("update-leads-loss", run)
    assert (finding.layers, finding.first_step, finding.last_step) == (("a",), 71, 80)
    assert finding.severity is Severity.INFO
    calm = make_run(
        {"update_norm": table([0.01, 0.01], 100)},
        names=["a.weight", "b.weight"],
        scalars={"loss": loss},
    )
    assert not said("update-leads-loss", calm)
