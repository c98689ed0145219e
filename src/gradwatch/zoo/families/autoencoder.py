"""Autoencoders."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import linears, mlp
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import manifold
from gradwatch.zoo.training import Training


def _sizes(inputs: int) -> list[int]:
    return [inputs, 32, 6, 32, inputs]


def saturated_code(draw: Draw) -> Training:
    """Sigmoid layers that sit in their flat part."""
    task = manifold(draw.data)
    model = mlp(_sizes(task.inputs), nn.Sigmoid)
    for layer in linears(model)[:3]:
        layer.weight.data.mul_(draw.rate(40, 80))
    names = ("0", "2", "4", "1", "3", "5")
    return Training(model, task, SGD(model.parameters(), 0.01), 120, draw.batch, names)


def huge_data(draw: Draw) -> Training:
    """Data in the hundreds under a squared error."""
    task = manifold(draw.data, scale=draw.rate(300, 900))
    model = mlp(_sizes(task.inputs))
    return Training(model, task, SGD(model.parameters(), 1e-3), 80, draw.batch, ("0",))


def dead_code(draw: Draw) -> Training:
    """All units of the code are dead."""
    task = manifold(draw.data)
    model = mlp(_sizes(task.inputs))
    code = linears(model)[1]
    with torch.no_grad():
        code.bias.fill_(-draw.rate(10, 30))
    return Training(model, task, Adam(model.parameters(), 1e-3), 120, draw.batch, ("2",))


def decoder_not_given(draw: Draw) -> Training:
    """The optimizer only has the encoder."""
    task = manifold(draw.data)
    model = mlp(_sizes(task.inputs))
    optimizer = Adam([*model[0].parameters(), *model[2].parameters()], 3e-3)
    return Training(model, task, optimizer, 120, draw.batch, ("4", "6"))


def rate_too_large(draw: Draw) -> Training:
    """SGD far beyond the stable rate."""
    task = manifold(draw.data)
    model = mlp(_sizes(task.inputs))
    return Training(model, task, SGD(model.parameters(), draw.rate(10, 60)), 100, draw.batch)


def squared_error(draw: Draw) -> Training:
    """An autoencoder that works."""
    task = manifold(draw.data)
    model = mlp(_sizes(task.inputs), draw.pick((nn.ReLU, nn.Tanh, nn.ELU)))
    return Training(model, task, Adam(model.parameters(), draw.rate(3e-3, 1e-2)), 250, draw.batch)


def binary_data(draw: Draw) -> Training:
    """A sigmoid output on zeros and ones."""
    task = manifold(draw.data, binary=True)
    model = mlp(_sizes(task.inputs), last=nn.Sigmoid())
    return Training(model, task, Adam(model.parameters(), 5e-3), 250, draw.batch)


FAMILIES = (
    *sick("autoencoder", saturated_code, huge_data, dead_code, decoder_not_given, rate_too_large),
    *healthy("autoencoder", squared_error, binary_data),
)  # fmt: skip
