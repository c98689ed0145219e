"""Multilayer perceptrons whose training loop, loss or optimizer is wrong."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import linears, mlp, name_of
from gradwatch.zoo.recipe import Draw, sick
from gradwatch.zoo.tasks import Task, blobs, curve
from gradwatch.zoo.training import Training


def _net(draw: Draw, task: Task, depth: int = 2, last: nn.Module | None = None) -> nn.Sequential:
    return mlp([task.inputs, *[draw.width] * depth, task.outputs], last=last)


def never_zeroed(draw: Draw) -> Training:
    """The loop forgets `zero_grad()`."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = SGD(model.parameters(), draw.rate(1e-3, 1e-2))
    return Training(model, task, optimizer, 120, draw.batch, zero=False)


def softmax_twice(draw: Draw) -> Training:
    """A softmax at the end of the network and another in the loss."""
    task = blobs(draw.data, classes=draw.integer(5, 10))
    model = _net(draw, task, last=nn.Softmax(dim=1))
    names = (str(len(model) - 1), str(len(model) - 2))
    return Training(model, task, Adam(model.parameters(), 3e-3), 150, draw.batch, names)


def forgotten_layer(draw: Draw) -> Training:
    """The optimizer never got one of the layers."""
    task = blobs(draw.data)
    model = _net(draw, task, draw.integer(2, 4))
    left = draw.pick(linears(model))
    given = [p for layer in linears(model) if layer is not left for p in layer.parameters()]
    return Training(model, task, Adam(given, 3e-3), 120, draw.batch, (name_of(model, left),))


def replaced_head(draw: Draw) -> Training:
    """The head is replaced after the optimizer was made; the optimizer holds the old one."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = Adam(model.parameters(), 3e-3)
    head = len(model) - 1
    model[head] = nn.Linear(linears(model)[-1].in_features, task.outputs)
    return Training(model, task, optimizer, 120, draw.batch, (str(head),))


def frozen_but_handed(draw: Draw) -> Training:
    """Some layers were frozen and yet given to the optimizer."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    frozen = draw.pick(linears(model)[:3])
    frozen.requires_grad_(False)
    names = (name_of(model, frozen),)
    return Training(model, task, Adam(model.parameters(), 3e-3), 120, draw.batch, names)


def rate_zero(draw: Draw) -> Training:
    """The learning rate of one group is zero."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    stopped = draw.pick(linears(model))
    rest = [p for layer in linears(model) if layer is not stopped for p in layer.parameters()]
    groups: list[dict[str, Any]] = [
        {"params": rest},
        {"params": list(stopped.parameters()), "lr": 0.0},
    ]
    return Training(model, task, Adam(groups, 3e-3), 120, draw.batch, (name_of(model, stopped),))


class _Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def detached(draw: Draw) -> Training:
    """A `detach()` in the middle: what lies before it gets no gradient."""
    task = blobs(draw.data)
    model = _net(draw, task, draw.integer(3, 4))
    cut = 2 * draw.integer(1, 2)
    names = tuple(str(i) for i in range(0, cut, 2))
    model.insert(cut, _Cut())
    return Training(model, task, Adam(model.parameters(), 3e-3), 120, draw.batch, names)


def wrong_sign(draw: Draw) -> Training:
    """The loss is maximised."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = SGD(model.parameters(), draw.rate(0.05, 0.3))
    return Training(
        model, task, optimizer, 200, draw.batch,
        loss=lambda out, y: -functional.cross_entropy(out, y),
    )  # fmt: skip


def log_of_zero(draw: Draw) -> Training:
    """A log of probabilities without a guard: sooner or later log 0."""
    task = blobs(draw.data, classes=4, apart=3.0)
    model = _net(draw, task, last=nn.Softmax(dim=1))
    at = draw.integer(30, 80)

    def alter(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * -1e4 if step == at else x), y

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return -torch.log(out[torch.arange(len(y)), y]).mean()

    names = (str(len(model) - 1), str(len(model) - 2))
    return Training(
        model, task, Adam(model.parameters(), 3e-3), 120, draw.batch, names, loss=loss, alter=alter
    )  # fmt: skip


