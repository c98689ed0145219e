"""One training: a model, a task, an optimizer and the oddities of its loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from gradwatch.zoo.tasks import Task

Alter = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class Observer(Protocol):
    """Whoever watches the loop: the labeller, the recorder."""

    def begin_step(self, step: int) -> None:
        """Before the step's first backward pass."""

    def before_step(self, step: int, loss: Tensor, inputs: Tensor) -> None:
        """After backward, before clipping and the update."""

    def after_step(self, step: int, loss: Tensor, validation: float | None) -> None:
        """After the update."""


@dataclass
class Training:
    """Everything `train` needs. Most fields say how this loop differs from the plainest one."""

    model: nn.Module
    task: Task
    optimizer: torch.optim.Optimizer
    steps: int
    batch: int
    culprits: tuple[str, ...] = ()
    """Layers in which the fault was planted; empty when it is in no layer."""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    schedule: Callable[[int], float] | None = None
    """Factor of the learning rate at each step."""
    clip: float | None = None
    zero: bool = True
    accumulate: int = 1
    alter: Alter | None = None
    """Changes a batch before it is used."""
    dataset: tuple[Tensor, Tensor] | None = None
    """A fixed training set, when batches shall repeat."""
    validate_every: int = 0
    train_mode: bool = True
    autocast: bool = False
    log: Callable[..., None] | None = None
    """Where the losses go, as `watcher.log` takes them."""
    data: torch.Generator = field(default_factory=torch.Generator)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Fresh samples of the task, or random rows of the fixed training set, without end."""
        while True:
            if self.dataset is None:
                yield self.task.sample(self.batch, self.data)
            else:
                rows = torch.randint(len(self.dataset[0]), (self.batch,), generator=self.data)
                yield self.dataset[0][rows], self.dataset[1][rows]

    def loss_of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch, computed in bfloat16 where the recipe uses autocast."""
        measure = self.loss or self.task.loss
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            outputs = self.model(inputs)
        if outputs.dtype is torch.bfloat16:
            outputs = outputs.float()
        return measure(outputs, targets)


def train(training: Training, observers: list[Observer]) -> None:
    """Run the loop to its end; observers see every step."""
    training.model.train(training.train_mode)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    valid = training.task.sample(128, torch.Generator().manual_seed(99))
    batches = training.batches()
    for step in range(training.steps):
        if training.schedule is not None:
            for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * training.schedule(step)
        if training.zero:
            training.optimizer.zero_grad()
        for observer in observers:
            observer.begin_step(step)
        for _ in range(training.accumulate):
            inputs, targets = next(batches)
            if training.alter is not None:
                inputs, targets = training.alter(step, inputs, targets)
            loss = training.loss_of(inputs, targets)
            torch.autograd.backward(loss / training.accumulate)
        if training.log is not None:
            training.log(loss=loss)
        for observer in observers:
            observer.before_step(step, loss.detach(), inputs)
        if training.clip is not None:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), training.clip)
        training.optimizer.step()
        checked = None
        if training.validate_every and step % training.validate_every == 0:
            checked = _validation(training, *valid)
        for observer in observers:
            observer.after_step(step, loss.detach(), checked)
        if training.log is not None and checked is not None:
            training.log(val_loss=checked)


def _validation(training: Training, inputs: Tensor, targets: Tensor) -> float:
    mode = training.model.training
    training.model.eval()
    with torch.no_grad():
        value = float(training.loss_of(inputs, targets))
    training.model.train(mode)
    return value
