"""What `bad-init` finds, and what it leaves alone."""

import math

import numpy as np
from tests.checks.shapes import Severity, flat, layer, make_run, net, only, said, table, weight

from gradwatch.run import Run


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
    run = flat(np.r_[0.9, np.zeros(39)])
    assert only("bad-init", run).layers == ("a",)
