"""Advice suits the run and never says two things at once."""

from typing import Any

import numpy as np
import pytest
from tests.making import make_run

from gradwatch.diagnosis.advice import fitting
from gradwatch.finding import Finding, Severity
from gradwatch.run import Run, Subject
from gradwatch.stats import Kind

LOWER, RAISE = "Lower the learning rate by ten.", "Raise the learning rate by three to ten."
ADAM = "Try Adam instead of plain SGD; check the scheduler."


def finding(*advice: str, consequences: tuple[Finding, ...] = ()) -> Finding:
    return Finding("x", Severity.WARNING, (), 0, 9, "", advice=advice, consequences=consequences)


def run_with(optimizer: str = "", rates: Any = None, **scalars: Any) -> Run:
    groups = [Subject(Kind.GROUP, f"group {i}") for i in range(0 if rates is None else 1)]
    series = {} if rates is None else {"lr": np.broadcast_to(rates, (10,))[:, None]}
    info = {"optimizer": optimizer} if optimizer else {}
    steps = list(range(10))
    return make_run(series, subjects=groups, steps=steps, scalars=scalars, info=info)


def advised(run: Run, *advice: str) -> tuple[str, ...]:
    return fitting([finding(*advice)], run)[0].advice


@pytest.mark.parametrize(("first", "second"), [(LOWER, RAISE), (RAISE, LOWER)])
def test_the_headline_decides_the_direction_of_the_rate(first: str, second: str) -> None:
    under = finding(second, "Else.")
    headline, other = fitting(
        [finding(first, consequences=(under,)), finding("More.", second)], run_with()
    )
    assert headline.advice == (first,)
    assert headline.consequences[0].advice == ("Else.",)
    assert other.advice == ("More.",)


def test_who_has_adam_is_not_told_to_try_it() -> None:
    assert advised(run_with("AdamW"), ADAM, "Use Adam and a larger batch.") == (
        "Check the scheduler.",
    )
    assert advised(run_with("SGD"), ADAM) == (ADAM,)
    assert advised(run_with("SGD"), "Lower the learning rate or Adam's β2.") == (
        "Lower the learning rate.",
    )


def test_the_rate_is_told_where_it_is_known() -> None:
    assert advised(run_with(rates=0.1), LOWER) == ("Lower the learning rate (it is 0.1) by ten.",)
    warm = np.linspace(0.01, 0.1, 10)
    assert advised(run_with(rates=warm), RAISE)[0].startswith(
        "Raise the learning rate (at most 0.1)"
    )
    assert advised(run_with(), LOWER) == (LOWER,)


def test_who_clips_is_told_to_clip_lower() -> None:
    clips = run_with(clip_factor=np.full(10, 0.3))
    assert advised(clips, "Clip the gradient norm to about 1.") == (
        "Clip the gradient norm lower than now.",
    )
    assert advised(run_with(clip_factor=np.ones(10)), "Clip the gradient norm.") == (
        "Clip the gradient norm.",
    )
