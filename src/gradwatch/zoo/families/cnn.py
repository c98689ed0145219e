"""Convolutional networks on small pictures."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import cnn, of_kind
from gradwatch.zoo.tasks import bars
from gradwatch.zoo.training import MOMENTUM, Draw, Setup, Training, healthy, sick


def _pictures(
    draw: Draw, channels: int = 12, *, norm: bool = True, depth: int = 2, scale: float = 1.0
) -> Setup[nn.Sequential]:
    task = bars(draw.data, scale=scale)
    return Setup(draw, task, cnn(channels, task.outputs, norm=norm, depth=depth), batch=24)


def norm_in_eval(draw: Draw) -> Training:
    """The model was left in eval(): BatchNorm never sees its own statistics."""
    net = _pictures(draw, draw.pick((8, 12, 16)))
    return net.train(Adam, 3e-3, 80, ["1", "4"], train_mode=False)


def dead_channels(draw: Draw) -> Training:
    """Most channels of one convolution are pushed below zero for good."""
    net = _pictures(draw, norm=False)
    conv = draw.pick(of_kind(net.model, nn.Conv2d))
    with torch.no_grad():
        assert conv.bias is not None
        conv.bias[: draw.integer(8, 11)] = -draw.rate(10, 30)
    return net.train(Adam, 2e-3, 90, [conv])


def raw_bytes(draw: Draw) -> Training:
    """Pictures in the hundreds instead of about one."""
    scale = draw.rate(200, 500)
    net = _pictures(draw, draw.pick((8, 12)), norm=False, scale=scale)
    return net.train(SGD, 0.01, 80, ["0"])


def rate_too_large(draw: Draw) -> Training:
    """SGD with a learning rate in the tens."""
    return _pictures(draw, draw.pick((8, 12)), norm=False).train(SGD, draw.rate(5, 30), 90)


def lost_convolution(draw: Draw) -> Training:
    """The optimizer was made without the first convolution."""
    net = _pictures(draw)
    return net.train(Adam, 3e-3, 80, ["0"], given=list(net.model[1:].parameters()))


def loud_convolutions(draw: Draw) -> Training:
    """Convolutions drawn ten times too large, without normalisation."""
    net = _pictures(draw, norm=False, depth=4)
    factor = draw.rate(8, 15)
    convolutions = of_kind(net.model, nn.Conv2d)
    for convolution in convolutions:
        convolution.weight.data.mul_(factor)
    return net.train(Adam, 1e-3, 80, convolutions)


def normalised(draw: Draw) -> Training:
    """Convolutions with BatchNorm and SGD (biases in front of it have no true gradient)."""
    net = _pictures(draw, draw.pick((8, 12, 16)), depth=draw.integer(2, 3))
    return net.train(MOMENTUM, 0.05, 120)


def plain(draw: Draw) -> Training:
    """No normalisation, Adam."""
    return _pictures(draw, draw.pick((8, 12)), norm=False).train(Adam, 3e-3, 150)


def frozen_norm(draw: Draw) -> Training:
    """Fine-tuning with BatchNorm frozen and in eval mode on purpose."""
    net = _pictures(draw)
    with torch.no_grad():
        for _ in range(20):
            net.model(net.task.sample(32, draw.data)[0])
    for norm in of_kind(net.model, nn.BatchNorm2d):
        norm.requires_grad_(False)
    given = [p for p in net.model.parameters() if p.requires_grad]
    return net.train(Adam, 3e-3, 120, given=given, train_mode=False)


FAMILIES = (
    *sick("cnn", norm_in_eval, dead_channels, raw_bytes, rate_too_large, lost_convolution,
          loud_convolutions),
    *healthy("cnn", normalised, plain, frozen_norm),
)  # fmt: skip
