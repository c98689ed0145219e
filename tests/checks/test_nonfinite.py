"""What `nonfinite` finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.checks.shapes import layer, make_run, net, quiet, said, weight
from tests.checks.training import trained
from torch import Tensor, nn

from gradwatch.finding import Finding
from gradwatch.graph import Graph, Node
from gradwatch.run import Run


def origin(run: Run) -> Finding:
    """Where it began; what it reached is said in a second finding."""
    first, *reached = said("nonfinite", run)
    assert all(set(item.layers).isdisjoint(first.layers) for item in reached)
    return first


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
    finding = origin(run)
    assert (finding.layers, finding.first_step) == (("b",), 7)
    assert "forward" in finding.message


def test_weights_that_were_bad_before_anything_was_trained() -> None:
    finding = origin(broken(weight_nan=[(0, 1)], probe_nonfinite=[(0, 1), (0, 2)]))
    assert (finding.layers, finding.first_step) == (("b",), 0)
    assert finding.message == "NaN or Inf was in the weights before step 0 in b"
    assert "before anything was trained" in finding.cause


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
    assert origin(run).layers == ("net.attn", "net.attn.out")


@pytest.mark.parametrize(
    ("sizes", "named"),
    [((2.0, 200.0), ("spread", "decoder")), ((2.0, 20.0), ("decoder",)), ((99, 99), ("decoder",))],
)
def test_an_exponential_of_a_large_output(
    sizes: tuple[float, float], named: tuple[str, ...]
) -> None:
    """Between two layers: the one to open is the one whose output is too large."""
    names = ("mean", "spread", "decoder")
    series = {name: np.zeros((20, 3)) for name in ("probe_nonfinite", "probe_input_nonfinite")}
    for table_ in series.values():
        table_[7:, 2] = 1
    series["act_abs_max"] = np.tile([*sizes, np.nan], (20, 1))
    graph = Graph(tuple(Node(name) for name in names), (("mean", "decoder"), ("spread", "decoder")))
    run = make_run(
        series,
        subjects=[layer(name) for name in names],
        scalars={"loss_nonfinite": (np.arange(20) >= 7).astype(float)},
        graph=graph,
    )
    assert origin(run).layers == named


def test_nan_in_the_input() -> None:
    finding = origin(broken(input_nonfinite=7, probe_nonfinite=EVERYWHERE, loss_nonfinite=7))
    assert "input" in finding.message
    assert finding.layers == ("a",)


def test_nan_in_the_loss() -> None:
    finding = origin(broken(loss_nonfinite=7, grad_nan=EVERYWHERE))
    assert "loss" in finding.message
    assert finding.layers == ("c",)


def test_nan_in_the_backward_pass_began_in_the_last_layer_that_has_it() -> None:
    finding = origin(
        broken(grad_nan=[(7, 0), (7, 1)], weight_nan=[(8, 0), (8, 1)], loss_nonfinite=8),
    )
    assert "backward" in finding.message
    assert (finding.layers, finding.first_step) == (("b",), 7)


def test_nan_in_the_update() -> None:
    finding = origin(
        broken(weight_nan=[(8, 1)], loss_nonfinite=8, probe_nonfinite=[(8, 1), (8, 2)])
    )
    assert "update" in finding.message
    assert (finding.layers, finding.first_step) == (("b",), 7)


def test_the_evidence_counts_infinities_too() -> None:
    seen = [
        (item.stat, item.subject, item.measured)
        for run in (
            broken(grad_inf=[(7, 1)]),
            broken(grad_nan=[(7, 1)]),
            broken(weight_inf=[(8, 1)], loss_nonfinite=8),
        )
        for item in origin(run).evidence
    ]
    counters = ("grad_inf", "grad_nan", "weight_inf")
    assert seen == [(counter, "b.weight", 1.0) for counter in counters]


def test_infinite_gradients_of_skipped_steps_are_by_design() -> None:
    run = broken(grad_inf=[(0, 0)])
    scalars = {**run.scalars, "skipped": np.ones(20)}
    again = make_run({"grad_inf": run.series["grad_inf"]}, subjects=run.subjects, scalars=scalars)  # type: ignore[index]
    assert not said("nonfinite", again)


def test_masks_are_mentioned_and_late_infinities_in_outputs_warned_of() -> None:
    assert quiet("nonfinite", broken(probe_nonfinite=[(0, 1)]))
    assert not quiet("nonfinite", broken(probe_nonfinite=[(12, 1)]))


def test_masks_are_masks_where_few_steps_were_looked_at() -> None:
    run = broken(probe_nonfinite=[(0, 1)])
    tables = {str(stat): run.series[stat].copy() for stat in run.series}
    for stat in ("probe_nonfinite", "probe_input_nonfinite"):
        tables[stat][np.arange(20) % 5 > 0] = np.nan
    seldom = make_run(tables, subjects=run.subjects, scalars=run.scalars)
    assert quiet("nonfinite", seldom)


def test_an_assumed_graph_is_enough() -> None:
    run = make_run(
        {"grad_nan": np.r_[np.zeros((5, 2)), np.ones((5, 2))]},
        names=["a.weight", "b.weight"],
        graph=Graph((Node("a"), Node("b")), (("a", "b"),), assumed=True),
    )
    assert origin(run).layers == ("b",)


def test_every_layer_that_nan_reached_is_named() -> None:
    run = broken(
        probe_nonfinite=[(7, 1), (7, 2)], probe_input_nonfinite=[(7, 2)], grad_nan=[(7, 0)]
    )
    first, second = said("nonfinite", run)
    assert first.layers == ("b",)
    assert second.layers == ("a", "c")  # by its gradient, and by its output
    assert second.tensors == ("a.weight",)


def test_every_layer_with_such_outputs_is_named() -> None:
    run = broken(probe_nonfinite=[(12, 1), (13, 2)], probe_input_nonfinite=[(13, 2)])
    (finding,) = said("nonfinite", run)
    assert finding.layers == ("b", "c")
    assert finding.first_step == 12


class TakesWhatever(nn.Module):
    """A layer that is fed with a tensor, or with an object that holds one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 1))

    def forward(self, batch: object) -> Tensor:
        return (batch if isinstance(batch, Tensor) else batch.x) @ self.weight  # type: ignore[attr-defined]


def fed(folder: Path, wrapped: Callable[[Tensor], object]) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(TakesWhatever(), nn.Linear(1, 1))

    def loss_of(step: int) -> Tensor:
        data = torch.rand(8, 5)
        data[0, 0] = float("nan") if step == 20 else 1.0
        return model(wrapped(data)).square().mean()

    return trained(folder, model, loss_of, steps=25)


def test_nan_in_a_sparse_input_began_in_the_input(tmp_path: Path) -> None:
    finding = origin(fed(tmp_path, lambda data: data.to_sparse()))
    assert "in the input" in finding.message
    assert finding.first_step == 20
    assert finding.cause == "The batch itself held NaN or Inf."


def test_an_input_that_could_not_be_read_is_not_called_finite(tmp_path: Path) -> None:
    finding = origin(fed(tmp_path, lambda data: SimpleNamespace(x=data)))
    assert (finding.layers, finding.first_step) == (("0",), 20)
    assert "could not be read" in finding.cause
    assert "finite input" not in finding.cause
    assert "batch" in finding.advice[0]


def test_a_dense_input_that_was_read_was_finite(tmp_path: Path) -> None:
    finding = origin(
        fed(tmp_path, lambda data: torch.full_like(data, 3e38) if data.isnan().any() else data)
    )
    assert finding.layers == ("0",)
    assert finding.cause == "A finite input became non-finite inside this layer."
