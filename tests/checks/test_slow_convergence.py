"""What `slow-convergence` finds, and what it leaves alone."""

import math

import numpy as np
from tests.checks.shapes import Severity, make_run, only, quiet, run_of, said

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


def advice(optimizer: str, ratio: float, loss: np.ndarray) -> str:
    run = make_run(
        {"update_ratio": np.full((100, 1), ratio)},
        names=["a.weight"],
        scalars={"loss": loss},
        info={"chance": math.log(5), "optimizer": optimizer},
    )
    return " ".join(only("slow-convergence", run).advice)


def test_the_advice_uses_what_is_known() -> None:
    stuck = math.log(5) * (1 + 0.01 * RANDOM.normal(size=100))
    assert "Raise the learning rate" in advice("SGD", 1e-5, stuck)
    assert "Try Adam" in advice("SGD", 1e-5, stuck)
    assert "Adam" not in advice("AdamW", 1e-5, stuck)
    assert "Lower the learning rate" in advice("AdamW", 0.1, stuck)
    assert "three times larger and one three times smaller" in advice("AdamW", 5e-3, stuck)
    rose = np.r_[np.linspace(1.6, 4, 50), np.linspace(4, 1.6, 50)]
    assert "Raise" not in advice("SGD", 1e-5, rose)


def test_a_fall_from_a_bad_start_to_chance_is_still_chance() -> None:
    loss = np.r_[np.geomspace(9, 1.61, 30), math.log(5) * (1 + 0.01 * RANDOM.normal(size=70))]
    assert only("slow-convergence", run_of(loss, math.log(5))).severity is Severity.WARNING


def test_a_loss_that_was_lower_in_between_has_left_chance() -> None:
    loss = math.log(5) * np.r_[np.linspace(1, 0.8, 20), np.linspace(0.8, 1.0, 180)]
    assert quiet("slow-convergence", run_of(loss, math.log(5)))


def test_each_of_several_losses_is_judged() -> None:
    stuck, fell = np.full(100, 1.6), np.geomspace(2, 0.1, 100)
    run = make_run(
        {"update_ratio": np.full((100, 1), 1e-6)},
        names=["a.weight"],
        scalars={"mask_loss": fell, "box_loss": stuck},
    )
    assert "box_loss went from 1.6 to 1.6" in only("slow-convergence", run).message


def without_step(**told: object):  # type: ignore[no-untyped-def]
    known = {"losses": 40, "loss": "loss", "first_loss": 2.0, "last_loss": 1.7, "moved": False}
    return make_run({}, scalars={"loss": [1.7]}, info={"without_step": known | told})


def test_losses_of_a_run_without_a_step() -> None:
    finding = only("slow-convergence", without_step())
    assert finding.severity is Severity.WARNING
    assert "15 % of the way" in finding.message
    few, fell, moved = {"losses": 39}, {"last_loss": 1.5}, {"moved": True}
    for told in (few, fell, moved, {"first_loss": "2"}, {"first_loss": -1.0}):
        assert not said("slow-convergence", without_step(**told))
