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


def zeros(*gradients: object) -> list[Severity]:
    """Weights that are and stay zero, with these gradients, beside one that learns."""
    names = [f"z{i}.weight" for i in range(len(gradients))]
    count = len(gradients)
    run = make_run(
        {
            "weight_row_spread": table([*[0.0] * count, 0.9], 40),
            "weight_norm": table([*[0.0] * count, 1.0], 40),
            "grad_norm": table([*gradients, 1.0], 40),
        },
        names=[*names, "out.weight"],
    )
    return [item.severity for item in said("symmetric-weights", run)]


def test_zeros_that_wait_for_each_other_are_the_fault_and_a_zero_that_waits_alone_is_not() -> None:
    assert zeros(0.0, 0.0) == [Severity.CRITICAL]
    assert zeros(0.0) == [Severity.WARNING]
    assert zeros(0.5) == [Severity.WARNING], "it has a gradient: no step is taken"
    assert zeros(0.0, 0.0, 0.5) == [Severity.CRITICAL, Severity.WARNING]
