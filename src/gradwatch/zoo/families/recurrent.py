"""Recurrent networks."""

from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Gated, Recurrent
from gradwatch.zoo.tasks import sequences
from gradwatch.zoo.training import Draw, Setup, Training, healthy, sick


def _recurrent(draw: Draw, kind: type[Recurrent] = Recurrent, length: int = 12) -> Setup[Recurrent]:
    task = sequences(draw.data, length=length)
    return Setup(draw, task, kind(task.inputs, 24, task.outputs), batch=24)


def _gated(draw: Draw, *, lstm: bool, width: int = 24, batch: int = 24) -> Setup[Gated]:
    task = sequences(draw.data)
    return Setup(draw, task, Gated(task.inputs, width, task.outputs, lstm=lstm), batch)


def saturated_state(draw: Draw) -> Training:
    """Recurrent weights so large that the state is always at its bounds."""
    net = _recurrent(draw)
    factor = draw.rate(15, 40)
    net.model.again.weight.data.mul_(factor)
    net.model.enter.weight.data.mul_(factor)
    return net.train(SGD, 1e-3, 80, ["enter", "again", "act"])


def rate_too_small(draw: Draw) -> Training:
    """Nothing moves."""
    return _gated(draw, lstm=draw.pick((True, False))).train(SGD, draw.rate(1e-7, 1e-6), 100)


def forgotten_cell(draw: Draw) -> Training:
    """Only the head was given to the optimizer."""
    net = _gated(draw, lstm=draw.pick((True, False)))
    return net.train(Adam, 3e-3, 100, ["cell"], given=list(net.model.head.parameters()))


def never_zeroed(draw: Draw) -> Training:
    """The loop forgets `zero_grad()`."""
    return _gated(draw, lstm=False).train(SGD, draw.rate(3e-3, 2e-2), 100, zero=False)


class _Growing(Recurrent):
    """The same cell without its bound."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__(inputs, width, outputs)
        self.act = nn.ReLU()  # type: ignore[assignment]


def exploding_in_time(draw: Draw) -> Training:
    """A ReLU cell whose recurrent weight amplifies at every moment."""
    net = _recurrent(draw, _Growing, length=16)
    net.model.again.weight.data.mul_(draw.rate(3.0, 5.0))
    return net.train(SGD, 1e-4, 80, ["again"], clip=1.0)


def gru(draw: Draw) -> Training:
    """A GRU with Adam."""
    net = _gated(draw, lstm=False, width=draw.pick((16, 24, 32)), batch=32)
    return net.train(Adam, draw.rate(3e-3, 1e-2), 150)


def lstm(draw: Draw) -> Training:
    """An LSTM with Adam and clipping."""
    net = _gated(draw, lstm=True, width=draw.pick((16, 24, 32)), batch=32)
    return net.train(Adam, draw.rate(3e-3, 1e-2), 150, clip=1.0)


def tanh_cell(draw: Draw) -> Training:
    """A plain cell with an orthogonal recurrent weight."""
    net = _recurrent(draw, length=8)
    net.model.enter.weight.data.mul_(0.5)
    return net.train(Adam, 2e-3, 150, batch=32, clip=1.0)


FAMILIES = (
    *sick("recurrent", saturated_state, rate_too_small, forgotten_cell, never_zeroed,
          exploding_in_time),
    *healthy("recurrent", gru, lstm, tanh_cell),
)  # fmt: skip
