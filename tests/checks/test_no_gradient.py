"""What `no-gradient` finds, and what it leaves alone."""

import numpy as np
from tests.checks.shapes import Severity, gradients, make_run, net, only, said, table, weight

from gradwatch.stats import State


def test_no_gradient_when_none_is_recorded() -> None:
    states = np.zeros((30, 3))
    states[:, 0] = State.NO_GRADIENT
    run = gradients(np.nan, 1.0, 1.0, steps=30, states={"grad_norm": states})
    finding = only("no-gradient", run)
    assert finding.layers == ("in",)
    assert finding.severity is Severity.CRITICAL
    assert "is None" in finding.message


def test_no_gradient_when_it_is_exactly_zero() -> None:
    assert "is zero" in only("no-gradient", gradients(0.0, 1.0, 1.0)).message


def test_no_gradient_of_zero_initialised_branches_is_not_a_fault() -> None:
    column = np.ones(40)
    column[0] = 0.0
    assert not said("no-gradient", gradients(column, 1.0, 1.0, steps=40))


def test_no_gradient_on_half_of_the_steps_is_stochastic_depth() -> None:
    column = np.tile([0.0, 1.0], 30)
    assert not said("no-gradient", gradients(column, 1.0, 1.0))


def test_no_gradient_of_a_frozen_weight_is_deliberate_and_of_a_bias_only_mentioned() -> None:
    bias = weight("b", (8,))
    run = make_run(
        {"grad_norm": table([0.0, 0.0, 1.0], 30)},
        subjects=[weight("a", frozen=True), bias, weight("c")],
        graph=net("a", "b", "c"),
    )
    assert only("no-gradient", run).severity is Severity.INFO


def test_no_gradient_waits_for_five_steps() -> None:
    assert not said("no-gradient", gradients(0.0, 1.0, 1.0, steps=4))
    assert said("no-gradient", gradients(0.0, 1.0, 1.0, steps=5))


def test_no_gradient_of_a_loss_that_is_zero_is_right() -> None:
    column = np.where(np.arange(100) < 5, 1.0, 0.0)
    loss = np.where(np.arange(100) < 5, 1.0, 0.0)
    assert not said(
        "no-gradient", gradients(column, column, column, steps=100, scalars={"loss": loss})
    )
    loss[:] = 1.0
    assert said("no-gradient", gradients(column, column, column, steps=100, scalars={"loss": loss}))
