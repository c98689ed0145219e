"""A recipe: one way a training can go wrong, or right, with random sizes, rates and seeds."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from gradwatch.zoo.training import Training

T = TypeVar("T")


class Draw:
    """Widths, depths, rates and batches of one trial, and torch generators that follow the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.data = torch.Generator().manual_seed(seed + 1)
        """For batches, apart from the one that initialises the weights."""

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def rate(self, low: float, high: float) -> float:
        """Uniform in the logarithm."""
        return math.exp(self._random.uniform(math.log(low), math.log(high)))

    @property
    def width(self) -> int:
        return self.pick((16, 24, 32, 48, 64))

    @property
    def batch(self) -> int:
        return self.pick((16, 32, 48, 64))


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
    return tuple(Recipe(kind, make, True) for make in makers)


def healthy(kind: str, *makers: Maker) -> tuple[Recipe, ...]:
    return tuple(Recipe(kind, make, False) for make in makers)
