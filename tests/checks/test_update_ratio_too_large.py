"""What `update-ratio-too-large` finds, and what it leaves alone."""

import numpy as np
import pytest
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


@pytest.mark.parametrize("start", [0.0, 1e-3])
def test_updates_are_not_held_against_a_weight_that_started_at_nothing(start: float) -> None:
    ratio = 5 / (1 + np.arange(60))
    norm = np.r_[start, np.linspace(0.1, 2, 59)]
    series = {
        "update_ratio": table([ratio, 1e-3], 60),
        "weight_norm": table([norm, 1], 60),
        "update_norm": table([ratio * norm, 1e-3], 60),
    }
    assert quiet("update-ratio-too-large", make_run(series, names=NAMES[:2]))
    del series["update_norm"]
    assert quiet("update-ratio-too-large", make_run(series, names=NAMES[:2]))


def test_steps_of_the_usual_norm_are_too_large_whatever_the_start() -> None:
    series = {
        "update_ratio": table([0.6, 1e-3, 1e-3], 60),
        "weight_norm": table([np.r_[0, np.full(59, 4.0)], 1, 1], 60),
        "update_norm": table([2.4, 1e-3, 1e-3], 60),
    }
    finding = only("update-ratio-too-large", make_run(series, names=NAMES))
    assert (finding.layers, finding.first_step) == (("in",), 0), "it began before it was judged"


def test_a_rate_that_is_too_large_for_most_weights_is_a_fault_of_the_whole_run() -> None:
    finding = only("update-ratio-too-large", updates(0.5, 0.6, 1e-3))
    assert finding.layers == ()
    assert finding.tensors == ("in.weight", "mid.weight")
    assert "the whole run" in finding.cause
