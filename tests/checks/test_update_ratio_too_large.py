"""What `update-ratio-too-large` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import NAMES, Severity, make_run, only, quiet, said, table, updates


def test_updates_too_large_on_a_tenth_of_the_steps() -> None:
    column = np.full(60, 1e-3)
    column[20::5] = 0.5
    finding = only("update-ratio-too-large", updates(1e-3, column, 1e-3))
    assert (finding.layers, finding.first_step) == (("mid",), 20)
    assert finding.severity is Severity.WARNING


def test_a_quarter_of_the_weights_above_one_on_one_step() -> None:
    column = np.full(60, 1e-3)
    column[30] = 1.5
    assert only("update-ratio-too-large", updates(1e-3, column, 1e-3)).severity is Severity.WARNING


def test_updates_large_only_in_the_first_steps_or_slightly_are_no_fault() -> None:
    column = np.full(60, 1e-3)
    column[:10] = 2.0
    assert not said("update-ratio-too-large", updates(column, column, column))
    assert quiet("update-ratio-too-large", updates(0.2, 1e-3, 1e-3))


def test_one_large_sample_of_few_is_no_habit() -> None:
    ratios = np.full(10, 1e-3)
    ratios[6] = 0.5
    values = {"update_ratio": table([ratios, 1e-3], 10)}
    run = make_run(values, names=NAMES[:2], steps=list(range(20, 60, 4)))
    assert quiet("update-ratio-too-large", run)


def test_updates_against_a_weight_that_started_at_zero_are_judged_later() -> None:
    column = 1 / (1 + np.arange(60))
    run = make_run(
        {
            "update_ratio": table([column * 5, 1e-3], 60),
            "weight_norm": table([np.r_[0, np.ones(59)], 1], 60),
        },
        names=NAMES[:2],
    )
    assert quiet("update-ratio-too-large", run)
