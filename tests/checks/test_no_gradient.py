"""What `no-gradient` finds, and what it leaves alone."""

import numpy as np
import pytest
from tests.checks.shapes import Severity, gradients, make_run, net, only, quiet, said, table, weight

from gradwatch.run import Run
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


# -- silent from some step on ----------------------------------------------------------------------


def silent_from(begin: int, steps: int = 60) -> np.ndarray:
    return np.where(np.arange(steps) < begin, 1.0, 0.0)


@pytest.mark.parametrize("begin", [1, 30, 50])
def test_no_gradient_from_some_step_to_the_end(begin: int) -> None:
    finding = only("no-gradient", gradients(silent_from(begin), 1.0, 1.0))
    assert finding.severity is Severity.CRITICAL
    assert finding.layers == ("in",)
    assert (finding.first_step, finding.last_step) == (begin, 59)
    assert f"is zero from step {begin} to the end" in finding.message


def test_no_gradient_to_the_end_needs_ten_samples() -> None:
    assert not said("no-gradient", gradients(silent_from(51), 1.0, 1.0))


def test_no_gradient_that_came_back_is_left_alone() -> None:
    column = np.ones(60)
    column[20:50] = 0.0
    assert not said("no-gradient", gradients(column, 1.0, 1.0))


def test_weights_that_rest_often_may_rest_at_the_end() -> None:
    column = np.tile([0.0, 1.0], 30)
    column[-12:] = 0.0
    assert not said("no-gradient", gradients(column, 1.0, 1.0))
    column[-30:] = 0.0  # chance no longer
    assert said("no-gradient", gradients(column, 1.0, 1.0))


def test_a_training_in_phases_may_end_in_one() -> None:
    column = np.tile(np.repeat([1.0, 0.0], 20), 4)  # the last of these phases rests
    assert not said("no-gradient", gradients(column, 1.0, 1.0, steps=160))
    longer = np.r_[column, np.zeros(5)]
    assert said("no-gradient", gradients(longer, 1.0, 1.0, steps=165))


def test_layers_that_fall_silent_at_different_steps_keep_their_steps() -> None:
    findings = said("no-gradient", gradients(0.0, silent_from(20), silent_from(40)))
    assert {(item.layers, item.first_step) for item in findings} == {
        (("in",), 0),
        (("mid",), 20),
        (("out",), 40),
    }


def test_many_steps_of_falling_silent_are_told_together() -> None:
    norms = {f"l{i}": silent_from(1 + i, 80) for i in range(40)}
    findings = said("no-gradient", Run.from_norms({**norms, "ok": np.ones(80)}))
    assert len(findings) == 8
    assert {layer for item in findings for layer in item.layers} == set(norms)


def test_no_gradient_to_the_end_of_a_loss_that_is_zero_is_right() -> None:
    column = silent_from(30)
    run = gradients(column, column, column, scalars={"loss": column * 2.0})
    assert not said("no-gradient", run)


def test_no_gradient_to_the_end_of_a_bias_is_only_mentioned() -> None:
    run = make_run(
        {"grad_norm": table([silent_from(30), 1.0], 60)}, subjects=[weight("a", (8,)), weight("b")]
    )
    assert only("no-gradient", run).severity is Severity.INFO
    assert not quiet("no-gradient", Run.from_norms({"a": silent_from(30), "b": np.ones(60)}))


# -- a part of a layer, or of the network ----------------------------------------------------------


def recurrent(loss: np.ndarray | None = None, silent: int = 1) -> Run:
    """Two layers of four tensors each, the first of which are silent."""
    names = [f"{layer}.{name}" for layer in ("rnn", "out") for name in "abcd"]
    columns = [*[0.0] * silent, *[1.0] * (8 - silent)]
    scalars = {} if loss is None else {"loss": loss}
    return make_run({"grad_norm": table(columns, 60)}, names=names, scalars=scalars)


def test_one_tensor_of_a_layer_is_named_with_its_share() -> None:
    finding = only("no-gradient", recurrent())
    assert finding.tensors == ("rnn.a",)
    assert "1 of 4 tensors of rnn, 25 % of its elements" in finding.message
    assert "cannot learn" not in finding.message
    assert finding.severity is Severity.WARNING


def test_one_tensor_of_a_layer_that_learns_is_an_information() -> None:
    assert quiet("no-gradient", recurrent(np.linspace(2, 0.1, 60)))
    assert not quiet("no-gradient", recurrent(np.full(60, 2.0)))


def test_a_whole_layer_is_a_fault_also_where_the_training_learns() -> None:
    finding = only("no-gradient", recurrent(np.linspace(2, 0.1, 60), silent=4))
    assert finding.severity is Severity.CRITICAL
    assert "rnn cannot learn" in finding.message


def test_a_small_layer_is_less_grave_where_the_training_learns() -> None:
    for loss, expected in ((2.0, Severity.CRITICAL), (0.1, Severity.WARNING)):
        run = make_run(
            {"grad_norm": table([0.0, 1.0], 60)},
            subjects=[weight("spare", (4, 4)), weight("body", (64, 64))],
            scalars={"loss": np.linspace(2, loss, 60)},
        )
        assert only("no-gradient", run).severity is expected
