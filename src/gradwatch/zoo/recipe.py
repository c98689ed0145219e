"""A recipe: one way a training can go wrong, or right, with random sizes, rates and seeds."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from gradwatch.zoo.models import Act, mlp, name_of
from gradwatch.zoo.tasks import Task
from gradwatch.zoo.training import Training

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
