"""Frozen networks with low-rank adapters that start at zero."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Adapter, linears, mlp
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import Task, blobs
from gradwatch.zoo.training import Training


def _adapted(draw: Draw, task: Task, *, cut: int | None = None) -> nn.Sequential:
    """A base trained for a moment, then frozen and wrapped."""
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
    return nn.Sequential(*layers)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def cut_adapter(draw: Draw) -> Training:
    """One adapter's first half is detached."""
    task = blobs(draw.data)
    at = draw.pick((0, 2))
    model = _adapted(draw, task, cut=at)
    optimizer = Adam(_trained(model), 5e-3)
    return Training(model, task, optimizer, 120, draw.batch, (f"{at}.down", f"{at}.up"))


def forgotten_adapter(draw: Draw) -> Training:
    """The optimizer was made before the last adapter."""
    task = blobs(draw.data)
    model = _adapted(draw, task)
    given = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("4.")]
    return Training(model, task, Adam(given, 5e-3), 120, draw.batch, ("4.down", "4.up"))


def rate_too_large(draw: Draw) -> Training:
    """Adapters learn so fast that they drown the base."""
    task = blobs(draw.data)
    model = _adapted(draw, task)
    return Training(model, task, Adam(_trained(model), draw.rate(0.5, 2.0)), 120, draw.batch)


def frozen_base_handed(draw: Draw) -> Training:
    """The frozen base went to the optimizer with the adapters."""
    task = blobs(draw.data)
    model = _adapted(draw, task)
    names = ("0.base", "2.base", "4.base")
    return Training(model, task, Adam(model.parameters(), 5e-3), 120, draw.batch, names)


def plain(draw: Draw) -> Training:
    """Adapters on a frozen base."""
    task = blobs(draw.data)
    model = _adapted(draw, task)
    return Training(model, task, Adam(_trained(model), draw.rate(3e-3, 1e-2)), 200, draw.batch)


def with_momentum(draw: Draw) -> Training:
    """The same with SGD."""
    task = blobs(draw.data)
    model = _adapted(draw, task)
    torch.manual_seed(draw.integer(0, 1 << 30))
    assert linears(model)
    return Training(model, task, SGD(_trained(model), 0.05, 0.9), 200, draw.batch)


FAMILIES = (
    *sick("lora", cut_adapter, forgotten_adapter, rate_too_large, frozen_base_handed),
    *healthy("lora", plain, with_momentum),
)  # fmt: skip