def bad_batch_nan(draw: Draw) -> Training:
    """One batch holds NaN."""
    task = blobs(draw.data)
    model = _net(draw, task)
    at = draw.integer(20, 80)

    def alter(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step == at:
            x = x.clone()
            x[0, 0] = float("nan")
        return x, y

    return Training(
        model, task, Adam(model.parameters(), 3e-3), 120, draw.batch, ("0",), alter=alter
    )  # fmt: skip


def root_of_zero(draw: Draw) -> Training:
    """A square root whose derivative at zero is infinite: forward fine, backward NaN."""
    task = curve(draw.data)
    model = _net(draw, task)
    at = draw.integer(20, 80)

    class Norm(nn.Module):
        count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            bad = x * 0.0 if self.count > at else x
            return x + bad.pow(2).sum(1, keepdim=True).sqrt() * 0.1

    model.insert(2, Norm())
    return Training(model, task, Adam(model.parameters(), 1e-3), 120, draw.batch, ("0", "2"))


def one_bad_batch(draw: Draw) -> Training:
    """Single batches a hundred times too large."""
    task = curve(draw.data)
    model = _net(draw, task)
    at = {draw.integer(60, 90), draw.integer(110, 140)}
    factor = draw.rate(60, 200)
    return Training(
        model, task, SGD(model.parameters(), 1e-6 * draw.rate(1, 3) + 0.02), 180, draw.batch,
        clip=0.5, alter=lambda step, x, y: (factor * x if step in at else x, y),
    )  # fmt: skip


def one_long_step(draw: Draw) -> Training:
    """The learning rate jumps for a single step."""
    task = blobs(draw.data)
    model = _net(draw, task)
    at, factor = draw.integer(80, 120), draw.rate(80, 200)
    return Training(
        model, task, Adam(model.parameters(), 5e-3), 200, draw.batch,
        schedule=lambda step: factor if step == at else 1.0,
    )  # fmt: skip


def decayed_away(draw: Draw) -> Training:
    """Weight decay pulls the weights to nothing."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    optimizer = AdamW(model.parameters(), 2e-3, weight_decay=draw.rate(20, 60))
    return Training(model, task, optimizer, 250, draw.batch)


def learnt_by_heart(draw: Draw) -> Training:
    """Forty noisy examples and a network that can remember them all."""
    task = blobs(draw.data, noise=0.5)
    model = mlp([task.inputs, 128, 128, task.outputs])
    dataset = task.sample(40, draw.data)
    return Training(
        model, task, Adam(model.parameters(), draw.rate(2e-3, 5e-3)), 250, 20, dataset=dataset,
        validate_every=10,
    )  # fmt: skip


def half_precision(draw: Draw) -> Training:
    """bfloat16 weights and steps below their last bit."""
    task = blobs(draw.data)
    model = _net(draw, task).bfloat16()
    optimizer = SGD(model.parameters(), draw.rate(1e-4, 4e-4))
    return Training(
        model, task, optimizer, 150, draw.batch, alter=lambda step, x, y: (x.bfloat16(), y)
    )  # fmt: skip


def large_epsilon(draw: Draw) -> Training:
    """Adam with an ε far above the gradients."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = Adam(model.parameters(), 1e-3, eps=draw.rate(30, 300))
    return Training(model, task, optimizer, 150, draw.batch)


FAMILIES = sick(
    "mlp", never_zeroed, softmax_twice, forgotten_layer, replaced_head, frozen_but_handed,
    rate_zero, detached, wrong_sign, log_of_zero, bad_batch_nan, root_of_zero, one_bad_batch,
    one_long_step, decayed_away, learnt_by_heart, half_precision, large_epsilon,
)  # fmt: skip
