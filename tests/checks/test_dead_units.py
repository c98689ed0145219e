"""What `dead-units` finds, and what it leaves alone."""

import numpy as np
import pytest
from tests.checks.shapes import Severity, layer, make_run, net, only, quiet, said, table, weight

from gradwatch.run import Run

CHAIN = net("a", "relu", "b", "relu2", "out", kinds=["Linear", "ReLU", "Linear", "ReLU", "Linear"])


def units(dead: float, zeros: float, steps: int = 80, batchnorm: bool = False) -> Run:
    """A layer of eight units in front of a ReLU."""
    chain = CHAIN
    if batchnorm:
        chain = net("a", "n", "relu", "b", "out", kinds=["Linear", "BatchNorm1d", "ReLU"])
    feeder = "n" if batchnorm else "a"
    return make_run(
        {
            "grad_dead_rows": table([dead, 0, 0], steps),
            "grad_zero_rows": table([dead, 1, 0], steps),
            "act_gate_zero_fraction": table([zeros, 0.5, np.nan], steps),
        },
        subjects=[weight("a"), weight("b"), weight("out"), layer(feeder), layer("b"), layer("out")],
        graph=chain,
    )


def test_dead_units_are_named_with_their_layer() -> None:
    finding = only("dead-units", units(6, 0.9))
    assert finding.layers == ("a",)
    assert finding.severity is Severity.WARNING
    assert "75 %" in finding.message


def test_dead_units_through_a_norm_layer() -> None:
    assert only("dead-units", units(6, 0.9, batchnorm=True)).layers == ("a",)


def test_dead_units_at_the_border() -> None:
    assert only("dead-units", units(4, 0.6)).severity is Severity.WARNING
    assert only("dead-units", units(3, 0.6)).severity is Severity.INFO
    assert not said("dead-units", units(1, 0.6))


def test_half_silent_per_sample_is_not_dead() -> None:
    assert not said("dead-units", units(0, 0.6))


def test_zero_gradients_behind_living_units_are_not_death() -> None:
    assert not said("dead-units", units(8, 0.3))


def test_dead_units_wait_for_twenty_steps() -> None:
    assert not said("dead-units", units(8, 0.9, steps=15))


@pytest.mark.parametrize(("end", "expected"), [(70.0, True), (45.0, False)])
def test_rows_of_an_embedding_never_used(end: float, expected: bool) -> None:
    untouched = np.r_[np.linspace(100, end, 20), np.full(60, end)]
    run = make_run(
        {"grad_dead_rows": table([0], 80), "grad_untouched_rows": table([untouched], 80)},
        subjects=[weight("e", (100, 4), module="Embedding")],
    )
    assert quiet("dead-units", run) is not expected


def test_rare_words_that_are_still_being_met_are_not_unused() -> None:
    run = make_run(
        {
            "grad_dead_rows": table([0], 80),
            "grad_untouched_rows": table([np.linspace(95, 60, 80)], 80),
        },
        subjects=[weight("e", (100, 4), module="Embedding")],
    )
    assert not said("dead-units", run)


def test_positions_beyond_the_sequences_are_not_dead() -> None:
    run = make_run(
        {name: table([60.0], 80) for name in ("grad_untouched_rows", "grad_zero_rows")}
        | {"grad_dead_rows": table([60.0], 80)},
        subjects=[weight("pos_embed", (100, 4), module="Embedding")],
    )
    assert not said("dead-units", run)
