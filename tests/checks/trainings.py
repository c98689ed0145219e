"""Little trainings through `watch`, for checks of what a loop does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.diagnosis import diagnose
from gradwatch.finding import Finding, Severity
from gradwatch.live import watch
from gradwatch.record import Watcher
from gradwatch.run import Run
from gradwatch.store import open_run

STEPS = 60


def mlp(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    middle = [nn.LayerNorm(12)] if norm else []
    return nn.Sequential(nn.Linear(6, 12), *middle, nn.Tanh(), nn.Linear(12, 3))


def loss_of(model: nn.Module, step: int) -> Tensor:
    """Three classes that a linear layer can tell apart."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 6, generator=generator)
    return F.cross_entropy(model(x), x[:, :3].argmax(dim=1))


def record(
    path: Path,
    model: nn.Module,
    *optimizers: Any,
    each: Callable[[Watcher, int], None],
    steps: int = STEPS,
    **options: Any,
) -> Run:
    """Call `each` so many times with a watcher, and read what was recorded."""
    torch.set_num_threads(1)  # for tensors this small a second thread is only waited for
    watcher = watch(model, *optimizers, run=path / "run", **options)
    assert isinstance(watcher, Watcher)
    with watcher:
        for step in range(steps):
            each(watcher, step)
        assert watcher.recording
    return open_run(path / "run")


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, **more: Callable[[int], object]
) -> Callable[[Watcher, int], None]:
    """The usual loop; `before_step` and `after_step` are called with the step's number."""

    def each(watcher: Watcher, step: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)
        more.get("before_step", int)(step)
        optimizer.step()
        more.get("after_step", int)(step)

    return each


def loud(run: Run) -> set[str]:
    """The names of everything above an information that a diagnosis says."""
    return {f.check for f in diagnose(run).everything() if f.severity > Severity.INFO}


def headline(run: Run) -> Finding:
    """The first finding."""
    return diagnose(run).findings[0]
