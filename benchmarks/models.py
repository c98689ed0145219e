"""The models the figures are given for: an MLP, many small layers, a small GPT, a ResNet-18."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Bench:
    """A model and what computes its loss on a fixed batch."""

    name: str
    model: nn.Module
    loss: Callable[[nn.Module], Tensor]

    @property
    def summary(self) -> str:
        sizes = [p.numel() for p in self.model.parameters()]
        return f"{self.name}: {sum(sizes) / 1e6:.1f} M parameters in {len(sizes)} tensors"


def mlp() -> Bench:
    sizes = [784, 512, 512, 256, 10]
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return Bench("MLP", nn.Sequential(*layers[:-1]), lambda m: F.cross_entropy(m(x), y))


class Chain(nn.Module):
    """150 layers of 24 × 24, each around a residual: 300 small tensors."""

    def __init__(self, width: int = 24, layers: int = 150) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


def many() -> Bench:
    x = torch.randn(256, 24)
    return Bench("Many", Chain(), lambda m: m(x).square().mean())


class Block(nn.Module):
    """One layer of a GPT: attention and a feed-forward part, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.inwards(self.first(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outwards(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    """Twelve layers of width 384 with a tied head."""

    def __init__(self, words: int = 20000, width: int = 384, layers: int = 12) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(128, width)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def gpt() -> Bench:
    tokens = torch.randint(0, 20000, (4, 129))

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Bench("GPT", Gpt(), loss)


class Basic(nn.Module):
    """Two convolutions around a residual."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.short = nn.Sequential()
        if stride != 1 or inside != outside:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_two(self.two(F.relu(self.norm_one(self.one(x)))))
        return F.relu(y + self.short(x))


def resnet() -> Bench:
    blocks: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Basic(inside, outside, stride), Basic(outside, outside, 1)]
        inside = outside
    blocks += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    return Bench("ResNet", nn.Sequential(*blocks), lambda m: F.cross_entropy(m(x), y))
