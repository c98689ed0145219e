"""Multilayer perceptrons that train as they should, with the habits that mislead simple rules."""

import math

from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW

from gradwatch.zoo.models import linears, mlp
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import MOMENTUM, Draw, Setup, Training, healthy, perceptron


def adam_classifier(draw: Draw) -> Training:
    """The plainest classifier."""
    net = perceptron(draw, blobs(draw.data), draw.integer(1, 4))
    return net.train(Adam, draw.rate(1e-3, 5e-3), 200)


def sgd_regression(draw: Draw) -> Training:
    """SGD with momentum on a smooth function."""
    depth, act = draw.integer(1, 3), draw.pick((nn.ReLU, nn.Tanh, nn.GELU))
    net = perceptron(draw, curve(draw.data), depth, act)
    return net.train(MOMENTUM, draw.rate(0.01, 0.05), 250)


def converged_and_going_on(draw: Draw) -> Training:
    """Separable data, learnt completely, and the loop goes on."""
    return perceptron(draw, blobs(draw.data, classes=3, apart=3.0)).train(Adam, 5e-3, 500, batch=64)


def warm_up_and_decay(draw: Draw) -> Training:
    """The learning rate rises from zero and decays to zero."""
    net = perceptron(draw, blobs(draw.data))
    steps = 250

    def schedule(step: int) -> float:
        return min(step / 25, 1.0) * 0.5 * (1 + math.cos(math.pi * step / (steps - 1)))

    return net.train(AdamW, draw.rate(3e-3, 8e-3), steps, schedule=schedule)


def tiny_batches(draw: Draw) -> Training:
    """Batches of two to four: a very noisy loss."""
    net = perceptron(draw, blobs(draw.data))
    return net.train(Adam, draw.rate(5e-4, 2e-3), 400, batch=draw.integer(2, 4))


def few_steps(draw: Draw) -> Training:
    """A run of a few steps only."""
    return perceptron(draw, blobs(draw.data)).train(Adam, 1e-3, draw.integer(2, 12))


def frozen_on_purpose(draw: Draw) -> Training:
    """The first layer rests and the optimizer does not know it."""
    net = perceptron(draw, blobs(draw.data), 3)
    linears(net.model)[0].requires_grad_(False)
    given = [p for p in net.model.parameters() if p.requires_grad]
    return net.train(Adam, 3e-3, 200, given=given)


def clipped(draw: Draw) -> Training:
    """Gradient clipping that acts often."""
    net = perceptron(draw, blobs(draw.data), 3)
    return net.train(Adam, 2e-3, 200, batch=draw.batch, clip=draw.rate(0.2, 1.0))


def certain_outputs(draw: Draw) -> Training:
    """A sigmoid output that is near 0 or 1 because the data are."""
    task = blobs(draw.data, classes=2, apart=3.0)
    model = mlp([task.inputs, draw.width, 1], nn.Tanh, last=nn.Sigmoid())

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.binary_cross_entropy(out[:, 0], y.float())

    return Setup(draw, task, model).train(Adam, 5e-3, 250, loss=loss)


def accumulated(draw: Draw) -> Training:
    """Several backward passes per step, on purpose."""
    net = perceptron(draw, blobs(draw.data))
    return net.train(Adam, 3e-3, 150, batch=16, accumulate=draw.integer(2, 4))


def noisy_labels(draw: Draw) -> Training:
    """A third of the labels is random: the loss stays high because it must."""
    net = perceptron(draw, blobs(draw.data, noise=0.35, apart=2.0))
    return net.train(Adam, 2e-3, 300, batch=64)


def deep_and_normalised(draw: Draw) -> Training:
    """Eight layers with LayerNorm."""
    return perceptron(draw, blobs(draw.data), 8, norm=nn.LayerNorm).train(Adam, 1e-3, 200)


def with_dropout(draw: Draw) -> Training:
    """Dropout between the layers, validation along the way."""
    net = perceptron(draw, blobs(draw.data), 3)
    net.model.insert(2, nn.Dropout(0.3))
    return net.train(Adam, 3e-3, 250, validate_every=10)


def mixed_precision(draw: Draw) -> Training:
    """Autocast to bfloat16 over float32 weights."""
    return perceptron(draw, blobs(draw.data)).train(Adam, 3e-3, 150, autocast=True)


FAMILIES = healthy(
    "mlp", adam_classifier, sgd_regression, converged_and_going_on, warm_up_and_decay,
    tiny_batches, few_steps, frozen_on_purpose, clipped, certain_outputs, accumulated,
    noisy_labels, deep_and_normalised, with_dropout, mixed_precision,
)  # fmt: skip
