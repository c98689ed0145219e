"""Autoencoders."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Act, linears, mlp
from gradwatch.zoo.tasks import Task, manifold
from gradwatch.zoo.training import Draw, Setup, Training, healthy, sick


def _autoencoder(
    draw: Draw, task: Task, act: Act = nn.ReLU, last: nn.Module | None = None
) -> Setup[nn.Sequential]:
    return Setup(draw, task, mlp([task.inputs, 32, 6, 32, task.inputs], act, last=last))


def saturated_code(draw: Draw) -> Training:
    """Sigmoid layers that sit in their flat part."""
    net = _autoencoder(draw, manifold(draw.data), nn.Sigmoid)
    for layer in linears(net.model)[:3]:
        layer.weight.data.mul_(draw.rate(40, 80))
    return net.train(SGD, 0.01, 120, ["0", "2", "4", "1", "3", "5"])


def huge_data(draw: Draw) -> Training:
    """Data in the hundreds under a squared error."""
    net = _autoencoder(draw, manifold(draw.data, scale=draw.rate(300, 900)))
    return net.train(SGD, 1e-3, 80, ["0"])


def dead_code(draw: Draw) -> Training:
    """All units of the code are dead."""
    net = _autoencoder(draw, manifold(draw.data))
    code = linears(net.model)[1]
    with torch.no_grad():
        code.bias.fill_(-draw.rate(10, 30))
    return net.train(Adam, 1e-3, 120, [code])


def decoder_not_given(draw: Draw) -> Training:
    """The optimizer only has the encoder."""
    net = _autoencoder(draw, manifold(draw.data))
    return net.train(Adam, 3e-3, 120, ["4", "6"], given=list(net.model[:3].parameters()))


def rate_too_large(draw: Draw) -> Training:
    """SGD far beyond the stable rate."""
    return _autoencoder(draw, manifold(draw.data)).train(SGD, draw.rate(10, 60), 100)


def squared_error(draw: Draw) -> Training:
    """An autoencoder that works."""
    net = _autoencoder(draw, manifold(draw.data), draw.pick((nn.ReLU, nn.Tanh, nn.ELU)))
    return net.train(Adam, draw.rate(3e-3, 1e-2), 250)


def binary_data(draw: Draw) -> Training:
    """A sigmoid output on zeros and ones."""
    task = manifold(draw.data, binary=True)
    return _autoencoder(draw, task, last=nn.Sigmoid()).train(Adam, 5e-3, 250)


FAMILIES = (
    *sick("autoencoder", saturated_code, huge_data, dead_code, decoder_not_given, rate_too_large),
    *healthy("autoencoder", squared_error, binary_data),
)  # fmt: skip
