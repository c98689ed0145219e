"""Checks of the training loop, and of non-finite values."""

import numpy as np
import pytest
from tests.checks.shapes import Severity, layer, make_run, net, only, quiet, said, table, weight

from gradwatch.graph import Graph, Node
from gradwatch.run import Run


def test_stale_gradients_on_every_step_but_the_first() -> None:
    finding = only("stale-gradients", make_run({}, scalars={"stale": [0, *[1] * 30]}))
    assert finding.severity is Severity.CRITICAL
    assert finding.layers == ()


def test_stale_gradients_at_the_border() -> None:
    mostly = [0, *[1] * 27, *[0] * 3]
    assert said("stale-gradients", make_run({}, scalars={"stale": mostly}))
    assert not said("stale-gradients", make_run({}, scalars={"stale": [0, *[1, 1, 1, 0] * 8]}))
    assert not said("stale-gradients", make_run({}, scalars={"stale": [0] * 30}))


def scale(values: object) -> Run:
    return make_run({}, subjects=[weight("a"), weight("b")], scalars={"input_rms": values})  # type: ignore[dict-item]


def test_inputs_far_from_one() -> None:
    assert only("input-scale", scale([300.0] * 10)).layers == ("a",)
    assert not said("input-scale", scale([90.0] * 10))
    assert not said("input-scale", scale([1.0] * 10))


def test_one_odd_batch_is_mentioned() -> None:
    finding = only("input-scale", scale([1.0] * 9 + [50.0]))
    assert (finding.severity, finding.first_step) == (Severity.INFO, 9)


def modes(share: float, frozen: bool = False) -> Run:
    training = (np.arange(40) >= 40 * share).astype(float)
    subjects = [weight("bn", (8,), module="BatchNorm1d", frozen=frozen), layer("bn")]
    return make_run({"probe_training": table([training], 40)}, subjects=subjects)


def test_batch_norm_in_evaluation_mode() -> None:
    assert only("norm-misuse", modes(1.0)).layers == ("bn",)
    assert said("norm-misuse", modes(0.9))
    assert not said("norm-misuse", modes(0.8))


def test_batch_norm_frozen_on_purpose() -> None:
    assert not said("norm-misuse", modes(1.0, frozen=True))


@pytest.mark.parametrize(
    ("fed", "expected"), [("probabilities", True), ("logits", False), (None, False)]
)
def test_probabilities_into_cross_entropy(fed: str | None, expected: bool) -> None:
    chain = net("a", "out", "soft", kinds=["Linear", "Linear", "Softmax"])
    run = make_run(
        {}, subjects=[weight("a"), weight("out")], graph=chain, scalars={"loss": [1.5] * 5},
        info={"loss_fed_with": fed} if fed else {},
    )  # fmt: skip
    found = said("output-misuse", run)
    assert bool(found) is expected
    assert not expected or found[0].layers == ("soft", "out")


def clipped(factors: list[float], ratio: float) -> Run:
    values = {"update_ratio": table([ratio], len(factors))}
    return make_run(values, subjects=[weight("a")], scalars={"clip_factor": factors})


def test_clipping_on_every_step() -> None:
    finding = only("clipping-every-step", clipped([1e-4] * 60, 1e-7))
    assert finding.severity is Severity.WARNING
    assert quiet("clipping-every-step", clipped([1e-4] * 60, 1e-3)), "Adam does not mind"
    assert quiet("clipping-every-step", clipped([0.3] * 60, 1e-7))
    assert not said("clipping-every-step", clipped([0.3, 1.0] * 30, 1e-7))


def test_a_scaler_that_keeps_overflowing() -> None:
    assert said("loss-scale-overflow", make_run({}, scalars={"skipped": [0, 0, 1, 0] * 20}))
    searching = [1] * 15 + [0] * 65
    assert not said("loss-scale-overflow", make_run({}, scalars={"skipped": searching}))
    assert not said(
        "loss-scale-overflow", make_run({}, scalars={"skipped": [0] * 30 + [1] + [0] * 49})
    )


# -- NaN and Inf -------------------------------------------------------------------------------


