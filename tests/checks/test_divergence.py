"""What `divergence` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, make_run, only, run_of, said

from gradwatch.run import Run


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


def test_a_loss_that_falls_below_zero_has_not_risen() -> None:
    noise = np.random.default_rng(1).normal(size=150)
    for start, end in ((-0.132, -1.56), (0.01, -1.56), (-0.132, -0.132)):
        loss = np.linspace(start, end, 150) + 0.1 * noise
        assert not said("divergence", run_of(loss))
    risen = only("divergence", run_of(np.linspace(-0.132, 3.0, 150) + 0.01 * noise))
    assert risen.severity is Severity.CRITICAL
    assert "rose from -0.1" in risen.message


def test_a_rise_in_between_is_told_with_where_it_ended() -> None:
    loss = np.r_[np.linspace(1, 4, 30), np.linspace(4, 0.5, 60)]
    finding = only("divergence", run_of(loss))
    assert finding.severity is Severity.INFO
    assert "in between, and is now 0.737" in finding.message


def test_divergence_into_nan() -> None:
    loss = np.r_[1.0, 5.0, 40.0, 900.0, np.nan, np.nan]
    run = make_run(
        {}, names=["a.weight"], steps=list(range(6)),
        scalars={"loss": loss, "loss_nonfinite": np.isnan(loss).astype(float)},
    )  # fmt: skip
    assert "then NaN" in only("divergence", run).message


NOISE = np.random.default_rng(2).normal(size=120)
AWAY = np.geomspace(0.5, 5000, 120)
LEVEL = 0.7 + 0.1 * NOISE


def several(**scalars: np.ndarray) -> Run:
    return make_run({}, names=["a.weight"], steps=list(range(120)), scalars=scalars)


def test_a_loss_without_a_level_that_runs_away() -> None:
    rises = only("divergence", several(critic_loss=AWAY, actor_loss=LEVEL, reward=LEVEL))
    assert rises.severity is Severity.CRITICAL
    assert "critic_loss rises without bound, from 0.5" in rises.message
    assert 15 <= rises.first_step <= 22
    falls = only("divergence", several(d_loss=LEVEL, g_loss=-AWAY))
    assert "g_loss falls without bound" in falls.message
    assert "sign of the loss" in falls.advice[0]


def test_each_such_loss_is_looked_at_on_its_own() -> None:
    found = said("divergence", several(d_loss=-AWAY, g_loss=AWAY))
    assert [item.evidence[0].stat for item in found] == ["d_loss", "g_loss"]


def test_losses_that_grow_with_the_reward_or_scatter_wider_or_are_weighed() -> None:
    assert not said("divergence", several(value_loss=AWAY, policy_loss=LEVEL, reward=AWAY))
    assert not said("divergence", several(policy_loss=AWAY * NOISE))
    assert not said("divergence", several(g_loss=np.geomspace(0.5, 9, 120), d_loss=LEVEL))
    assert not said("divergence", several(recon_loss=LEVEL, kl_loss=AWAY))
