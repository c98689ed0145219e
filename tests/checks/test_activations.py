"""Checks that read activations: dead units, saturation, the start of a run."""

import math

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


# -- saturation ------------------------------------------------------------------------------------


def flat(first: float, last: float = 0.0, entropy: float = 0.8) -> Run:
    return make_run(
        {
            "act_flat_fraction": table([first, last], 40),
            "act_entropy": table([entropy, np.nan], 40),
        },
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
    )


def test_saturation_of_a_hidden_layer() -> None:
    finding = only("saturation", flat(0.8))
    assert (finding.layers, finding.severity) == (("a",), Severity.WARNING)


def test_saturation_at_the_border() -> None:
    assert only("saturation", flat(0.4)).severity is Severity.INFO
    assert not said("saturation", flat(0.2))


def test_an_output_near_one_because_the_data_are_is_exempt() -> None:
    assert not said("saturation", flat(0.1, last=0.99))


def test_collapsed_attention() -> None:
    finding = only("saturation", flat(0.0, entropy=0.1))
    assert finding.layers == ("a",)
    assert "entropy" in finding.message
    assert quiet("saturation", flat(0.0, entropy=0.3))
    assert not said("saturation", flat(0.0, entropy=0.5))


@pytest.mark.parametrize(
    ("end", "start", "expected"), [(0.05, 0.8, True), (0.05, 0.1, False), (1.5, 0.8, False)]
)
def test_attention_that_learnt_to_be_sure_is_only_mentioned(
    end: float, start: float, expected: bool
) -> None:
    run = make_run(
        {
            "act_flat_fraction": table([0.0, 0.0], 40),
            "act_entropy": table([np.r_[start, np.full(39, 0.05)], np.nan], 40),
        },
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
        scalars={"loss": np.geomspace(2.0, end, 40)},
    )
    assert quiet("saturation", run) is expected


# -- the start -------------------------------------------------------------------------------------


def start(first_loss: float = 1.7, spreads: tuple[float, float, float] = (1.0, 0.8, 0.5)) -> Run:
    return make_run(
        {"act_std": table(spreads, 20)},
        subjects=[weight("a"), weight("b"), weight("c"), layer("a"), layer("b"), layer("c")],
        graph=net("a", "b", "c"),
        scalars={"loss": np.linspace(first_loss, 1.0, 20)},
        info={"chance": math.log(5)},
    )


def test_a_usual_start_is_quiet() -> None:
    assert not said("bad-init", start())


def test_a_first_loss_far_above_chance() -> None:
    assert only("bad-init", start(40.0)).severity is Severity.WARNING
    assert only("bad-init", start(8.0)).severity is Severity.INFO
    assert not said("bad-init", start(5.0))


def test_outputs_that_grow_from_layer_to_layer() -> None:
    finding = only("bad-init", start(spreads=(1.0, 30.0, 5e4)))
    assert finding.severity is Severity.WARNING
    assert "c" in finding.layers
    assert only("bad-init", start(spreads=(1.0, 10.0, 100.0))).severity is Severity.INFO


def test_branches_that_start_at_zero_are_left_out() -> None:
    assert not said("bad-init", start(spreads=(1.0, 0.0, 0.5)))


def test_a_squared_error_whose_outputs_dwarf_the_targets() -> None:
    run = make_run(
        {"act_std": table([1.0, 10.0], 20), "act_mean": table([0.0, 0.0], 20)},
        subjects=[weight("a"), weight("out"), layer("a"), layer("out")],
        graph=net("a", "out"),
        scalars={"loss": np.linspace(101.0, 1.0, 20)},
        info={"loss_kind": "mse"},
    )
    assert only("bad-init", run).severity is Severity.WARNING


def test_constant_weights_still_symmetric_after_ten_steps() -> None:
    run = make_run(
        {
            "weight_std": table([0.0, 0.3], 20),
            "weight_norm": table([1.0, 1.0], 20),
            "weight_row_spread": table([0.0, 0.9], 20),
        },
        names=["a.weight", "b.weight"],
    )
    assert only("bad-init", run).layers == ("a",)


def test_units_that_start_flat() -> None:
    run = flat(np.r_[0.9, np.zeros(39)])  # type: ignore[arg-type]
    assert only("bad-init", run).layers == ("a",)
