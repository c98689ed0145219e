"""What `learning-rate-zero` finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.checks.shapes import FALLING, STUCK, Severity, make_run, only, said, table, weight
from tests.checks.trainings import headline, loud, mlp, plain, record

from gradwatch.run import Run, Subject
from gradwatch.stats import Kind

NAME = "learning-rate-zero"


def rates(*columns: object, loss: np.ndarray = STUCK) -> Run:
    groups = [Subject(Kind.GROUP, f"group {i}") for i in range(len(columns))]
    return make_run(
        {"lr": table(columns, len(loss))},
        subjects=[weight("a"), *groups],
        scalars={"loss": loss},
    )


def trained(path: Path, factor: Callable[[int], float], steps: int = 100) -> Run:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    each = plain(model, optimizer, after_step=lambda _: schedule.step())
    return record(path, model, optimizer, each=each, steps=steps)


def test_a_scheduler_of_epochs_that_is_stepped_per_batch(tmp_path: Path) -> None:
    run = trained(tmp_path, lambda epoch: max(0.0, 1 - epoch / 30))
    finding = headline(run)
    assert (finding.check, finding.layers, finding.first_step) == (NAME, (), 30)
    assert finding.severity >= Severity.WARNING
    assert "is 0 since step 30 (at most 0.02 before): 70 % of the steps" in finding.message
    assert "step 30" in finding.advice[1]
    assert loud(run) - {c.check for c in finding.consequences} == {NAME}


def test_a_schedule_that_ends_at_zero_is_fine(tmp_path: Path) -> None:
    assert not said(NAME, trained(tmp_path, lambda step: max(0.0, 1 - step / 98)))


def test_a_warm_up_from_zero_is_fine(tmp_path: Path) -> None:
    assert not said(NAME, trained(tmp_path, lambda step: 0.0 if step < 25 else 1.0))


def test_a_rate_that_never_was(tmp_path: Path) -> None:
    run = trained(tmp_path, lambda _: 0.0, steps=40)
    finding = headline(run)
    assert finding.check == NAME
    assert "0 on every step" in finding.message
    assert not said("not-updated", run), "one fault, one finding"


@pytest.mark.parametrize(("end", "found"), [(49, False), (47, True)])
def test_a_fifth_of_the_steps_is_the_limit(end: int, found: bool) -> None:
    assert bool(said(NAME, rates(np.where(np.arange(60) < end, 0.1, 0.0)))) is found


def test_how_small_is_nothing() -> None:
    late = np.arange(60) >= 30
    assert said(NAME, rates(np.where(late, 1e-11, 0.1)))
    assert not said(NAME, rates(np.where(late, 1e-9, 0.1)))


def test_one_group_that_goes_on_is_enough() -> None:
    gone = np.where(np.arange(60) < 20, 0.1, 0.0)
    assert not said(NAME, rates(gone, 0.1))
    assert said(NAME, rates(gone, 0.0)), "a group that never learned is none that goes on"
    now_and_then = np.where(np.arange(60) % 2, np.nan, 0.1)
    assert not said(NAME, rates(gone, now_and_then)), "its optimizer steps every second time"


def test_a_training_that_is_done_may_rest() -> None:
    gone = np.where(np.arange(60) < 30, 0.1, 0.0)
    assert only(NAME, rates(gone, loss=FALLING)).severity is Severity.INFO
    assert only(NAME, rates(gone)).severity is Severity.CRITICAL
