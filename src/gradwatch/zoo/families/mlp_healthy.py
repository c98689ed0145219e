"""Multilayer perceptrons that train as they should, with the habits that mislead simple rules."""

import math

from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import linears, mlp
from gradwatch.zoo.recipe import Draw, healthy
from gradwatch.zoo.tasks import Task, blobs, curve
from gradwatch.zoo.training import Training


def _net(draw: Draw, task: Task, depth: int = 2, **options: object) -> nn.Sequential:
    sizes = [task.inputs, *[draw.width] * depth, task.outputs]
    return mlp(sizes, **options)  # type: ignore[arg-type]


def adam_classifier(draw: Draw) -> Training:
    """The plainest classifier."""
    task = blobs(draw.data)
    model = _net(draw, task, draw.integer(1, 4))
    optimizer = Adam(model.parameters(), draw.rate(1e-3, 5e-3))
    return Training(model, task, optimizer, 200, draw.batch)


def sgd_regression(draw: Draw) -> Training:
    """SGD with momentum on a smooth function."""
    task = curve(draw.data)
    model = _net(draw, task, draw.integer(1, 3), act=draw.pick((nn.ReLU, nn.Tanh, nn.GELU)))
    optimizer = SGD(model.parameters(), draw.rate(0.01, 0.05), 0.9)
    return Training(model, task, optimizer, 250, draw.batch)


def converged_and_going_on(draw: Draw) -> Training:
    """Separable data, learnt completely, and the loop goes on."""
    task = blobs(draw.data, classes=3, apart=3.0)
    model = _net(draw, task)
    return Training(model, task, Adam(model.parameters(), 5e-3), 500, 64)


def warm_up_and_decay(draw: Draw) -> Training:
    """The learning rate rises from zero and decays to zero."""
    task = blobs(draw.data)
    model = _net(draw, task)
    steps = 250

    def schedule(step: int) -> float:
        return min(step / 25, 1.0) * 0.5 * (1 + math.cos(math.pi * step / (steps - 1)))

    optimizer = AdamW(model.parameters(), draw.rate(3e-3, 8e-3))
    return Training(model, task, optimizer, steps, draw.batch, schedule=schedule)


def tiny_batches(draw: Draw) -> Training:
    """Batches of two to four: a very noisy loss."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = Adam(model.parameters(), draw.rate(5e-4, 2e-3))
    return Training(model, task, optimizer, 400, draw.integer(2, 4))


def few_steps(draw: Draw) -> Training:
    """A run of a few steps only."""
    task = blobs(draw.data)
    model = _net(draw, task)
    return Training(model, task, Adam(model.parameters(), 1e-3), draw.integer(2, 12), draw.batch)


def frozen_on_purpose(draw: Draw) -> Training:
    """The first layer rests and the optimizer does not know it."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    linears(model)[0].requires_grad_(False)
    given = [p for p in model.parameters() if p.requires_grad]
    return Training(model, task, Adam(given, 3e-3), 200, draw.batch)


def clipped(draw: Draw) -> Training:
    """Gradient clipping that acts often."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    optimizer = Adam(model.parameters(), 2e-3)
    return Training(model, task, optimizer, 200, draw.batch, clip=draw.rate(0.2, 1.0))


def certain_outputs(draw: Draw) -> Training:
    """A sigmoid output that is near 0 or 1 because the data are."""
    task = blobs(draw.data, classes=2, apart=3.0)
    model = mlp([task.inputs, draw.width, 1], nn.Tanh, last=nn.Sigmoid())
    return Training(
        model, task, Adam(model.parameters(), 5e-3), 250, draw.batch,
        loss=lambda out, y: functional.binary_cross_entropy(out[:, 0], y.float()),
    )  # fmt: skip


def accumulated(draw: Draw) -> Training:
    """Several backward passes per step, on purpose."""
    task = blobs(draw.data)
    model = _net(draw, task)
    optimizer = Adam(model.parameters(), 3e-3)
    return Training(model, task, optimizer, 150, 16, accumulate=draw.integer(2, 4))


def noisy_labels(draw: Draw) -> Training:
    """A third of the labels is random: the loss stays high because it must."""
    task = blobs(draw.data, noise=0.35, apart=2.0)
    model = _net(draw, task)
    return Training(model, task, Adam(model.parameters(), 2e-3), 300, 64)


def deep_and_normalised(draw: Draw) -> Training:
    """Eight layers with LayerNorm."""
    task = blobs(draw.data)
    model = _net(draw, task, 8, norm=nn.LayerNorm)
    return Training(model, task, Adam(model.parameters(), 1e-3), 200, draw.batch)


def with_dropout(draw: Draw) -> Training:
    """Dropout between the layers, validation along the way."""
    task = blobs(draw.data)
    model = _net(draw, task, 3)
    model.insert(2, nn.Dropout(0.3))
    return Training(
        model, task, Adam(model.parameters(), 3e-3), 250, draw.batch, validate_every=10
    )  # fmt: skip


def mixed_precision(draw: Draw) -> Training:
    """Autocast to bfloat16 over float32 weights."""
    task = blobs(draw.data)
    model = _net(draw, task)
    return Training(model, task, Adam(model.parameters(), 3e-3), 150, draw.batch, autocast=True)


FAMILIES = healthy(
    "mlp", adam_classifier, sgd_regression, converged_and_going_on, warm_up_and_decay,
    tiny_batches, few_steps, frozen_on_purpose, clipped, certain_outputs, accumulated,
    noisy_labels, deep_and_normalised, with_dropout, mixed_precision,
)  # fmt: skip
