"""Random choices of one trial: everything comes from its seed."""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

import torch

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
