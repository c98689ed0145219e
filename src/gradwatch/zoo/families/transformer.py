"""Small transformers."""

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import Attention, Transformer
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import chain, tokens
from gradwatch.zoo.training import Training


def collapsed_attention(draw: Draw) -> Training:
    """Queries and keys so large that each position looks at one other only."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2)
    factor = draw.rate(12, 25)
    for layer in model.layers:
        layer.attn.query.weight.data.mul_(factor)  # type: ignore[union-attr, operator]
        layer.attn.key.weight.data.mul_(factor)  # type: ignore[union-attr, operator]
    names = tuple(
        f"layers.{i}.attn{part}" for i in range(2) for part in ("", ".query", ".key", ".value")
    )
    return Training(model, task, Adam(model.parameters(), 1e-3), 100, 16, names)


def rate_too_large(draw: Draw) -> Training:
    """Adam with a learning rate near one."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2, fused=draw.pick((True, False)))
    return Training(model, task, Adam(model.parameters(), draw.rate(0.3, 1.0)), 100, 16)


def head_not_given(draw: Draw) -> Training:
    """The head was added after the optimizer."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2)
    given = [p for name, p in model.named_parameters() if not name.startswith("head")]
    return Training(model, task, Adam(given, 3e-3), 80, 16, ("head",))


def frozen_embedding(draw: Draw) -> Training:
    """The token embedding is frozen, yet in the optimizer."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2)
    model.embed.requires_grad_(False)
    return Training(model, task, Adam(model.parameters(), 3e-3), 80, 16, ("embed",))


def masked_row(draw: Draw) -> Training:
    """From some step on an attention row is masked completely: softmax of −∞ only."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2)
    at = draw.integer(20, 60)
    attention = model.layers[1].attn
    assert isinstance(attention, Attention)
    value = attention.value

    class Masked(nn.Module):
        count = 0

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            out: Tensor = self.inner(x)
            if self.count > at:
                row = torch.full_like(out[:, :1], -torch.inf)
                out = out * torch.softmax(row, dim=-1)
            return out

    attention.value = Masked(value)  # type: ignore[assignment]
    names = ("layers.1.attn.value", "layers.1.attn")
    return Training(model, task, Adam(model.parameters(), 2e-3), 80, 16, names)


def rate_too_small(draw: Draw) -> Training:
    """SGD that hardly moves a transformer."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, 2)
    return Training(model, task, SGD(model.parameters(), draw.rate(1e-7, 2e-6)), 80, 16)


def next_token(draw: Draw) -> Training:
    """Next-token prediction with Adam (key biases have no true gradient)."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 24, task.outputs, draw.integer(1, 3))
    return Training(model, task, Adam(model.parameters(), draw.rate(2e-3, 5e-3)), 150, 16)


def fused(draw: Draw) -> Training:
    """The same with torch's fused attention, warm-up and AdamW."""
    task = chain(draw.data)
    model = Transformer(task.inputs, 32, task.outputs, 2, fused=True)
    optimizer = AdamW(model.parameters(), 5e-3, weight_decay=0.1)
    return Training(
        model, task, optimizer, 150, 16, clip=1.0, schedule=lambda step: min(1.0, step / 20)
    )  # fmt: skip


def classifier(draw: Draw) -> Training:
    """A transformer that classifies sequences."""
    task = tokens(draw.data, vocabulary=12, length=9)
    model = Transformer(task.inputs, 24, task.outputs, 1, pooled=True)
    return Training(model, task, Adam(model.parameters(), 3e-3), 150, 32)


FAMILIES = (
    *sick("transformer", collapsed_attention, rate_too_large, head_not_given, frozen_embedding,
          masked_row, rate_too_small),
    *healthy("transformer", next_token, fused, classifier),
)  # fmt: skip
