"""What `weight-explosion` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, make_run, norms, only, said, table, weight


def test_explosion_names_the_largest_growth_first() -> None:
    finding = only("weight-explosion", norms(np.geomspace(2, 60, 40), np.geomspace(2, 200, 40), 2))
    assert finding.layers == ("mid", "in")


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
