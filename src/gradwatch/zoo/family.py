"""A family: one way a training can go wrong, or right, with random sizes, rates and seeds."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwatch.zoo.draw import Draw
from gradwatch.zoo.training import Training

Maker = Callable[[Draw], Training]


@dataclass(frozen=True)
class Family:
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


def sick(kind: str, *makers: Maker) -> tuple[Family, ...]:
    return tuple(Family(kind, make, True) for make in makers)


def healthy(kind: str, *makers: Maker) -> tuple[Family, ...]:
    return tuple(Family(kind, make, False) for make in makers)
