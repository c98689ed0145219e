"""Frozen networks with low-rank adapters that start at zero."""

import torch
from torch import nn
from torch.optim import Adam

from gradwatch.zoo.models import Adapter, mlp
from gradwatch.zoo.tasks import blobs
from gradwatch.zoo.training import MOMENTUM, Draw, Setup, Training, healthy, sick


def _adapted(draw: Draw, cut: int | None = None) -> Setup[nn.Sequential]:
    """A base trained for a moment, then frozen and wrapped."""
    task = blobs(draw.data)
    base = mlp([task.inputs, 48, 48, task.outputs])
    optimizer = Adam(base.parameters(), 3e-3)
    for _ in range(15):
        optimizer.zero_grad()
        inputs, targets = task.sample(64, draw.data)
        torch.autograd.backward(task.loss(base(inputs), targets))
        optimizer.step()
    base.zero_grad()
    layers: list[nn.Module] = []
    for index, module in enumerate(base):
        if isinstance(module, nn.Linear):
            module = Adapter(module, 4, cut=cut == index)
        layers.append(module)
    return Setup(draw, task, nn.Sequential(*layers))


def _adapters(net: Setup[nn.Sequential]) -> list[nn.Parameter]:
    return [p for p in net.model.parameters() if p.requires_grad]


def cut_adapter(draw: Draw) -> Training:
    """One adapter's first half is detached."""
    at = draw.pick((0, 2))
    net = _adapted(draw, cut=at)
    return net.train(Adam, 5e-3, 120, [f"{at}.down", f"{at}.up"], given=_adapters(net))


def forgotten_adapter(draw: Draw) -> Training:
    """The optimizer was made before the last adapter."""
    net = _adapted(draw)
    given = [p for p in net.model[:4].parameters() if p.requires_grad]
    return net.train(Adam, 5e-3, 120, ["4.down", "4.up"], given=given)


def rate_too_large(draw: Draw) -> Training:
    """Adapters learn so fast that they drown the base."""
    net = _adapted(draw)
    return net.train(Adam, draw.rate(0.5, 2.0), 120, given=_adapters(net))


def frozen_base_handed(draw: Draw) -> Training:
    """The frozen base went to the optimizer with the adapters."""
    return _adapted(draw).train(Adam, 5e-3, 120, ["0.base", "2.base", "4.base"])


def plain(draw: Draw) -> Training:
    """Adapters on a frozen base."""
    net = _adapted(draw)
    return net.train(Adam, draw.rate(3e-3, 1e-2), 200, given=_adapters(net))


def with_momentum(draw: Draw) -> Training:
    """The same with SGD."""
    net = _adapted(draw)
    torch.manual_seed(draw.integer(0, 1 << 30))
    return net.train(MOMENTUM, 0.05, 200, given=_adapters(net))


FAMILIES = (
    *sick("lora", cut_adapter, forgotten_adapter, rate_too_large, frozen_base_handed),
    *healthy("lora", plain, with_momentum),
)  # fmt: skip
