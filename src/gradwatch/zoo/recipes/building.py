"""What the recipes have in common: how a training is put together, groups, schedules."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from gradwatch.zoo.tasks import Task
from gradwatch.zoo.training import Draw, Training

Build = Callable[[nn.Module], Optimizer]


def training(draw: Draw, task: Task, model: nn.Module, build: Build, steps: int, batch: int,
             **loop: Any) -> Training:  # fmt: skip
    """A training whose optimizer can be made anew after the model was changed."""
    return Training(
        model, task, build(model), draw.steps(steps), batch, build=build, data=draw.data, **loop
    )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """What is not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def plainly(kind: Callable[..., Optimizer], rate: float, **options: Any) -> Build:
    """One group of everything that is trainable."""
    return lambda model: kind(trainable(model), lr=rate, **options)


def decay_groups(rate: float, decay: float, betas: tuple[float, float] = (0.9, 0.95)) -> Build:
    """AdamW that decays matrices and leaves biases and norms alone."""

    def build(model: nn.Module) -> Optimizer:
        matrices = [p for p in trainable(model) if p.dim() >= 2]
        others = [p for p in trainable(model) if p.dim() < 2]
        groups: Iterable[Any] = [
            {"params": matrices, "weight_decay": decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return AdamW([g for g in groups if g["params"]], rate, betas=betas)

    return build


def cosine(steps: int, warm: float = 0.1, low: float = 0.1) -> Callable[[int], float]:
    """Linear warm-up over a share of the run, then half a cosine down to `low`."""

    def factor(step: int) -> float:
        begin = max(1, int(warm * steps))
        if step < begin:
            return (step + 1) / begin
        over = (step - begin) / max(1, steps - begin)
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * over))

    return factor
