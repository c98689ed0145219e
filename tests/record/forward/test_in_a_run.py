"""The signals as they come out of a run folder, after a training under the watcher."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradwatch.record import watch
from gradwatch.run import EventKind, Run
from gradwatch.stats import Kind
from gradwatch.store import open_run

torch.set_num_threads(1)


class Reciprocal(nn.Module):
    """Not finite once the input has a zero."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 / x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.odd, self.last = Reciprocal(), nn.Linear(16, 4)
        self.zero_from: int | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x))) + 1
        if self.zero_from is not None and self.calls >= self.zero_from:
            h = h * 0
        self.calls += self.training
        return self.last(self.odd(h))


def trained(folder: Path, model: nn.Module, steps: int, *, scale: float = 1.0) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watcher = watch(model, optimizer, run=folder, budget=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(scale * torch.randn(8, 6)), torch.arange(8) % 4)
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss)
    watcher.close()
    return open_run(folder)


def test_a_healthy_training(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Net(), 40, scale=3.0)
    assert run.graph.edges == (("first", "norm"), ("norm", "odd"), ("odd", "last"))
    assert not run.graph.assumed
    assert run.layers == ("first", "norm", "odd", "last")
    assert run.info["loss_kind"] == "cross_entropy"
    assert run.info["chance"] == pytest.approx(math.log(4))
    assert run.info["loss_fed_with"] == "logits"
    assert not any(run.info["audit"].values())
    gates = run.column("act_gate_zero_fraction", "norm")
    assert np.isfinite(gates[:10]).all()
    assert gates[0] == pytest.approx(0.5, abs=0.2)
    assert np.isfinite(run.column("act_std", "first")[[0, 9, 16, 32]]).all()
    assert np.isnan(run.column("act_std", "first")[17])
    assert np.nansum(run.series["probe_nonfinite"]) == 0
    assert run.scalars["input_rms"][:40] == pytest.approx(np.full(40, 3.0), rel=0.5)
    assert (run.scalars["input_nonfinite"][:40] == 0).all()


def test_the_producer_of_the_first_nan_is_known_between_recorded_steps(tmp_path: Path) -> None:
    model = Net()
    model.zero_from = 21  # no step of the slower cadences
    run = trained(tmp_path / "run", model, 25)
    output, given = run.series["probe_nonfinite"], run.series["probe_input_nonfinite"]
    bad = output > 0
    assert int(run.steps[np.flatnonzero(bad.any(axis=1))[0]]) == 21
    row = int(np.flatnonzero(run.steps == 21)[0])
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    producers = [
        name
        for name, wrong, came in zip(names, output[row], given[row], strict=True)
        if wrong > 0 and came == 0
    ]
    assert producers == ["odd"]


def test_modes_of_norm_layers(tmp_path: Path) -> None:
    model = Net()
    model.norm.eval()
    run = trained(tmp_path / "run", model, 12)
    assert (run.column("probe_training", "norm")[:10] == 0).all()
    assert (run.column("probe_training", "first")[:10] == 1).all()


def test_a_compiled_model_says_what_is_missing(tmp_path: Path) -> None:
    torch._dynamo.reset()
    fast = torch.compile(Net(), backend="aot_eager")
    run = trained(tmp_path / "run", fast, 12)  # type: ignore[arg-type]
    assert any(
        event.kind is EventKind.NOT_RECORDED and "compiled" in event.text for event in run.events
    )
    assert "act_std" not in run.series
    assert run.info["loss_kind"] == "cross_entropy"
    assert [node.layer for node in run.graph.nodes] == ["first", "norm", "last"]
    assert all(node.opaque for node in run.graph.nodes)
