"""Residual networks."""

import torch
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Residual
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import Training


def growing_stream(draw: Draw) -> Training:
    """Blocks without normalisation whose branches are too loud."""
    task = blobs(draw.data)
    depth = draw.integer(7, 9)
    model = Residual(task.inputs, 32, task.outputs, depth, norm=False)
    factor = draw.rate(10, 16)
    for block in model.blocks:
        block.outer.weight.data.mul_(factor)  # type: ignore[union-attr, operator]
    names = tuple(f"blocks.{i}.outer" for i in range(depth))
    return Training(model, task, Adam(model.parameters(), 1e-3), 100, draw.batch, names)


def spare_layer(draw: Draw) -> Training:
    """A layer that was made and is never called."""
    task = blobs(draw.data)
    model = Residual(task.inputs, draw.width, task.outputs, 3, spare=True)
    return Training(model, task, Adam(model.parameters(), 2e-3), 120, draw.batch, ("spare",))


def one_long_step(draw: Draw) -> Training:
    """The learning rate jumps a hundredfold for one step."""
    task = blobs(draw.data)
    model = Residual(task.inputs, 32, task.outputs, 3)
    at, factor = draw.integer(70, 110), draw.rate(100, 300)
    return Training(
        model, task, Adam(model.parameters(), 2e-3), 180, draw.batch,
        schedule=lambda step: factor if step == at else 1.0,
    )  # fmt: skip


def frozen_block(draw: Draw) -> Training:
    """One block is frozen, and the optimizer has it."""
    task = curve(draw.data)
    model = Residual(task.inputs, 32, task.outputs, 4)
    index = draw.integer(0, 3)
    model.blocks[index].requires_grad_(False)
    names = tuple(f"blocks.{index}.{part}" for part in ("norm", "inner", "outer"))
    return Training(model, task, Adam(model.parameters(), 2e-3), 120, draw.batch, names)


def rate_too_large(draw: Draw) -> Training:
    """SGD with momentum, far too fast."""
    task = curve(draw.data)
    model = Residual(task.inputs, 32, task.outputs, 4, norm=False)
    optimizer = SGD(model.parameters(), draw.rate(1, 5), 0.9)
    return Training(model, task, optimizer, 100, draw.batch)


def zero_gains(draw: Draw) -> Training:
    """Every branch starts at zero, on purpose."""
    task = blobs(draw.data)
    model = Residual(task.inputs, 32, task.outputs, draw.integer(3, 6), zero=True)
    return Training(model, task, Adam(model.parameters(), 3e-3), 200, draw.batch)


def stochastic_depth(draw: Draw) -> Training:
    """Blocks are left out at random: no gradient on many steps."""
    task = blobs(draw.data)
    model = Residual(task.inputs, 32, task.outputs, 4, drop=draw.rate(0.2, 0.5))
    return Training(model, task, Adam(model.parameters(), 3e-3), 200, draw.batch)


def plain(draw: Draw) -> Training:
    """Residual blocks with LayerNorm and SGD."""
    task = curve(draw.data)
    model = Residual(task.inputs, draw.width, task.outputs, draw.integer(2, 5))
    optimizer = SGD(model.parameters(), draw.rate(0.01, 0.03), 0.9)
    torch.manual_seed(draw.integer(0, 1 << 30))
    return Training(model, task, optimizer, 200, draw.batch)


FAMILIES = (
    *sick("residual", growing_stream, spare_layer, one_long_step, frozen_block, rate_too_large),
    *healthy("residual", zero_gains, stochastic_depth, plain),
)  # fmt: skip
