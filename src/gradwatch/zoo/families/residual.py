"""Residual networks."""

from typing import Any

import torch
from torch.optim import Adam

from gradwatch.zoo.models import Residual, ResidualBlock, of_kind
from gradwatch.zoo.tasks import Task, blobs, curve
from gradwatch.zoo.training import MOMENTUM, Draw, Setup, Training, healthy, one_step, sick


def _residual(
    draw: Draw, task: Task, width: int = 32, depth: int = 4, **options: Any
) -> Setup[Residual]:
    return Setup(draw, task, Residual(task.inputs, width, task.outputs, depth, **options))


def growing_stream(draw: Draw) -> Training:
    """Blocks without normalisation whose branches are too loud."""
    net = _residual(draw, blobs(draw.data), depth=draw.integer(7, 9), norm=False)
    factor = draw.rate(10, 16)
    outer = [block.outer for block in of_kind(net.model, ResidualBlock)]
    for layer in outer:
        layer.weight.data.mul_(factor)
    return net.train(Adam, 1e-3, 100, outer)


def spare_layer(draw: Draw) -> Training:
    """A layer that was made and is never called."""
    net = _residual(draw, blobs(draw.data), draw.width, 3, spare=True)
    return net.train(Adam, 2e-3, 120, ["spare"])


def one_long_step(draw: Draw) -> Training:
    """The learning rate jumps a hundredfold for one step."""
    net = _residual(draw, blobs(draw.data), depth=3)
    schedule = one_step(draw.integer(70, 110), draw.rate(100, 300))
    return net.train(Adam, 2e-3, 180, schedule=schedule)


def frozen_block(draw: Draw) -> Training:
    """One block is frozen, and the optimizer has it."""
    net = _residual(draw, curve(draw.data))
    block = of_kind(net.model, ResidualBlock)[draw.integer(0, 3)].requires_grad_(False)
    return net.train(Adam, 2e-3, 120, [block.norm, block.inner, block.outer])


def rate_too_large(draw: Draw) -> Training:
    """SGD with momentum, far too fast."""
    return _residual(draw, curve(draw.data), norm=False).train(MOMENTUM, draw.rate(1, 5), 100)


def zero_gains(draw: Draw) -> Training:
    """Every branch starts at zero, on purpose."""
    net = _residual(draw, blobs(draw.data), depth=draw.integer(3, 6), zero=True)
    return net.train(Adam, 3e-3, 200)


def stochastic_depth(draw: Draw) -> Training:
    """Blocks are left out at random: no gradient on many steps."""
    return _residual(draw, blobs(draw.data), drop=draw.rate(0.2, 0.5)).train(Adam, 3e-3, 200)


def plain(draw: Draw) -> Training:
    """Residual blocks with LayerNorm and SGD."""
    net = _residual(draw, curve(draw.data), draw.width, draw.integer(2, 5))
    rate = draw.rate(0.01, 0.03)
    torch.manual_seed(draw.integer(0, 1 << 30))
    return net.train(MOMENTUM, rate, 200)


FAMILIES = (
    *sick("residual", growing_stream, spare_layer, one_long_step, frozen_block, rate_too_large),
    *healthy("residual", zero_gains, stochastic_depth, plain),
)  # fmt: skip
