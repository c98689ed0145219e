"""What the zoo's networks are asked to learn: data made on the spot, chance and floor known."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A source of batches and the loss that goes with them."""

    sample: Callable[[int, torch.Generator], tuple[Any, Tensor]]
    """So many inputs (a tuple where the model takes several) and targets."""
    loss: Callable[[Tensor, Tensor], Tensor]
    chance: float
    """Loss of the best constant predictor."""
    floor: float
    """A loss that cannot be beaten (0 where it is not known better)."""
    inputs: int
    outputs: int


def _floats(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def blobs(generator: torch.Generator, inputs: int = 12, classes: int = 5, apart: float = 1.2,
          noise: float = 0.0) -> Task:  # fmt: skip
    """Gaussian clouds; with `noise`, that share of labels is drawn anew."""
    centres = apart * _floats((classes, inputs), generator)

    def sample(size: int, random: torch.Generator) -> Batch:
        labels = torch.randint(classes, (size,), generator=random)
        points = centres[labels] + _floats((size, inputs), random)
        if noise:
            drawn = torch.randint(classes, (size,), generator=random)
            wrong = torch.rand(size, generator=random) < noise
            labels = torch.where(wrong, drawn, labels)
        return points / math.sqrt(1 + apart**2), labels

    right, wrong = 1 - noise + noise / classes, noise / classes
    floor = -right * math.log(right) - (classes - 1) * (wrong * math.log(wrong) if noise else 0.0)
    return Task(sample, functional.cross_entropy, math.log(classes), floor, inputs, classes)


def curve(generator: torch.Generator, inputs: int = 8, outputs: int = 1, noise: float = 0.1,
          scale: float = 1.0) -> Task:  # fmt: skip
    """A smooth random function to be fitted by squared error."""
    first = _floats((inputs, 16), generator) / math.sqrt(inputs)
    second = _floats((16, outputs), generator) / 2.0

    def sample(size: int, random: torch.Generator) -> Batch:
        points = _floats((size, inputs), random)
        values = torch.sin(points @ first * 1.5) @ second
        return points, scale * (values + noise * _floats((size, outputs), random))

    _, values = sample(4096, torch.Generator().manual_seed(7))
    chance = float(values.var(0, unbiased=False).mean())
    return Task(sample, functional.mse_loss, chance, (scale * noise) ** 2, inputs, outputs)


def bars(generator: torch.Generator, size: int = 10, scale: float = 1.0) -> Task:
    """Pictures with a horizontal or a vertical bar, left or right: four classes."""

    def sample(count: int, random: torch.Generator) -> Batch:
        labels = torch.randint(4, (count,), generator=random)
        places = torch.randint(1, size // 2 - 1, (count,), generator=random)
        pictures = 0.6 * _floats((count, 1, size, size), random)
        for index, (label, place) in enumerate(zip(labels.tolist(), places.tolist(), strict=True)):
            at = place + (size // 2 if label % 2 else 0)
            if label < 2:
                pictures[index, 0, at, :] += 1.5
            else:
                pictures[index, 0, :, at] += 1.5
        return scale * pictures, labels

    return Task(sample, functional.cross_entropy, math.log(4), 0.0, 1, 4)


def tokens(generator: torch.Generator, vocabulary: int = 20, length: int = 10,
           used: int | None = None, tail: float = 0.0) -> Task:  # fmt: skip
    """Which of two token families is more frequent; `tail` > 0 gives a Zipf-like vocabulary."""
    count = used or vocabulary
    weights = (1.0 / torch.arange(1, count + 1) ** tail) if tail else torch.ones(count)

    def sample(size: int, random: torch.Generator) -> Batch:
        drawn = torch.multinomial(weights, size * length, replacement=True, generator=random)
        words = drawn.view(size, length)
        labels = ((words % 2).float().mean(1) > 0.5).long()
        return words, labels

    return Task(sample, functional.cross_entropy, math.log(2), 0.0, vocabulary, 2)


def chain(generator: torch.Generator, vocabulary: int = 12, length: int = 12) -> Task:
    """Next-token prediction on a Markov chain with a known entropy."""
    table = torch.softmax(2.5 * _floats((vocabulary, vocabulary), generator), dim=1)

    def sample(size: int, random: torch.Generator) -> Batch:
        words = torch.randint(vocabulary, (size, 1), generator=random)
        for _ in range(length):
            following = torch.multinomial(table[words[:, -1]], 1, generator=random)
            words = torch.cat([words, following], dim=1)
        return words[:, :-1], words[:, 1:]

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    share = torch.linalg.matrix_power(table, 64)[0]
    floor = float(-(share[:, None] * table * table.log()).sum())
    chance = float(-(share * share.log()).sum())
    return Task(sample, loss, chance, floor, vocabulary, vocabulary)


def sequences(generator: torch.Generator, length: int = 12, inputs: int = 4) -> Task:
    """The class is the direction of the sum over time of one random projection: four classes."""
    projection = _floats((inputs, 2), generator)

    def sample(size: int, random: torch.Generator) -> Batch:
        drift = _floats((size, 1, inputs), random)
        steps = 0.7 * _floats((size, length, inputs), random) + drift
        totals = (steps @ projection).sum(1)
        return steps, (totals[:, 0] > 0).long() + 2 * (totals[:, 1] > 0).long()

    return Task(sample, functional.cross_entropy, math.log(4), 0.0, inputs, 4)


def manifold(generator: torch.Generator, inputs: int = 16, rank: int = 3, scale: float = 1.0,
             binary: bool = False) -> Task:  # fmt: skip
    """Points near a low-dimensional surface, to be reproduced (autoencoders)."""
    mixing = _floats((rank, inputs), generator) / math.sqrt(rank)
    noise = 0.1

    def sample(size: int, random: torch.Generator) -> Batch:
        points = torch.tanh(_floats((size, rank), random)) @ mixing * 1.5
        points = points + noise * _floats((size, inputs), random)
        if binary:
            points = (points > 0).float()
        return scale * points, scale * points

    _, values = sample(4096, torch.Generator().manual_seed(7))
    if binary:
        share = values.mean(0).clamp(1e-3, 1 - 1e-3)
        chance = float(-(share * share.log() + (1 - share) * (1 - share).log()).mean())
        return Task(sample, functional.binary_cross_entropy, chance, 0.0, inputs, inputs)
    chance = float(values.var(0, unbiased=False).mean())
    return Task(sample, functional.mse_loss, chance, 0.0, inputs, inputs)
