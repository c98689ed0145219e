"""One training: a model, a task, an optimizer and the oddities of its loop; recipes make them."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gradwatch.zoo.models import Act, mlp, name_of
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


T = TypeVar("T")
Model = TypeVar("Model", bound=nn.Module)


class Draw:
    """Widths, depths, rates and batches of one trial, and torch generators that follow the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.data = torch.Generator().manual_seed(seed + 1)
        """For batches, apart from the one that initialises the weights."""

    def integer(self, low: int, high: int) -> int:
        """Uniform, both ends included."""
        return self._random.randint(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each equally likely."""
        return self._random.choice(choices)

    def rate(self, low: float, high: float) -> float:
        """Uniform in the logarithm."""
        return math.exp(self._random.uniform(math.log(low), math.log(high)))

    @property
    def width(self) -> int:
        """Units of a hidden layer; every read draws another."""
        return self.pick((16, 24, 32, 48, 64))

    @property
    def batch(self) -> int:
        """Samples in a batch; every read draws another."""
        return self.pick((16, 32, 48, 64))


@dataclass(frozen=True)
class Setup(Generic[Model]):
    """A model and its task, which a recipe may spoil before it is trained."""

    draw: Draw
    task: Task
    model: Model
    batch: int | None = None
    """Samples in a batch; drawn when the training is made where None."""

    def train(
        self,
        optimizer: Callable[..., Optimizer],
        rate: float,
        steps: int,
        culprits: Iterable[str | nn.Module] = (),
        *,
        given: Sequence[Any] | None = None,
        batch: int | None = None,
        **loop: Any,
    ) -> Training:
        """The training: `given` is what the optimizer gets, `loop` what is odd about the loop.

        The size of the batch is the last thing to be drawn: a seed must always give the same trial.
        """
        return Training(
            self.model,
            self.task,
            optimizer(self.model.parameters() if given is None else given, rate),
            steps,
            batch or self.batch or self.draw.batch,
            tuple(c if isinstance(c, str) else name_of(self.model, c) for c in culprits),
            **loop,
        )


MOMENTUM = partial(SGD, momentum=0.9)


def perceptron(draw: Draw, task: Task, depth: int = 2, act: Act = nn.ReLU,
               norm: Callable[[int], nn.Module] | None = None,
               last: nn.Module | None = None) -> Setup[nn.Sequential]:  # fmt: skip
    """A multilayer perceptron with `depth` hidden layers of one drawn width."""
    sizes = [task.inputs, *[draw.width] * depth, task.outputs]
    return Setup(draw, task, mlp(sizes, act, norm, last))


def one_step(at: int, factor: float) -> Callable[[int], float]:
    """A schedule: the learning rate is `factor` times its size on a single step."""
    return lambda step: factor if step == at else 1.0


Maker = Callable[[Draw], Training]


@dataclass(frozen=True)
class Recipe:
    """`make` plants the fault; what a trial really has is measured from its tensors."""

    kind: str
    """Model kind: mlp, cnn, residual, recurrent, transformer, autoencoder, embedding, lora."""
    make: Maker
    sick: bool

    @property
    def name(self) -> str:
        """kind/what, as `gradwatch zoo run` takes it."""
        return f"{self.kind}/{self.make.__name__.replace('_', '-')}"

    @property
    def about(self) -> str:
        """The first line of the maker's docstring."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]


def sick(kind: str, *makers: Maker) -> tuple[Recipe, ...]:
    """Recipes whose makers plant a fault."""
    return tuple(Recipe(kind, make, True) for make in makers)


def healthy(kind: str, *makers: Maker) -> tuple[Recipe, ...]:
    """Recipes that train well, some of them in ways that look like a fault."""
    return tuple(Recipe(kind, make, False) for make in makers)