def broken(**changes: object) -> Run:
    """Three layers, 20 steps, finite but for the given cells: `stat=(step, column)` or a scalar."""
    series = {
        name: np.zeros((20, 3))
        for name in (
            "grad_nan",
            "grad_inf",
            "weight_nan",
            "weight_inf",
            "probe_nonfinite",
            "probe_input_nonfinite",
        )
    }
    scalars = {name: np.zeros(20) for name in ("loss_nonfinite", "input_nonfinite")}
    for name, cells in changes.items():
        if name in series:
            for step, column in cells:  # type: ignore[attr-defined]
                series[name][step:, column] = 1
        else:
            scalars[name][cells:] = 1  # type: ignore[misc]
    subjects = [weight("a"), weight("b"), weight("c"), layer("a"), layer("b"), layer("c")]
    return make_run(series, subjects=subjects, scalars=scalars, graph=net("a", "b", "c"))


EVERYWHERE = [(7, 0), (7, 1), (7, 2)]


def test_finite_runs_are_quiet() -> None:
    assert not said("nonfinite", broken())


def test_nan_born_in_the_forward_pass() -> None:
    run = broken(
        probe_nonfinite=[(7, 1), (7, 2)],
        probe_input_nonfinite=[(7, 2)],
        loss_nonfinite=7,
        grad_nan=EVERYWHERE,
    )
    finding = only("nonfinite", run)
    assert (finding.layers, finding.first_step) == (("b",), 7)
    assert "forward" in finding.message


def test_nan_made_between_two_layers_names_what_holds_both() -> None:
    names = ("net.attn.value", "net.attn.out", "net.head")
    series = {name: np.zeros((20, 3)) for name in ("probe_nonfinite", "probe_input_nonfinite")}
    for table_ in series.values():
        table_[7:, 1:] = 1
    run = make_run(
        series,
        subjects=[layer(name) for name in names],
        scalars={"loss_nonfinite": (np.arange(20) >= 7).astype(float)},
        graph=net(*names),
    )
    assert only("nonfinite", run).layers == ("net.attn", "net.attn.out")


def test_nan_in_the_input() -> None:
    finding = only(
        "nonfinite", broken(input_nonfinite=7, probe_nonfinite=EVERYWHERE, loss_nonfinite=7)
    )
    assert "input" in finding.message
    assert finding.layers == ("a",)


def test_nan_in_the_loss() -> None:
    finding = only("nonfinite", broken(loss_nonfinite=7, grad_nan=EVERYWHERE))
    assert "loss" in finding.message
    assert finding.layers == ("c",)


def test_nan_in_the_backward_pass_began_in_the_last_layer_that_has_it() -> None:
    finding = only(
        "nonfinite",
        broken(grad_nan=[(7, 0), (7, 1)], weight_nan=[(8, 0), (8, 1)], loss_nonfinite=8),
    )
    assert "backward" in finding.message
    assert (finding.layers, finding.first_step) == (("b",), 7)


def test_nan_in_the_update() -> None:
    finding = only(
        "nonfinite", broken(weight_nan=[(8, 1)], loss_nonfinite=8, probe_nonfinite=[(8, 1), (8, 2)])
    )
    assert "update" in finding.message
    assert (finding.layers, finding.first_step) == (("b",), 7)


def test_infinite_gradients_of_skipped_steps_are_by_design() -> None:
    run = broken(grad_inf=[(0, 0)])
    scalars = {**run.scalars, "skipped": np.ones(20)}
    again = make_run({"grad_inf": run.series["grad_inf"]}, subjects=run.subjects, scalars=scalars)  # type: ignore[index]
    assert not said("nonfinite", again)


def test_masks_are_mentioned_and_late_infinities_in_outputs_warned_of() -> None:
    assert quiet("nonfinite", broken(probe_nonfinite=[(0, 1)]))
    assert not quiet("nonfinite", broken(probe_nonfinite=[(12, 1)]))


def test_an_assumed_graph_is_enough() -> None:
    run = make_run(
        {"grad_nan": np.r_[np.zeros((5, 2)), np.ones((5, 2))]},
        names=["a.weight", "b.weight"],
        graph=Graph((Node("a"), Node("b")), (("a", "b"),), assumed=True),
    )
    assert only("nonfinite", run).layers == ("b",)
