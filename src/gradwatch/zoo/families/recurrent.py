"""Recurrent networks."""

from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Gated, Recurrent
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import sequences
from gradwatch.zoo.training import Training


def saturated_state(draw: Draw) -> Training:
    """Recurrent weights so large that the state is always at its bounds."""
    task = sequences(draw.data)
    model = Recurrent(task.inputs, 24, task.outputs)
    factor = draw.rate(15, 40)
    model.again.weight.data.mul_(factor)
    model.enter.weight.data.mul_(factor)
    optimizer = SGD(model.parameters(), 1e-3)
    return Training(model, task, optimizer, 80, 24, ("enter", "again", "act"))


def rate_too_small(draw: Draw) -> Training:
    """Nothing moves."""
    task = sequences(draw.data)
    model = Gated(task.inputs, 24, task.outputs, lstm=draw.pick((True, False)))
    optimizer = SGD(model.parameters(), draw.rate(1e-7, 1e-6))
    return Training(model, task, optimizer, 100, 24)


def forgotten_cell(draw: Draw) -> Training:
    """Only the head was given to the optimizer."""
    task = sequences(draw.data)
    model = Gated(task.inputs, 24, task.outputs, lstm=draw.pick((True, False)))
    optimizer = Adam(model.head.parameters(), 3e-3)
    return Training(model, task, optimizer, 100, 24, ("cell",))


def never_zeroed(draw: Draw) -> Training:
    """The loop forgets `zero_grad()`."""
    task = sequences(draw.data)
    model = Gated(task.inputs, 24, task.outputs, lstm=False)
    optimizer = SGD(model.parameters(), draw.rate(3e-3, 2e-2))
    return Training(model, task, optimizer, 100, 24, zero=False)


class _Growing(Recurrent):
    """The same cell without its bound."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__(inputs, width, outputs)
        self.act = nn.ReLU()  # type: ignore[assignment]


def exploding_in_time(draw: Draw) -> Training:
    """A ReLU cell whose recurrent weight amplifies at every moment."""
    task = sequences(draw.data, length=16)
    model = _Growing(task.inputs, 24, task.outputs)
    model.again.weight.data.mul_(draw.rate(3.0, 5.0))
    optimizer = SGD(model.parameters(), 1e-4)
    return Training(model, task, optimizer, 80, 24, ("again",), clip=1.0)


def gru(draw: Draw) -> Training:
    """A GRU with Adam."""
    task = sequences(draw.data)
    model = Gated(task.inputs, draw.pick((16, 24, 32)), task.outputs, lstm=False)
    return Training(model, task, Adam(model.parameters(), draw.rate(3e-3, 1e-2)), 150, 32)


def lstm(draw: Draw) -> Training:
    """An LSTM with Adam and clipping."""
    task = sequences(draw.data)
    model = Gated(task.inputs, draw.pick((16, 24, 32)), task.outputs, lstm=True)
    optimizer = Adam(model.parameters(), draw.rate(3e-3, 1e-2))
    return Training(model, task, optimizer, 150, 32, clip=1.0)


def tanh_cell(draw: Draw) -> Training:
    """A plain cell with an orthogonal recurrent weight."""
    task = sequences(draw.data, length=8)
    model = Recurrent(task.inputs, 24, task.outputs)
    model.enter.weight.data.mul_(0.5)
    return Training(model, task, Adam(model.parameters(), 2e-3), 150, 32, clip=1.0)


FAMILIES = (
    *sick("recurrent", saturated_state, rate_too_small, forgotten_cell, never_zeroed,
          exploding_in_time),
    *healthy("recurrent", gru, lstm, tanh_cell),
)  # fmt: skip
