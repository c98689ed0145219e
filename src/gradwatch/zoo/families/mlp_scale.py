"""Multilayer perceptrons whose scales are wrong: initialisation, inputs, learning rates."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import linears
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import MOMENTUM, Draw, Training, one_step, perceptron, sick


def vanishing_sigmoid(draw: Draw) -> Training:
    """Many sigmoid layers: the first ones get no gradient worth the name."""
    net = perceptron(draw, blobs(draw.data), draw.integer(8, 11), nn.Sigmoid)
    return net.train(MOMENTUM, draw.rate(3e-3, 3e-2), 150, linears(net.model)[:4])


def faint_start(draw: Draw) -> Training:
    """Weights drawn far too small: the signal fades within a few layers."""
    net = perceptron(draw, curve(draw.data), draw.integer(5, 8), nn.Tanh)
    for layer in linears(net.model):
        nn.init.normal_(layer.weight, std=draw.rate(0.005, 0.015))
        nn.init.zeros_(layer.bias)
    return net.train(SGD, draw.rate(3e-3, 3e-2), 150, linears(net.model))


def loud_start(draw: Draw) -> Training:
    """Weights drawn far too large: outputs and gradients grow from layer to layer."""
    net = perceptron(draw, blobs(draw.data), draw.integer(4, 6))
    for layer in linears(net.model):
        nn.init.normal_(layer.weight, std=draw.rate(5.0, 8.0) / layer.in_features**0.5)
    return net.train(Adam, 1e-3, 120, linears(net.model))


def one_loud_layer(draw: Draw) -> Training:
    """One layer's weights are thousands of times too large."""
    net = perceptron(draw, blobs(draw.data), draw.integer(3, 5))
    layer = draw.pick(linears(net.model)[1:-1])
    with torch.no_grad():
        layer.weight.mul_(draw.rate(3e3, 2e4))
    return net.train(Adam, 1e-3, 120, [layer])


def saturated_start(draw: Draw) -> Training:
    """Tanh layers that start in their flat part."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 4), nn.Tanh)
    hidden = linears(net.model)[:-1]
    for layer in hidden:
        nn.init.normal_(layer.weight, std=draw.rate(8, 20) / layer.in_features**0.5)
    return net.train(SGD, 0.01, 120, hidden)


def constant_start(draw: Draw) -> Training:
    """Every weight the same number: all units of a layer stay copies."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3), nn.Tanh)
    for layer in linears(net.model):
        nn.init.constant_(layer.weight, draw.rate(0.02, 0.2))
        nn.init.zeros_(layer.bias)
    return net.train(Adam, 3e-3, 120, linears(net.model))


def zero_start(draw: Draw) -> Training:
    """Every weight zero: only the last bias ever learns."""
    net = perceptron(draw, blobs(draw.data))
    for layer in linears(net.model):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return net.train(SGD, 0.1, 100, linears(net.model))


def unscaled_inputs(draw: Draw) -> Training:
    """Inputs in the hundreds or thousands."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    factor = draw.rate(200, 3000)
    rate = draw.rate(1e-3, 5e-3)
    return net.train(Adam, rate, 120, ["0"], alter=lambda step, x, y: (factor * x, y))


def unscaled_targets(draw: Draw) -> Training:
    """Targets in the hundreds under a squared error and plain SGD."""
    net = perceptron(draw, curve(draw.data, scale=draw.rate(300, 1000)))
    return net.train(SGD, draw.rate(0.02, 0.1), 100)


def rate_too_large(draw: Draw) -> Training:
    """SGD far beyond the stable learning rate."""
    net = perceptron(draw, curve(draw.data), draw.integer(2, 4))
    return net.train(SGD, draw.rate(3, 20), 120)


def adam_too_fast(draw: Draw) -> Training:
    """Adam with a learning rate near one."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    return net.train(Adam, draw.rate(0.3, 1.0), 150)


def rate_too_small(draw: Draw) -> Training:
    """SGD that would need a million steps."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    return net.train(SGD, draw.rate(1e-7, 2e-6), 150)


def rate_too_modest(draw: Draw) -> Training:
    """Adam so slow that little happens in the time given."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    return net.train(Adam, draw.rate(1e-6, 8e-6), 150)


def bouncing(draw: Draw) -> Training:
    """SGD just beyond the edge of stability: the loss jumps and gets nowhere."""
    return perceptron(draw, curve(draw.data), 2, nn.Tanh).train(SGD, draw.rate(1.0, 2.5), 200)


def dead_biases(draw: Draw) -> Training:
    """Biases so far below zero that most ReLUs never fire."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    layer = linears(net.model)[draw.integer(0, 1)]
    with torch.no_grad():
        rows = int(layer.out_features * draw.rate(0.65, 0.95))
        layer.bias[:rows] = -draw.rate(8, 20)
    return net.train(Adam, 1e-3, 150, [layer])


def killed_by_one_step(draw: Draw) -> Training:
    """A single enormous step early on kills the ReLUs."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 3))
    schedule = one_step(draw.integer(15, 30), draw.rate(2000, 5000))
    return net.train(SGD, 0.05, 150, schedule=schedule)


FAMILIES = sick(
    "mlp", vanishing_sigmoid, faint_start, loud_start, one_loud_layer, saturated_start,
    constant_start, zero_start, unscaled_inputs, unscaled_targets, rate_too_large, adam_too_fast,
    rate_too_small, rate_too_modest, bouncing, dead_biases, killed_by_one_step,
)  # fmt: skip
