"""Small trainings of every kind: each a model, its optimizers and one step of the user's loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

STEPS = 100


@dataclass
class Loop:
    """One training. `step(i)` is step i of the user's loop, and gives the loss."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    step: Callable[[int], Tensor]
    scaler: Any = None
    extra: Sequence[nn.Module] = field(default_factory=tuple)
    """Other modules whose state is compared: copies, averages, a second network."""


def plain(
    model: nn.Module,
    optimizer: Optimizer,
    data: Callable[[], Tensor],
    loss: Callable[[Any], Tensor] | None = None,
    *,
    between: Callable[[int], None] | None = None,
) -> Loop:
    """The loop of every tutorial; `between` runs after the backward."""

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        output = model(data())
        value = (loss or squares)(output)
        value.backward()
        if between is not None:
            between(index)
        optimizer.step()
        return value

    return Loop(model, [optimizer], step)


def squares(output: Tensor) -> Tensor:
    return (output.float() - 1).pow(2).mean()


def classes(output: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.arange(len(output)) % output.shape[1])


def vectors(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape).to(dtype)


def tokens(batch: int, length: int, words: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, words, (batch, length))


def sgd(model: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, **options)


def adam(model: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def mlp(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), *(middle or (nn.ReLU(),)), nn.Linear(16, 4))


class Block(nn.Module):
    """A block of a small GPT, with fused attention."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.ln1, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.ln2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.fc, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        out: Tensor = x + self.out(F.gelu(self.fc(self.ln2(x))))
        return out


class Gpt(nn.Module):
    """Two blocks; the head is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.wte.weight
        self.through: Callable[..., Tensor] = lambda block, x: block(x)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = self.through(block, x)
        out: Tensor = self.head(x)
        return out.flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(20, 8), kind(8, 12, 2, dropout=0.1)  # type: ignore[arg-type]
        self.out = nn.Linear(12, 20)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.rnn(self.embed(ids))[0])
        return out.flatten(0, 1)
