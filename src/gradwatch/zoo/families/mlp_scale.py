"""Multilayer perceptrons whose scales are wrong: initialisation, inputs, learning rates."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import linears, mlp, name_of
from gradwatch.zoo.recipe import Draw, sick
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import Training


def _sizes(draw: Draw, inputs: int, outputs: int, depth: int) -> list[int]:
    return [inputs, *[draw.width] * depth, outputs]


def vanishing_sigmoid(draw: Draw) -> Training:
    """Many sigmoid layers: the first ones get no gradient worth the name."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(8, 11)), nn.Sigmoid)
    rate = draw.rate(3e-3, 3e-2)
    first = [name_of(model, layer) for layer in linears(model)[:4]]
    return Training(model, task, SGD(model.parameters(), rate, 0.9), 150, draw.batch, tuple(first))


def faint_start(draw: Draw) -> Training:
    """Weights drawn far too small: the signal fades within a few layers."""
    task = curve(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(5, 8)), nn.Tanh)
    for layer in linears(model):
        nn.init.normal_(layer.weight, std=draw.rate(0.005, 0.015))
        nn.init.zeros_(layer.bias)
    names = tuple(name_of(model, layer) for layer in linears(model))
    rate = draw.rate(3e-3, 3e-2)
    return Training(model, task, SGD(model.parameters(), rate), 150, draw.batch, names)


def loud_start(draw: Draw) -> Training:
    """Weights drawn far too large: outputs and gradients grow from layer to layer."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(4, 6)))
    for layer in linears(model):
        nn.init.normal_(layer.weight, std=draw.rate(5.0, 8.0) / layer.in_features**0.5)
    names = tuple(name_of(model, layer) for layer in linears(model))
    return Training(model, task, Adam(model.parameters(), 1e-3), 120, draw.batch, names)


def one_loud_layer(draw: Draw) -> Training:
    """One layer's weights are thousands of times too large."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(3, 5)))
    layer = draw.pick(linears(model)[1:-1])
    with torch.no_grad():
        layer.weight.mul_(draw.rate(3e3, 2e4))
    names = (name_of(model, layer),)
    return Training(model, task, Adam(model.parameters(), 1e-3), 120, draw.batch, names)


def saturated_start(draw: Draw) -> Training:
    """Tanh layers that start in their flat part."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 4)), nn.Tanh)
    for layer in linears(model)[:-1]:
        nn.init.normal_(layer.weight, std=draw.rate(8, 20) / layer.in_features**0.5)
    names = tuple(name_of(model, layer) for layer in linears(model)[:-1])
    return Training(model, task, SGD(model.parameters(), 0.01), 120, draw.batch, names)


def constant_start(draw: Draw) -> Training:
    """Every weight the same number: all units of a layer stay copies."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)), nn.Tanh)
    for layer in linears(model):
        nn.init.constant_(layer.weight, draw.rate(0.02, 0.2))
        nn.init.zeros_(layer.bias)
    names = tuple(name_of(model, layer) for layer in linears(model))
    return Training(model, task, Adam(model.parameters(), 3e-3), 120, draw.batch, names)


def zero_start(draw: Draw) -> Training:
    """Every weight zero: only the last bias ever learns."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, 2))
    for layer in linears(model):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    names = tuple(name_of(model, layer) for layer in linears(model))
    return Training(model, task, SGD(model.parameters(), 0.1), 100, draw.batch, names)


def unscaled_inputs(draw: Draw) -> Training:
    """Inputs in the hundreds or thousands."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    factor = draw.rate(200, 3000)
    return Training(
        model, task, Adam(model.parameters(), draw.rate(1e-3, 5e-3)), 120, draw.batch, ("0",),
        alter=lambda step, x, y: (factor * x, y),
    )  # fmt: skip


def unscaled_targets(draw: Draw) -> Training:
    """Targets in the hundreds under a squared error and plain SGD."""
    task = curve(draw.data, scale=draw.rate(300, 1000))
    model = mlp(_sizes(draw, task.inputs, task.outputs, 2))
    return Training(model, task, SGD(model.parameters(), draw.rate(0.02, 0.1)), 100, draw.batch)


def rate_too_large(draw: Draw) -> Training:
    """SGD far beyond the stable learning rate."""
    task = curve(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 4)))
    return Training(model, task, SGD(model.parameters(), draw.rate(3, 20)), 120, draw.batch)


def adam_too_fast(draw: Draw) -> Training:
    """Adam with a learning rate near one."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    return Training(model, task, Adam(model.parameters(), draw.rate(0.3, 1.0)), 150, draw.batch)


def rate_too_small(draw: Draw) -> Training:
    """SGD that would need a million steps."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    return Training(model, task, SGD(model.parameters(), draw.rate(1e-7, 2e-6)), 150, draw.batch)


def rate_too_modest(draw: Draw) -> Training:
    """Adam so slow that little happens in the time given."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    return Training(model, task, Adam(model.parameters(), draw.rate(1e-6, 8e-6)), 150, draw.batch)


def bouncing(draw: Draw) -> Training:
    """SGD just beyond the edge of stability: the loss jumps and gets nowhere."""
    task = curve(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, 2), nn.Tanh)
    rate = draw.rate(1.0, 2.5)
    return Training(model, task, SGD(model.parameters(), rate), 200, draw.batch)


def dead_biases(draw: Draw) -> Training:
    """Biases so far below zero that most ReLUs never fire."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    layer = linears(model)[draw.integer(0, 1)]
    with torch.no_grad():
        rows = int(layer.out_features * draw.rate(0.65, 0.95))
        layer.bias[:rows] = -draw.rate(8, 20)
    names = (name_of(model, layer),)
    return Training(model, task, Adam(model.parameters(), 1e-3), 150, draw.batch, names)


def killed_by_one_step(draw: Draw) -> Training:
    """A single enormous step early on kills the ReLUs."""
    task = blobs(draw.data)
    model = mlp(_sizes(draw, task.inputs, task.outputs, draw.integer(2, 3)))
    at, factor = draw.integer(15, 30), draw.rate(2000, 5000)
    return Training(
        model, task, SGD(model.parameters(), 0.05), 150, draw.batch,
        schedule=lambda step: factor if step == at else 1.0,
    )  # fmt: skip


FAMILIES = sick(
    "mlp", vanishing_sigmoid, faint_start, loud_start, one_loud_layer, saturated_start,
    constant_start, zero_start, unscaled_inputs, unscaled_targets, rate_too_large, adam_too_fast,
    rate_too_small, rate_too_modest, bouncing, dead_biases, killed_by_one_step,
)  # fmt: skip
