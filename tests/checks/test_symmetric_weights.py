"""What `symmetric-weights` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, Severity, make_run, only, said, table, weight


def test_symmetric_weights_at_both_ends() -> None:
    run = make_run({"weight_row_spread": table([1e-7, 0.9, 0.0], 40)}, names=NAMES)
    finding = only("symmetric-weights", run)
    assert finding.layers == ("in", "out")
    assert finding.severity is Severity.CRITICAL


def test_a_weight_that_starts_at_zero_and_learns_is_not_symmetric() -> None:
    spread = np.linspace(0, 0.8, 40)
    assert not said(
        "symmetric-weights", make_run({"weight_row_spread": table([spread, 1, 1], 40)}, names=NAMES)
    )


def test_symmetry_waits_for_ten_steps_and_needs_more_than_one_row() -> None:
    short = make_run({"weight_row_spread": table([0.0, 1, 1], 8)}, names=NAMES)
    assert not said("symmetric-weights", short)
    single = make_run({"weight_row_spread": table([0.0], 40)}, subjects=[weight("a", (1, 8))])
    assert not said("symmetric-weights", single)
