"""Convolutional networks on small pictures."""

import torch
from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import cnn
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import bars
from gradwatch.zoo.training import Training


def norm_in_eval(draw: Draw) -> Training:
    """The model was left in eval(): BatchNorm never sees its own statistics."""
    task = bars(draw.data)
    model = cnn(draw.pick((8, 12, 16)), task.outputs)
    optimizer = Adam(model.parameters(), 3e-3)
    return Training(model, task, optimizer, 80, 24, ("1", "4"), train_mode=False)


def dead_channels(draw: Draw) -> Training:
    """Most channels of one convolution are pushed below zero for good."""
    task = bars(draw.data)
    model = cnn(12, task.outputs, norm=False)
    layer = draw.pick((0, 2))
    conv = model[layer]
    assert isinstance(conv, nn.Conv2d)
    with torch.no_grad():
        assert conv.bias is not None
        conv.bias[: draw.integer(8, 11)] = -draw.rate(10, 30)
    optimizer = Adam(model.parameters(), 2e-3)
    return Training(model, task, optimizer, 90, 24, (str(layer),))


def raw_bytes(draw: Draw) -> Training:
    """Pictures in the hundreds instead of about one."""
    task = bars(draw.data, scale=draw.rate(200, 500))
    model = cnn(draw.pick((8, 12)), task.outputs, norm=False)
    return Training(model, task, SGD(model.parameters(), 0.01), 80, 24, ("0",))


def rate_too_large(draw: Draw) -> Training:
    """SGD with a learning rate in the tens."""
    task = bars(draw.data)
    model = cnn(draw.pick((8, 12)), task.outputs, norm=False)
    return Training(model, task, SGD(model.parameters(), draw.rate(5, 30)), 90, 24)


def lost_convolution(draw: Draw) -> Training:
    """The optimizer was made without the first convolution."""
    task = bars(draw.data)
    model = cnn(12, task.outputs)
    given = [p for name, p in model.named_parameters() if not name.startswith("0.")]
    return Training(model, task, Adam(given, 3e-3), 80, 24, ("0",))


def loud_convolutions(draw: Draw) -> Training:
    """Convolutions drawn ten times too large, without normalisation."""
    task = bars(draw.data)
    model = cnn(12, task.outputs, norm=False, depth=4)
    factor = draw.rate(8, 15)
    for module in model:
        if isinstance(module, nn.Conv2d):
            module.weight.data.mul_(factor)
    names = ("0", "2", "4", "6")
    return Training(model, task, Adam(model.parameters(), 1e-3), 80, 24, names)


def normalised(draw: Draw) -> Training:
    """Convolutions with BatchNorm and SGD (biases in front of it have no true gradient)."""
    task = bars(draw.data)
    model = cnn(draw.pick((8, 12, 16)), task.outputs, depth=draw.integer(2, 3))
    return Training(model, task, SGD(model.parameters(), 0.05, 0.9), 120, 24)


def plain(draw: Draw) -> Training:
    """No normalisation, Adam."""
    task = bars(draw.data)
    model = cnn(draw.pick((8, 12)), task.outputs, norm=False)
    return Training(model, task, Adam(model.parameters(), 3e-3), 150, 24)


def frozen_norm(draw: Draw) -> Training:
    """Fine-tuning with BatchNorm frozen and in eval mode on purpose."""
    task = bars(draw.data)
    model = cnn(12, task.outputs)
    with torch.no_grad():
        for _ in range(20):
            model(task.sample(32, draw.data)[0])
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    given = [p for p in model.parameters() if p.requires_grad]
    return Training(model, task, Adam(given, 3e-3), 120, 24, train_mode=False)


FAMILIES = (
    *sick("cnn", norm_in_eval, dead_channels, raw_bytes, rate_too_large, lost_convolution,
          loud_convolutions),
    *healthy("cnn", normalised, plain, frozen_norm),
)  # fmt: skip
