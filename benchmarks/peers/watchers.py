"""Watchers of a training step, each used as its documentation says, at every step."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import count_by
from gradwatch.live import watch

CYCLE = 16
"""Steps after which our default cadence repeats."""


class Watching:
    """Watches nothing: the bare step. Subclasses attach themselves to the model."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder

    def before(self, step: int) -> None:
        """Before the forward pass."""

    def after(self, step: int, loss: Tensor) -> None:
        """After the update."""

    def close(self) -> None:
        """Let go."""


class Ours(Watching):
    """`watch`, live checks included; a budget of 1 never stretches the cadence."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: Path,
        *,
        budget: float = 1.0,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        super().__init__(model, optimizer, folder)
        # From step 16 on: the first ten steps, which record everything, are not the usual ones.
        run = folder / "run"
        count_by(clock)
        made: Any = watch(model, optimizer, run=run, step=CYCLE - 1, budget=budget)
        self.watcher, self.timer = made, made.guard.timer

    @property
    def spent(self) -> float:
        """Seconds inside our hooks."""
        return float(self.timer.spent)

    def after(self, step: int, loss: Tensor) -> None:
        self.watcher.log(loss=loss)

    def close(self) -> None:
        self.watcher.close()


class Wandb(Watching):
    """`wandb.watch(model, log="gradients", log_freq=1)` of a run that is offline."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        os.environ["WANDB_SILENT"] = "true"
        self.wandb = import_module("wandb")
        self.wandb.init(project="peers", mode="offline", dir=str(self.folder))
        self.wandb.watch(self.model, log="gradients", log_freq=1)

    def after(self, step: int, loss: Tensor) -> None:
        self.wandb.log({"loss": loss.item()})

    def close(self) -> None:
        self.wandb.unwatch(self.model)
        self.wandb.finish()


class TensorBoard(Watching):
    """`add_histogram` of every gradient."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        board = import_module("torch.utils.tensorboard")
        self.writer = board.SummaryWriter(str(self.folder / "board"))

    def after(self, step: int, loss: Tensor) -> None:
        for name, parameter in self.model.named_parameters():
            self.writer.add_histogram(name, parameter.grad, step)
        self.writer.add_scalar("loss", loss.item(), step)

    def close(self) -> None:
        self.writer.close()


class Torchmortem(Watching):
    """`Autopsy` with its default sampling, "balanced"."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        module = import_module("torchmortem")
        self.autopsy = module.Autopsy(self.model, optimizer=self.optimizer)
        self.autopsy.attach()

    def after(self, step: int, loss: Tensor) -> None:
        self.autopsy.step(loss=loss.item())

    def close(self) -> None:
        self.autopsy.detach()


class NeuralObservatory(Watching):
    """`Observatory` as it comes: raw tensors are kept."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.observatory = import_module("neural_observatory").Observatory(self.model)
        self.observatory.watch()

    def before(self, step: int) -> None:
        self.observatory.step(step=step)

    def close(self) -> None:
        self.observatory.stop()


class Naive(Watching):
    """What one writes first: three numbers of every gradient, each a pass and a read."""

    def after(self, step: int, loss: Tensor) -> None:
        for parameter in self.model.parameters():
            g = parameter.grad
            if g is not None:
                self.seen = g.norm().item(), g.mean().item(), g.std().item()


Make = Callable[[nn.Module, torch.optim.Optimizer, Path], Watching]

PEERS: Mapping[str, tuple[str, Make]] = {
    "naive loop": ("torch", Naive),
    "wandb.watch": ("wandb", Wandb),
    "TensorBoard histograms": ("tensorboard", TensorBoard),
    "torchmortem": ("torchmortem", Torchmortem),
    "neural-observatory": ("neural_observatory", NeuralObservatory),
}
"""Name → the module it needs, and how it is attached."""


def available() -> tuple[dict[str, Make], dict[str, str]]:
    """Those that can be imported, and why the others cannot."""
    found: dict[str, Make] = {}
    missing: dict[str, str] = {}
    for name, (module, make) in PEERS.items():
        try:
            import_module(module)
        except ImportError as error:
            missing[name] = str(error)
        else:
            found[name] = make
    return found, missing


class Folder:
    """A scratch folder for all of them."""

    def __enter__(self) -> Path:
        self.path = Path(tempfile.mkdtemp())
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
