"""A forward that overflows under a gradient scaler: no optimizer steps, and still it is seen."""

from pathlib import Path

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.stats import Stat

FIRST = 6


class Breaks(nn.Module):
    """Gives Inf from step FIRST on, as float16 does when activations outgrow it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * float("inf") if self.calls > FIRST else x


@pytest.mark.parametrize("given", [True, False])
def test_the_layer_and_the_step_are_named_although_every_step_is_skipped(
    given: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Breaks(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    x, y = torch.randn(32, 8), torch.randint(0, 2, (32,))
    watched = {"scaler": scaler} if given else {}
    with gradwatch.watch(model, optimizer, run=tmp_path / "run", **watched) as watcher:
        for _ in range(FIRST + 8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            watcher.log(loss=loss)
    run = gradwatch.open_run(tmp_path / "run")
    hits = run.series[Stat.PROBE_NONFINITE]
    layers = [s.name for s in run.subjects if s.kind == "layer"]
    rows = {layer: hits[:, column] for column, layer in enumerate(layers)}
    assert not (rows["2"][run.steps < FIRST] > 0).any()
    assert rows["2"][run.steps == FIRST][0] == 32 * 16
    found = gradwatch.diagnose(run)
    (first, *_) = found.findings
    assert first.check == "nonfinite"
    assert first.first_step == FIRST
    assert first.layers[0] == "2"
