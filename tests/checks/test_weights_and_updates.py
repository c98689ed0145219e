"""Checks that read weights, updates and the optimizer's state."""

import numpy as np
import pytest
from tests.checks.shapes import Severity, make_run, only, quiet, said, skipped, table, weight

from gradwatch.run import Subject
from gradwatch.stats import Kind

NAMES = ["in.weight", "mid.weight", "out.weight"]
STUCK = np.full(60, 1.6)
FALLING = np.linspace(1.6, 0.05, 60)


# -- norms ---------------------------------------------------------------------------------------


def norms(*columns: object, steps: int = 40):  # type: ignore[no-untyped-def]
    return make_run({"weight_norm": table(columns, steps)}, names=NAMES)


def test_collapse_names_the_smallest_first() -> None:
    finding = only(
        "weight-collapse", norms(np.geomspace(8, 0.4, 40), np.geomspace(8, 0.1, 40), 8.0)
    )
    assert finding.layers == ("mid", "in")
    assert finding.severity is Severity.WARNING


def test_collapse_to_a_third_is_mentioned_and_to_two_thirds_is_not() -> None:
    assert only("weight-collapse", norms(np.linspace(9, 3, 40), 9, 9)).severity is Severity.INFO
    assert not said("weight-collapse", norms(np.linspace(9, 6, 40), 9, 9))


def test_explosion_names_the_largest_growth_first() -> None:
    finding = only("weight-explosion", norms(np.geomspace(2, 60, 40), np.geomspace(2, 200, 40), 2))
    assert finding.layers == ("mid", "in")


def test_explosion_of_fivefold_is_mentioned_and_of_twofold_is_not() -> None:
    assert only("weight-explosion", norms(np.geomspace(2, 10, 40), 2, 2)).severity is Severity.INFO
    assert not said("weight-explosion", norms(np.geomspace(2, 4, 40), 2, 2))


def test_weights_that_leave_a_tiny_start_do_not_explode() -> None:
    assert not said("weight-explosion", norms(np.geomspace(1e-4, 1e-1, 40), 2, 2))


def test_zero_starts_and_frozen_weights_are_not_judged() -> None:
    subjects = [weight("a"), weight("b", frozen=True)]
    run = make_run({"weight_norm": table([np.linspace(0, 50, 40), 1.0], 40)}, subjects=subjects)
    assert not said("weight-explosion", run)
    assert not said("weight-collapse", run)


# -- symmetry ------------------------------------------------------------------------------------


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


# -- updates -------------------------------------------------------------------------------------


def updates(*columns: object, loss: np.ndarray = STUCK):  # type: ignore[no-untyped-def]
    return make_run({"update_ratio": table(columns, 60)}, names=NAMES, scalars={"loss": loss})


def test_updates_too_small_while_the_loss_stands() -> None:
    finding = only("update-ratio-too-small", updates(1e-8, 2e-8, 1e-7))
    assert finding.severity is Severity.WARNING
    assert "2.0e-08" in finding.message


def test_updates_too_small_are_fine_where_the_loss_fell() -> None:
    assert not said("update-ratio-too-small", updates(1e-8, 2e-8, 1e-7, loss=FALLING))


def test_updates_at_the_lower_border() -> None:
    assert only("update-ratio-too-small", updates(5e-6, 5e-6, 5e-6)).severity is Severity.INFO
    assert not said("update-ratio-too-small", updates(2e-5, 2e-5, 2e-5))


def test_a_rate_that_decays_to_zero_at_the_end_is_not_too_small() -> None:
    decay = 1e-3 * 0.5 * (1 + np.cos(np.pi * np.arange(60) / 59))
    assert not said("update-ratio-too-small", updates(decay, decay, decay))


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


def test_uneven_speeds_are_an_information() -> None:
    finding = only("uneven-learning-speeds", updates(1e-7, 1e-3, 1e-3, loss=FALLING))
    assert finding.severity is Severity.INFO
    assert finding.layers == ("in", "mid")
    assert not said("uneven-learning-speeds", updates(1e-5, 1e-3, 1e-3))


# -- rounding ------------------------------------------------------------------------------------


def rounding(lost: float, loss: np.ndarray, dtype: str = "bfloat16"):  # type: ignore[no-untyped-def]
    subjects = [weight("a", dtype=dtype), weight("b", dtype=dtype)]
    return make_run(
        {"update_lost_fraction": table([lost, lost], 60)}, subjects=subjects, scalars={"loss": loss}
    )


