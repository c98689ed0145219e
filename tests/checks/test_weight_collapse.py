"""What `weight-collapse` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, norms, only, said


def test_collapse_names_the_smallest_first() -> None:
    finding = only(
        "weight-collapse", norms(np.geomspace(8, 0.4, 40), np.geomspace(8, 0.1, 40), 8.0)
    )
    assert finding.layers == ("mid", "in")
    assert finding.severity is Severity.WARNING


def test_collapse_to_a_third_is_mentioned_and_to_two_thirds_is_not() -> None:
    assert only("weight-collapse", norms(np.linspace(9, 3, 40), 9, 9)).severity is Severity.INFO
    assert not said("weight-collapse", norms(np.linspace(9, 6, 40), 9, 9))
