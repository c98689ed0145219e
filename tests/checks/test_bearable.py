"""What is an information in a training that works, and what stays a warning."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.making import make_run

from gradwatch.checks import CHECKS
from gradwatch.checks.bearable import BEARABLE, severity
from gradwatch.checks.context import context
from gradwatch.checks.explain import text
from gradwatch.checks.outcome import Learning
from gradwatch.finding import Evidence, Finding, Severity


def severity_in(
    loss: NDArray[np.float64], check: str, step: int = 50, measured: float = 2.0
) -> Severity:
    evidence = (Evidence("weight_norm", "a.weight", 99, measured, 1.0),)
    found = Finding(check, Severity.WARNING, ("a",), step, 99, "", evidence)
    run = make_run({}, names=["a.weight"], steps=list(range(100)), scalars={"loss": loss})
    return severity(context(run), found)


WORKS, IMPROVES, STANDS = (np.linspace(2.0, end, 100) for end in (0.1, 1.2, 2.0))


@pytest.mark.parametrize("check", sorted(BEARABLE))
def test_what_is_bearable_is_so_from_its_outcome_on(check: str) -> None:
    assert severity_in(WORKS, check) is Severity.INFO
    assert severity_in(STANDS, check) is Severity.WARNING
    enough = BEARABLE[check].learning <= Learning.IMPROVES
    assert severity_in(IMPROVES, check) is (Severity.INFO if enough else Severity.WARNING)


def test_what_hurts_although_the_loss_falls_stays() -> None:
    assert severity_in(WORKS, "nonfinite") is Severity.WARNING
    stay = "not-updated no-gradient nonfinite stale-gradients norm-misuse output-misuse loss-spike"
    assert not BEARABLE.keys() & {*stay.split(), "update-lost-to-rounding", "input-scale"}


def test_far_beyond_the_limit_nothing_is_bearable() -> None:
    for check in ("weight-explosion", "weight-collapse", "update-ratio-too-large", "bad-init"):
        assert severity_in(WORKS, check, measured=5.0) is Severity.WARNING
        assert severity_in(WORKS, check, measured=0.2) is Severity.WARNING
    assert severity_in(WORKS, "dead-units", measured=5.0) is Severity.INFO


def test_what_was_there_from_the_first_step_was_not_learnt() -> None:
    for check, last in (("dead-units", 4), ("saturation", 1)):
        assert severity_in(WORKS, check, step=0) is Severity.WARNING
        assert severity_in(WORKS, check, step=last) is Severity.WARNING
        assert severity_in(WORKS, check, step=last + 2) is Severity.INFO
    assert severity_in(WORKS, "weight-explosion", step=0) is Severity.INFO


def test_a_page_says_from_which_outcome_on_it_is_an_information() -> None:
    (dead,) = [check for check in CHECKS if check.NAME == "dead-units"]
    (silent,) = [check for check in CHECKS if check.NAME == "no-gradient"]
    assert "Only an information in a training that works, unless it was there" in text(dead)
    assert "Only an information" not in text(silent)
