"""Made data in the shapes of public programs' data sets; chance and floor known."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from gradwatch.zoo.tasks import Task, tokens

Pair = tuple[Tensor, Tensor]


def table(draw: torch.Generator, columns: int = 12, noise: float = 0.3, scale: float = 1.0) -> Task:
    """A standardised table and a number to predict from it, partly from products of columns."""
    linear = torch.randn(columns, generator=draw) / math.sqrt(columns)
    pairs = torch.randn(columns // 2, generator=draw) / math.sqrt(columns)

    def sample(size: int, random: torch.Generator) -> Pair:
        x = torch.randn(size, columns, generator=random)
        half = columns // 2
        signal = x @ linear + 0.5 * (x[:, :half] * x[:, half : 2 * half]) @ pairs
        y = signal + noise * torch.randn(size, generator=random)
        return x, scale * y[:, None]

    _, values = sample(4096, torch.Generator().manual_seed(7))
    chance = float(values.var(unbiased=False))
    return Task(sample, functional.mse_loss, chance, (scale * noise) ** 2, columns, 1)


def two_tables(draw: torch.Generator, columns: int = 8) -> Task:
    """Two float inputs, as of users and of things; the class needs both."""
    mixing = torch.randn(2 * columns, 4, generator=draw)

    def sample(size: int, random: torch.Generator) -> tuple[Pair, Tensor]:
        x = torch.randn(size, 2 * columns, generator=random)
        labels = (x @ mixing + 0.3 * torch.randn(size, 4, generator=random)).argmax(1)
        return (x[:, :columns], x[:, columns:]), labels

    return Task(sample, functional.cross_entropy, math.log(4), 0.0, columns, 4)


def rare(draw: torch.Generator, share: float = 0.03, apart: float = 0.6) -> Task:
    """Two classes, one of them rare; how well they can be told apart follows `apart`."""
    direction = torch.randn(10, generator=draw)
    direction = direction / direction.norm()

    def sample(size: int, random: torch.Generator) -> Pair:
        labels = (torch.rand(size, generator=random) < share).long()
        return torch.randn(size, 10, generator=random) + apart * labels[:, None] * direction, labels

    chance = -share * math.log(share) - (1 - share) * math.log(1 - share)
    return Task(sample, functional.cross_entropy, chance, 0.0, 10, 2)


def words(draw: torch.Generator, vocabulary: int = 200, classes: int = 4) -> Task:
    """Counts of words in short texts, most of them zero, and their subject."""
    usage = torch.softmax(1.5 * torch.randn(classes, vocabulary, generator=draw), 1)

    def sample(size: int, random: torch.Generator) -> Pair:
        labels = torch.randint(classes, (size,), generator=random)
        drawn = torch.multinomial(usage[labels], 30, replacement=True, generator=random)
        return functional.one_hot(drawn, vocabulary).sum(1).float(), labels

    return Task(sample, functional.cross_entropy, math.log(classes), 0.0, vocabulary, classes)


def disks(size: int = 16) -> Task:
    """Noisy pictures with a bright disk, to be cut out pixel by pixel."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")

    def sample(count: int, random: torch.Generator) -> Pair:
        place = torch.randint(4, size - 4, (count, 2, 1, 1), generator=random)
        radius = 2 + 2 * torch.rand(count, 1, 1, generator=random)
        inside = (rows - place[:, 0]) ** 2 + (columns - place[:, 1]) ** 2 < radius**2
        mask = inside.float()[:, None]
        return mask + 0.5 * torch.randn(count, 1, size, size, generator=random), mask

    _, masks = sample(512, torch.Generator().manual_seed(7))
    share = float(masks.mean())
    chance = -share * math.log(share) - (1 - share) * math.log(1 - share)
    return Task(sample, functional.binary_cross_entropy_with_logits, chance, 0.0, 1, 1)


def tones(length: int = 96, classes: int = 4) -> Task:
    """Waves of a few pitches with any phase and noise."""
    time = torch.arange(length)

    def sample(size: int, random: torch.Generator) -> Pair:
        labels = torch.randint(classes, (size,), generator=random)
        phase = 6.28 * torch.rand(size, 1, generator=random)
        wave = torch.sin(0.2 * (1 + labels[:, None]) * time + phase)
        return (wave + 0.5 * torch.randn(size, length, generator=random))[:, None], labels

    return Task(sample, functional.cross_entropy, math.log(classes), 0.0, 1, classes)


def graph(draw: torch.Generator, nodes: int = 120, classes: int = 3) -> tuple[Task, Tensor]:
    """A citation graph: nodes of one class are linked more often; the task, and its links."""
    labels = torch.randint(classes, (nodes,), generator=draw)
    same = labels[:, None] == labels
    chances = torch.where(same, 0.12, 0.01)
    links = (torch.rand(nodes, nodes, generator=draw) < chances).float().triu(1)
    features = 0.5 * functional.one_hot(labels, 12).float()
    features = features + 0.6 * torch.randn(nodes, 12, generator=draw)

    def sample(size: int, random: torch.Generator) -> Pair:
        return features.clone(), labels.clone()

    chance = math.log(classes)
    task = Task(sample, functional.cross_entropy, chance, 0.0, 12, classes)
    return task, links + links.T + torch.eye(nodes)


def padded(draw: torch.Generator, vocabulary: int = 13, length: int = 11) -> Task:
    """Sentences of several lengths with token types and a mask, as encoders get them."""
    plain = tokens(draw, vocabulary - 1, length)

    def sample(size: int, random: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
        ids, _ = plain.sample(size, random)
        lengths = torch.randint(length // 2, length + 1, (size, 1), generator=random)
        mask = torch.arange(length) < lengths
        labels = (((ids % 2) * mask).sum(1) > 0.5 * mask.sum(1)).long()
        return ((ids + 1) * mask, torch.zeros_like(ids), mask.long()), labels

    return replace(plain, sample=sample, inputs=vocabulary)


def reversed_words(vocabulary: int = 8, length: int = 5) -> Task:
    """A sequence and its reverse, which is also given to the decoder one place later."""

    def sample(size: int, random: torch.Generator) -> tuple[Pair, Tensor]:
        source = torch.randint(1, vocabulary, (size, length), generator=random)
        wanted = source.flip(1)
        shifted = torch.cat([torch.zeros(size, 1, dtype=torch.long), wanted[:, :-1]], 1)
        return (source, shifted), wanted

    return Task(sample, every_place, math.log(vocabulary - 1), 0.0, vocabulary, vocabulary)


def long_ago(length: int = 60, *, late: bool = False) -> Task:
    """A sequence of noise; the class is a sign at its first moment, or at its last."""

    def sample(size: int, random: torch.Generator) -> Pair:
        x = torch.randn(size, length, 2, generator=random)
        labels = torch.randint(2, (size,), generator=random)
        x[:, -1 if late else 0, 0] = 3.0 * (2 * labels - 1)
        return x, labels

    return Task(sample, functional.cross_entropy, math.log(2), 0.0, 2, 2)


def every_place(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy at every place of a sequence."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
