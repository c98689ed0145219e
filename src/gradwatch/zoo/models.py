"""The small networks of the zoo, all with modules for their activations."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

Act = Callable[[], nn.Module]
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def mlp(sizes: Sequence[int], act: Act = nn.ReLU, norm: Callable[[int], nn.Module] | None = None,
        last: nn.Module | None = None) -> nn.Sequential:  # fmt: skip
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        if index < len(sizes) - 2:
            if norm is not None:
                layers.append(norm(outputs))
            layers.append(act())
    if last is not None:
        layers.append(last)
    return nn.Sequential(*layers)


def of_kind(model: nn.Module, kind: type[AnyModule]) -> list[AnyModule]:
    """The modules of one class, in the order in which they were made."""
    return [module for module in model.modules() if isinstance(module, kind)]


def linears(model: nn.Module) -> list[nn.Linear]:
    """The linear layers in order."""
    return of_kind(model, nn.Linear)


def name_of(model: nn.Module, wanted: nn.Module) -> str:
    """A module's path."""
    names = {id(module): name for name, module in model.named_modules()}
    return str(names[id(wanted)])


def cnn(channels: int, classes: int, *, norm: bool = True, depth: int = 2) -> nn.Sequential:
    """Convolutions with ReLU, then a mean over the picture and a linear layer."""
    layers: list[nn.Module] = []
    before = 1
    for _ in range(depth):
        layers.append(nn.Conv2d(before, channels, 3, padding=1))
        if norm:
            layers.append(nn.BatchNorm2d(channels))
        layers.append(nn.ReLU())
        before = channels
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, classes)
    )


class ResidualBlock(nn.Module):
    """x + gain · f(x); with `drop`, left out at random in training (stochastic depth)."""

    def __init__(self, width: int, *, norm: bool, zero: bool = False, drop: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.inner = nn.Linear(width, 2 * width)
        self.act = nn.ReLU()
        self.outer = nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.zeros(1)) if zero else None
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """The input plus the branch, which stochastic depth leaves out at times."""
        if self.training and self.drop and torch.rand(()) < self.drop:
            return x
        branch: Tensor = self.outer(self.act(self.inner(self.norm(x))))
        return x + (branch if self.gain is None else self.gain * branch)


class Residual(nn.Module):
    """A stem, residual blocks and a head."""

    def __init__(self, inputs: int, width: int, outputs: int, depth: int, *, norm: bool = True,
                 zero: bool = False, drop: float = 0.0, spare: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            ResidualBlock(width, norm=norm, zero=zero, drop=drop) for _ in range(depth)
        )
        self.spare = nn.Linear(width, width) if spare else None  # made, never called
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores or predictions of a batch of vectors."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    """A plain tanh cell written out, so that its weights and activations are modules."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.again = nn.Linear(width, width)
        self.act = nn.Tanh()
        self.head = nn.Linear(width, outputs)
        nn.init.orthogonal_(self.again.weight)

    def forward(self, x: Tensor) -> Tensor:
        """A prediction from the state after the last moment."""
        state = torch.zeros(x.shape[0], self.again.in_features)
        for moment in x.unbind(1):
            state = self.act(self.enter(moment) + self.again(state))
        out: Tensor = self.head(state)
        return out


class Gated(nn.Module):
    """GRU or LSTM with a linear head on the last state."""

    def __init__(self, inputs: int, width: int, outputs: int, *, lstm: bool) -> None:
        super().__init__()
        self.cell = (nn.LSTM if lstm else nn.GRU)(inputs, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """A prediction from the state after the last moment."""
        states, _ = self.cell(x)
        out: Tensor = self.head(states[:, -1])
        return out


class Attention(nn.Module):
    """Several heads over one input; softmax by module, or torch's fused function."""

    def __init__(self, width: int, heads: int, *, fused: bool, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.heads, self.fused = heads, fused
        self.seen: Tensor | None = None
        """Attention weights of the last call, for the witness."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mixed values, without places that `mask` hides; the weights stay in `seen`."""
        size, length, width = x.shape
        q, k, v = (
            part(x).view(size, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        self.seen = weights.detach()
        mixed = (
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            if self.fused
            else weights @ v
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(size, length, width))
        return out


class TransformerLayer(nn.Module):
    """A transformer layer with normalisation in front."""

    def __init__(self, width: int, heads: int, *, fused: bool, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, fused=fused, causal=causal)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the two linear layers, each added to its input."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """Token and position embeddings, layers, a head at every position or on their mean."""

    def __init__(self, vocabulary: int, width: int, outputs: int, depth: int, *, length: int = 16,
                 fused: bool = False, pooled: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            TransformerLayer(width, 2, fused=fused, causal=not pooled) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.pooled = pooled
        for table in (self.embed, self.place):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, words: Tensor) -> Tensor:
        """Scores at every position, or one prediction for the whole sequence."""
        x = self.embed(words) + self.place(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        out: Tensor = self.head(x.mean(1) if self.pooled else x)
        return out


class Bag(nn.Module):
    """The mean of token embeddings through a small network."""

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.act = nn.Tanh()
        self.head = nn.Linear(width, outputs)

    def forward(self, words: Tensor) -> Tensor:
        """A prediction from the words, whatever their order."""
        out: Tensor = self.head(self.act(self.hidden(self.embed(words).mean(1))))
        return out


class Adapter(nn.Module):
    """A frozen linear layer and a trainable low-rank correction that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int, *, cut: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        """The frozen layer's output plus the low-rank correction."""
        low = self.down(x)
        out: Tensor = self.base(x) + self.up(low.detach() if self.cut else low)
        return out
