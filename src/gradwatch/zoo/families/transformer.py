"""Small transformers."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import Attention, Transformer, of_kind
from gradwatch.zoo.tasks import chain, tokens
from gradwatch.zoo.training import Draw, Setup, Training, healthy, sick


def _language_model(
    draw: Draw, *, width: int = 24, depth: int = 2, fused: bool = False
) -> Setup[Transformer]:
    task = chain(draw.data)
    model = Transformer(task.inputs, width, task.outputs, depth, fused=fused)
    return Setup(draw, task, model, batch=16)


def collapsed_attention(draw: Draw) -> Training:
    """Queries and keys so large that each position looks at one other only."""
    net = _language_model(draw)
    factor = draw.rate(12, 25)
    culprits: list[nn.Module] = []
    for attention in of_kind(net.model, Attention):
        attention.query.weight.data.mul_(factor)
        attention.key.weight.data.mul_(factor)
        culprits += [attention, attention.query, attention.key, attention.value]
    return net.train(Adam, 1e-3, 100, culprits)


def rate_too_large(draw: Draw) -> Training:
    """Adam with a learning rate near one."""
    net = _language_model(draw, fused=draw.pick((True, False)))
    return net.train(Adam, draw.rate(0.3, 1.0), 100)


def head_not_given(draw: Draw) -> Training:
    """The head was added after the optimizer."""
    net = _language_model(draw)
    given = [p for name, p in net.model.named_parameters() if not name.startswith("head")]
    return net.train(Adam, 3e-3, 80, ["head"], given=given)


def frozen_embedding(draw: Draw) -> Training:
    """The token embedding is frozen, yet in the optimizer."""
    net = _language_model(draw)
    net.model.embed.requires_grad_(False)
    return net.train(Adam, 3e-3, 80, ["embed"])


class _Masked(nn.Module):
    """Multiplies by a softmax of −∞ only, from the call after `at` on."""

    def __init__(self, inner: nn.Module, at: int) -> None:
        super().__init__()
        self.inner, self.at, self.count = inner, at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        out: Tensor = self.inner(x)
        if self.count > self.at:
            row = torch.full_like(out[:, :1], -torch.inf)
            out = out * torch.softmax(row, dim=-1)
        return out


def masked_row(draw: Draw) -> Training:
    """From some step on an attention row is masked completely: softmax of −∞ only."""
    net = _language_model(draw)
    attention = of_kind(net.model, Attention)[1]
    attention.value = _Masked(attention.value, draw.integer(20, 60))  # type: ignore[assignment]
    return net.train(Adam, 2e-3, 80, [attention.value, attention])


def rate_too_small(draw: Draw) -> Training:
    """SGD that hardly moves a transformer."""
    return _language_model(draw).train(SGD, draw.rate(1e-7, 2e-6), 80)


def next_token(draw: Draw) -> Training:
    """Next-token prediction with Adam (key biases have no true gradient)."""
    return _language_model(draw, depth=draw.integer(1, 3)).train(Adam, draw.rate(2e-3, 5e-3), 150)


def fused(draw: Draw) -> Training:
    """The same with torch's fused attention, warm-up and AdamW."""
    net = _language_model(draw, width=32, fused=True)
    optimizer = partial(AdamW, weight_decay=0.1)
    return net.train(optimizer, 5e-3, 150, clip=1.0, schedule=lambda step: min(1.0, step / 20))


def classifier(draw: Draw) -> Training:
    """A transformer that classifies sequences."""
    task = tokens(draw.data, vocabulary=12, length=9)
    model = Transformer(task.inputs, 24, task.outputs, 1, pooled=True)
    return Setup(draw, task, model).train(Adam, 3e-3, 150, batch=32)


FAMILIES = (
    *sick("transformer", collapsed_attention, rate_too_large, head_not_given, frozen_embedding,
          masked_row, rate_too_small),
    *healthy("transformer", next_token, fused, classifier),
)  # fmt: skip
