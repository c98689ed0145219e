"""What `weight-explosion` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, make_run, norms, only, said, table, weight


def test_explosion_names_the_largest_growth_first() -> None:
    grown = np.geomspace(2, 60, 40), np.geomspace(2, 200, 40)
    finding = only("weight-explosion", norms(*grown, 2, 2))
    assert finding.layers == ("mid", "in")
    assert finding.tensors == ("mid.weight", "in.weight")


def test_explosion_of_most_weights_is_a_fault_of_the_whole_run() -> None:
    finding = only("weight-explosion", norms(np.geomspace(2, 60, 40), np.geomspace(2, 200, 40), 2))
    assert (finding.layers, finding.tensors) == ((), ("mid.weight", "in.weight"))
    assert "the whole run" in finding.cause


def test_a_tiny_start_is_held_against_the_usual_one() -> None:
    tiny = np.geomspace(1e-3, 5, 40)  # usual for 4 × 4 is √count ÷ √(3·4), which is 1.15
    assert only("weight-explosion", norms(tiny, 2, 2)).severity is Severity.WARNING
    assert only("weight-explosion", norms(tiny / 2, 2, 2)).severity is Severity.INFO


def test_explosion_of_fivefold_is_mentioned_and_of_twofold_is_not() -> None:
    assert only("weight-explosion", norms(np.geomspace(2, 10, 40), 2, 2)).severity is Severity.INFO
    assert not said("weight-explosion", norms(np.geomspace(2, 4, 40), 2, 2))


def test_weights_that_leave_a_tiny_start_do_not_explode() -> None:
    assert not said("weight-explosion", norms(np.geomspace(1e-4, 1e-1, 40), 2, 2))


def test_zero_starts_and_frozen_weights_are_not_judged() -> None:
    subjects = [weight("a"), weight("b", frozen=True)]
    run = make_run({"weight_norm": table([np.linspace(0, 50, 40), 1.0], 40)}, subjects=subjects)
    assert not said("weight-explosion", run)
    assert not said("weight-collapse", run)


def test_a_norm_that_still_grows_is_taken_where_it_is() -> None:
    grows, swings = np.geomspace(1.5, 16, 12), np.r_[np.geomspace(1.5, 8, 11), 16]
    swings[-2] = 9.0
    swings[-3] = 9.5
    assert only("weight-explosion", norms(grows, 2, 2, steps=12)).severity is Severity.WARNING
    assert only("weight-explosion", norms(swings, 2, 2, steps=12)).severity is Severity.INFO
