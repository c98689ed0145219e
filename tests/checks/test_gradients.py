"""Checks that read gradients."""

import numpy as np
from tests.checks.shapes import Severity, make_run, net, only, quiet, said, skipped, table, weight

from gradwatch.stats import State

NAMES = ["in.weight", "mid.weight", "out.weight"]


def gradients(*columns: object, steps: int = 60, **options: object):  # type: ignore[no-untyped-def]
    return make_run({"grad_norm": table(columns, steps)}, names=NAMES, **options)  # type: ignore[arg-type]


# -- vanishing ---------------------------------------------------------------------------------


def test_vanishing_names_the_starved_layer_first() -> None:
    finding = only("vanishing-gradient", gradients(1e-9, 1e-6, 1.0))
    assert finding.layers == ("in", "mid")
    assert finding.severity is Severity.WARNING
    assert "in" in finding.message
    assert "1.0e-09" in finding.message


def test_vanishing_is_quiet_where_layers_differ_a_little() -> None:
    assert not said("vanishing-gradient", gradients(0.05, 0.3, 1.0))


def test_vanishing_at_the_border_is_only_mentioned() -> None:
    assert only("vanishing-gradient", gradients(2e-4, 0.3, 1.0)).severity is Severity.INFO
    assert only("vanishing-gradient", gradients(9e-5, 0.3, 1.0)).severity is Severity.WARNING


def test_vanishing_leaves_embeddings_frozen_and_zero_gradients_out() -> None:
    subjects = [
        weight("emb", module="Embedding"),
        weight("rest", frozen=True),
        weight("nil"),
        weight("out"),
    ]
    run = make_run({"grad_norm": table([1e-9, 1e-9, 0.0, 1.0], 40)}, subjects=subjects)
    assert not said("vanishing-gradient", run)


def test_vanishing_judges_only_the_time_before_convergence() -> None:
    fading = np.where(np.arange(200) < 30, 0.3, 1e-7)
    loss = np.where(np.arange(200) < 30, 1.0, 0.001)
    run = make_run(
        {"grad_norm": table([fading, 1.0], 200)}, names=NAMES[:2], scalars={"loss": loss}
    )
    assert not said("vanishing-gradient", run)


def test_vanishing_in_a_network_that_learnt_is_only_mentioned() -> None:
    columns, loss = table([1e-9, 1.0], 60), np.geomspace(2.0, 0.05, 60)
    learnt = make_run({"grad_norm": columns}, names=NAMES[:2], scalars={"loss": loss})
    assert quiet("vanishing-gradient", learnt)
    stuck = make_run({"grad_norm": columns}, names=NAMES[:2], scalars={"loss": np.full(60, 2.0)})
    assert not quiet("vanishing-gradient", stuck)


# -- exploding ---------------------------------------------------------------------------------


def test_exploding_on_three_steps() -> None:
    column = np.ones(60)
    column[[20, 30, 40]] = 5e3
    finding = only("exploding-gradient", gradients(1.0, column, 1.0))
    assert finding.layers[0] == "mid"
    assert finding.first_step == 20
    assert finding.severity is Severity.WARNING


def test_exploding_once_beyond_a_million_is_critical() -> None:
    column = np.ones(60)
    column[50] = 2e6
    assert only("exploding-gradient", gradients(1.0, column, 1.0)).severity is Severity.CRITICAL


def test_exploding_grows_a_thousandfold() -> None:
    column = np.geomspace(0.01, 500, 60)
    assert not quiet("exploding-gradient", gradients(column, 1.0, 1.0))


def test_exploding_is_quiet_below_the_border() -> None:
    column = np.ones(60)
    column[[20, 30]] = 5e3
    assert not said("exploding-gradient", gradients(1.0, column, 1.0))
    assert quiet("exploding-gradient", gradients(1.0, np.full(60, 300.0), 1.0))


def test_exploding_ignores_steps_the_scaler_skipped() -> None:
    column = np.ones(60)
    column[:5] = 1e9
    skipped_steps = (np.arange(60) < 5).astype(float)
    assert not said(
        "exploding-gradient", gradients(column, 1, 1, scalars={"skipped": skipped_steps})
    )


def test_a_summed_loss_is_only_an_information() -> None:
    loss = np.linspace(4000, 400, 60)
    run = make_run(
        {"grad_norm": table([2e3, 1.5e3], 60), "update_ratio": table([1e-3, 1e-3], 60)},
        names=NAMES[:2],
        scalars={"loss": loss},
    )
    assert quiet("exploding-gradient", run)


# -- spikes ------------------------------------------------------------------------------------


def noise(steps: int, spread: float, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, steps))


def test_spikes_names_the_layer_that_jumped_most() -> None:
    first, rest = noise(100, 0.2), noise(100, 0.2, 1)
    first[70] *= 200
    rest[70] *= 40
    finding = only("gradient-spikes", gradients(first, rest, rest, steps=100))
    assert (finding.first_step, finding.layers[0]) == (70, "in")


def test_spikes_of_noisy_small_batches_are_only_mentioned() -> None:
    wild = noise(400, 1.6)
    assert quiet("gradient-spikes", gradients(wild, wild, wild, steps=400))


def test_a_crowd_of_spikes_is_an_oscillation() -> None:
    column = noise(120, 0.1)
    column[60:72:2] *= 60
    assert quiet("gradient-spikes", gradients(column, column, column, steps=120))


def test_spikes_that_stay_are_no_spikes() -> None:
    column = noise(100, 0.1)
    column[60:] *= 100
    assert not said("gradient-spikes", gradients(column, column, column, steps=100))


def test_spikes_under_twenty_times_are_not_named() -> None:
    column = noise(100, 0.05)
    column[60] = 15.0
    assert not said("gradient-spikes", gradients(column, column, column, steps=100))


def test_spikes_need_every_step() -> None:
    values = table([1.0, 1.0, 1.0], 40)
    run = make_run({"grad_norm": values}, names=NAMES, steps=list(range(0, 320, 8)))
    (reason,) = skipped("gradient-spikes", run)
    assert "every 8 steps" in reason.reason


# -- none at all -------------------------------------------------------------------------------


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


# -- tails -------------------------------------------------------------------------------------


def test_heavy_tails_are_an_information_and_embeddings_are_exempt() -> None:
    subjects = [weight("a"), weight("e", module="Embedding"), weight("c")]
    run = make_run({"grad_kurtosis": table([5e3, 9e3, 20.0], 40)}, subjects=subjects)
    finding = only("heavy-tailed-gradients", run)
    assert finding.layers == ("a",)
    assert finding.severity is Severity.INFO
    calm = make_run({"grad_kurtosis": table([900.0, 0.0, 1.0], 40)}, subjects=subjects)
    assert not said("heavy-tailed-gradients", calm)