def test_updates_lost_while_the_loss_stands_still() -> None:
    assert only("update-lost-to-rounding", rounding(0.9, STUCK)).severity is Severity.WARNING


def test_updates_lost_while_the_loss_falls_are_only_mentioned() -> None:
    assert quiet("update-lost-to-rounding", rounding(0.9, FALLING))


def test_rounding_at_the_border_and_in_float32() -> None:
    assert not said("update-lost-to-rounding", rounding(0.45, STUCK))
    assert not said("update-lost-to-rounding", rounding(0.9, STUCK, "float32"))


# -- not updated ---------------------------------------------------------------------------------


def hashes(*columns: object, subjects: list[Subject], grad: object = 1.0, **options: object):  # type: ignore[no-untyped-def]
    values = {
        "weight_hash": table(columns, 20),
        "grad_norm": table([grad] * len(columns), 20),
    }
    return make_run(values, subjects=subjects, **options)  # type: ignore[arg-type]


def test_not_updated_because_no_optimizer_has_it() -> None:
    run = hashes(7, np.arange(20), subjects=[weight("a", group=None), weight("b")])
    finding = only("not-updated", run)
    assert finding.layers == ("a",)
    assert "no optimizer" in finding.message


def test_not_updated_although_it_has_gradients() -> None:
    finding = only("not-updated", hashes(7, np.arange(20), subjects=[weight("a"), weight("b")]))
    assert finding.severity is Severity.CRITICAL
    assert "bit-identical" in finding.message


def test_not_updated_because_the_rate_is_zero() -> None:
    groups = [Subject(Kind.GROUP, "0"), Subject(Kind.GROUP, "1")]
    run = make_run(
        {
            "weight_hash": table([7, np.arange(20)], 20),
            "grad_norm": table([1.0, 1.0], 20),
            "lr": table([1e-3, 0.0], 20),
        },
        subjects=[weight("a", group=1), weight("b"), *groups],
    )
    assert "learning rate is 0" in only("not-updated", run).message


def test_frozen_but_handed_over_is_a_fault_and_frozen_alone_is_not() -> None:
    handed = hashes(7, np.arange(20), subjects=[weight("a", frozen=True), weight("b")])
    assert "handed" in only("not-updated", handed).message
    rest = hashes(7, np.arange(20), subjects=[weight("a", frozen=True, group=None), weight("b")])
    assert not said("not-updated", rest)


def test_not_updated_for_want_of_a_gradient_is_only_mentioned() -> None:
    run = hashes(7, 9, subjects=[weight("a"), weight("b")], grad=0.0)
    assert quiet("not-updated", run)


def test_everything_that_moves_is_updated() -> None:
    assert not said("not-updated", hashes(np.arange(20), subjects=[weight("a")]))


def test_without_weights_or_updates_not_updated_says_so() -> None:
    assert skipped("not-updated", make_run({"grad_norm": table([1.0], 20)}, names=NAMES[:1]))


# -- Adam ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "quietly"), [(STUCK, False), (FALLING, True)])
def test_epsilon_above_the_gradients(loss: np.ndarray, quietly: bool) -> None:
    run = make_run(
        {"optim_eps_fraction": table([0.99, 0.9, 0.8], 60)}, names=NAMES, scalars={"loss": loss}
    )
    assert said("eps-dominated-adam", run)
    assert quiet("eps-dominated-adam", run) is quietly


def test_epsilon_below_most_gradients() -> None:
    run = make_run(
        {"optim_eps_fraction": table([0.9, 0.3, 0.3], 60)}, names=NAMES, scalars={"loss": STUCK}
    )
    assert not said("eps-dominated-adam", run)


def second_moment(height: float, after: float):  # type: ignore[no-untyped-def]
    ratio, loss = np.ones(100), np.full(100, 0.5)
    ratio[60] = height
    loss[0], loss[63] = 2.0, after
    return make_run(
        {"optim_ratio_rms": table([ratio, 1.0], 100)}, names=NAMES[:2], scalars={"loss": loss}
    )


def test_a_stale_second_moment_before_a_rise_of_the_loss() -> None:
    finding = only("stale-second-moment", second_moment(6.0, 9.0))
    assert finding.severity is Severity.WARNING
    assert (finding.layers, finding.first_step) == (("in",), 60)


def test_a_stale_second_moment_without_a_rise_is_only_mentioned() -> None:
    assert quiet("stale-second-moment", second_moment(6.0, 0.5))
    assert not said("stale-second-moment", second_moment(2.0, 9.0))
