"""What recipes with odd loops share: how they become a training, and simple distributions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer

from gradwatch.zoo.tasks import Task
from gradwatch.zoo.training import Draw, Training, Turn

Sampler = Callable[[int, torch.Generator], Tensor]
"""So many rows of data, drawn with a generator."""


class Feed:
    """Shows the batches that a loss draws to whoever watches the training."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, Tensor]] = []

    def __call__(self, batch: Tensor) -> Tensor:
        """The batch itself."""
        self.given.append((batch.detach(), torch.zeros(len(batch), dtype=torch.long)))
        return batch


def looped(
    draw: Draw,
    model: nn.Module,
    turns: Sequence[Turn],
    steps: int,
    outcome: Callable[[], float],
    *,
    good: float = 0.0,
    chance: float | None = None,
    numbers: Callable[[int], Mapping[str, float]] | None = None,
    after: Callable[[int], None] | None = None,
    aim: Callable[[], Tensor] | None = None,
    feed: Feed | None = None,
) -> Training:
    """A training whose losses draw their own data.

    `outcome` is what the training is for, measured apart from it, smaller being better: `good` is
    the level that a good training comes near. Without a `chance` (NaN where it is not known) the
    level of the losses means nothing; with one they are on the scale of the outcome. `aim` is
    what the loss would have a fixed batch come to, where that depends on a network.
    """
    level, nothing = chance is not None, (torch.zeros(1, 1), torch.zeros(1, 1))
    task = Task(lambda *_: nothing, mse_loss, math.nan if chance is None else chance, good, 1, 1)
    training = Training(
        model, task, turns[0].optimizer, draw.steps(steps), 32, turns=tuple(turns), level=level,
        numbers=numbers, after=after, outcome=outcome, current=[] if feed is None else feed.given,
    )  # fmt: skip
    if aim is not None:
        training.after = _following(training, aim, after)
    return training


def _following(
    training: Training, aim: Callable[[], Tensor], after: Callable[[int], None] | None
) -> Callable[[int], None]:
    """Notes after each step whether the aim has moved."""
    last = [aim()]

    def followed(step: int) -> None:
        if after is not None:
            after(step)
        now = aim()
        training.moving.append(not torch.equal(now, last[0]))
        last[0] = now

    return followed


def single(
    draw: Draw, model: nn.Module, loss: Callable[[], Tensor], rate: float, steps: int,
    outcome: Callable[[], float], **options: Any,
) -> Training:  # fmt: skip
    """One loss, and Adam over whatever is trainable."""
    return looped(draw, model, [Turn("loss", loss, adam(rate, model))], steps, outcome, **options)


def adam(rate: float, *modules: nn.Module, betas: tuple[float, float] = (0.9, 0.999)) -> Optimizer:
    """Adam over the trainable parameters of some modules."""
    return Adam((p for m in modules for p in m.parameters() if p.requires_grad), rate, betas)


def copied(source: nn.Module, target: nn.Module, share: float = 1.0) -> None:
    """Move a target network towards its source, by a share of the way."""
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), source.parameters(), strict=True):
            mine.lerp_(theirs, share)


class Mixture:
    """Gaussian clouds on a circle; density, score and entropy are known."""

    def __init__(self, draw: Draw, radius: float = 1.2, spread: float = 0.3) -> None:
        angles = torch.arange(draw.integer(4, 7)) * (2 * math.pi / 7) + draw.rate(0.1, 1.0)
        self.centres = radius * torch.stack([angles.cos(), angles.sin()], 1)
        self.spread = spread

    def sample(self, size: int, random: torch.Generator) -> Tensor:
        """Points of the mixture."""
        which = torch.randint(len(self.centres), (size,), generator=random)
        return self.centres[which] + self.spread * torch.randn(size, 2, generator=random)

    def log_density(self, points: Tensor, wider: Tensor | float = 0.0) -> Tensor:
        """Of the mixture, or of one to which noise of the size `wider` was added."""
        variance = torch.as_tensor(self.spread**2 + wider**2)
        squares = torch.cdist(points, self.centres) ** 2 / (2 * variance)
        size = torch.log(len(self.centres) * 2 * math.pi * variance).flatten()
        return torch.logsumexp(-squares, 1) - size


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Zero where two samples have one distribution."""
    first, second = first.flatten(1), second.flatten(1)
    across = 2 * torch.cdist(first, second).mean()
    return float(across - torch.cdist(first, first).mean() - torch.cdist(second, second).mean())


def fixed(seed: int = 17) -> torch.Generator:
    """For what an outcome is measured on: the same each time."""
    return torch.Generator().manual_seed(seed)
