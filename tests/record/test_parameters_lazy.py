"""Lazy modules get their parameters in the first forward pass, and are recorded from then on."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gradwatch.record import watch
from gradwatch.stats import Stat
from gradwatch.store import open_run


def chain() -> tuple[nn.Module, Tensor]:
    layers = (nn.LazyLinear(13), nn.Tanh(), nn.Linear(13, 6), nn.ReLU(), nn.LazyLinear(2))
    return nn.Sequential(*layers), torch.randn(8, 7)


def convolution() -> tuple[nn.Module, Tensor]:
    layers = (nn.LazyConv1d(5, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    return nn.Sequential(*layers), torch.randn(8, 3, 11)


@pytest.mark.parametrize("make", [chain, convolution])
@pytest.mark.parametrize("given", ["before", "later", "never"])
def test_lazy_modules_are_recorded_from_the_step_at_which_they_exist(
    tmp_path: Path, make: object, given: str
) -> None:
    torch.manual_seed(3)
    model, x = make()  # type: ignore[operator]
    optimizer = torch.optim.Adam(model.parameters(), 0.01) if given == "before" else None
    watcher = watch(model, *([optimizer] if optimizer else []), run=tmp_path / "run", every=1)
    truth = []
    for step in range(6):
        loss = model(x + 0.01 * step).square().mean()
        if optimizer is None:
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss.backward()
        truth.append({n: p.grad.double().norm().item() for n, p in model.named_parameters()})
        if given == "never":
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
            watcher.step()
        else:
            optimizer.step()
    assert watcher.recording
    watcher.close()
    run = open_run(tmp_path / "run")
    assert list(run.names) == [name for name, _ in model.named_parameters()]
    shapes = {subject.name: subject.shape for subject in run.subjects}
    assert all(shapes[name] == tuple(p.shape) for name, p in model.named_parameters())
    norms = run.series[Stat.GRAD_NORM]
    for step, expected in enumerate(truth):
        for column, name in enumerate(run.names):
            assert norms[step, column] == pytest.approx(expected[name], rel=1e-5)
