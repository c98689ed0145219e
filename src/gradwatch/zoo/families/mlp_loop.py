"""Multilayer perceptrons whose training loop, loss or optimizer is wrong."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from gradwatch.zoo.models import linears, mlp
from gradwatch.zoo.tasks import blobs, curve
from gradwatch.zoo.training import Draw, Setup, Training, one_step, perceptron, sick


def never_zeroed(draw: Draw) -> Training:
    """The loop forgets `zero_grad()`."""
    return perceptron(draw, blobs(draw.data)).train(SGD, draw.rate(1e-3, 1e-2), 120, zero=False)


def softmax_twice(draw: Draw) -> Training:
    """A softmax at the end of the network and another in the loss."""
    task = blobs(draw.data, classes=draw.integer(5, 10))
    net = perceptron(draw, task, last=nn.Softmax(dim=1))
    return net.train(Adam, 3e-3, 150, [net.model[-1], net.model[-2]])


def forgotten_layer(draw: Draw) -> Training:
    """The optimizer never got one of the layers."""
    net = perceptron(draw, blobs(draw.data), draw.integer(2, 4))
    left = draw.pick(linears(net.model))
    return net.train(Adam, 3e-3, 120, [left], given=_all_but(net, left))


def _all_but(net: Setup[nn.Sequential], left: nn.Module) -> list[nn.Parameter]:
    layers = [layer for layer in linears(net.model) if layer is not left]
    return [parameter for layer in layers for parameter in layer.parameters()]


def replaced_head(draw: Draw) -> Training:
    """The head is replaced after the optimizer was made; the optimizer holds the old one."""
    net = perceptron(draw, blobs(draw.data))
    given = list(net.model.parameters())
    net.model[-1] = nn.Linear(linears(net.model)[-1].in_features, net.task.outputs)
    return net.train(Adam, 3e-3, 120, [net.model[-1]], given=given)


def frozen_but_handed(draw: Draw) -> Training:
    """Some layers were frozen and yet given to the optimizer."""
    net = perceptron(draw, blobs(draw.data), 3)
    frozen = draw.pick(linears(net.model)[:3]).requires_grad_(False)
    return net.train(Adam, 3e-3, 120, [frozen])


def rate_zero(draw: Draw) -> Training:
    """The learning rate of one group is zero."""
    net = perceptron(draw, blobs(draw.data), 3)
    stopped = draw.pick(linears(net.model))
    groups = [
        {"params": _all_but(net, stopped)},
        {"params": list(stopped.parameters()), "lr": 0.0},
    ]
    return net.train(Adam, 3e-3, 120, [stopped], given=groups)


class _Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def detached(draw: Draw) -> Training:
    """A `detach()` in the middle: what lies before it gets no gradient."""
    net = perceptron(draw, blobs(draw.data), draw.integer(3, 4))
    cut = 2 * draw.integer(1, 2)
    net.model.insert(cut, _Cut())
    return net.train(Adam, 3e-3, 120, linears(net.model[:cut]))


def wrong_sign(draw: Draw) -> Training:
    """The loss is maximised."""
    net = perceptron(draw, blobs(draw.data))
    rate = draw.rate(0.05, 0.3)
    return net.train(SGD, rate, 200, loss=lambda out, y: -functional.cross_entropy(out, y))


def log_of_zero(draw: Draw) -> Training:
    """A log of probabilities without a guard: sooner or later log 0."""
    net = perceptron(draw, blobs(draw.data, classes=4, apart=3.0), last=nn.Softmax(dim=1))
    at = draw.integer(30, 80)

    def alter(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * -1e4 if step == at else x), y

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return -torch.log(out[torch.arange(len(y)), y]).mean()

    culprits = [net.model[-1], net.model[-2]]
    return net.train(Adam, 3e-3, 120, culprits, loss=loss, alter=alter)


def bad_batch_nan(draw: Draw) -> Training:
    """One batch holds NaN."""
    net = perceptron(draw, blobs(draw.data))
    at = draw.integer(20, 80)

    def alter(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step == at:
            x = x.clone()
            x[0, 0] = float("nan")
        return x, y

    return net.train(Adam, 3e-3, 120, ["0"], alter=alter)


def root_of_zero(draw: Draw) -> Training:
    """A square root whose derivative at zero is infinite: forward fine, backward NaN."""
    net = perceptron(draw, curve(draw.data))
    at = draw.integer(20, 80)

    class Norm(nn.Module):
        count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            bad = x * 0.0 if self.count > at else x
            return x + bad.pow(2).sum(1, keepdim=True).sqrt() * 0.1

    net.model.insert(2, Norm())
    return net.train(Adam, 1e-3, 120, ["0", "2"])


def one_bad_batch(draw: Draw) -> Training:
    """Single batches a hundred times too large."""
    net = perceptron(draw, curve(draw.data))
    at = {draw.integer(60, 90), draw.integer(110, 140)}
    factor = draw.rate(60, 200)
    rate = 1e-6 * draw.rate(1, 3) + 0.02
    return net.train(
        SGD, rate, 180, clip=0.5, alter=lambda step, x, y: (factor * x if step in at else x, y)
    )


def one_long_step(draw: Draw) -> Training:
    """The learning rate jumps for a single step."""
    net = perceptron(draw, blobs(draw.data))
    return net.train(Adam, 5e-3, 200, schedule=one_step(draw.integer(80, 120), draw.rate(80, 200)))


def decayed_away(draw: Draw) -> Training:
    """Weight decay pulls the weights to nothing."""
    net = perceptron(draw, blobs(draw.data), 3)
    return net.train(partial(AdamW, weight_decay=draw.rate(20, 60)), 2e-3, 250)


def learnt_by_heart(draw: Draw) -> Training:
    """Forty noisy examples and a network that can remember them all."""
    task = blobs(draw.data, noise=0.5)
    net = Setup(draw, task, mlp([task.inputs, 128, 128, task.outputs]), batch=20)
    dataset = task.sample(40, draw.data)
    return net.train(Adam, draw.rate(2e-3, 5e-3), 250, dataset=dataset, validate_every=10)


def half_precision(draw: Draw) -> Training:
    """bfloat16 weights and steps below their last bit."""
    net = perceptron(draw, blobs(draw.data))
    net.model.bfloat16()
    rate = draw.rate(1e-4, 4e-4)
    return net.train(SGD, rate, 150, alter=lambda step, x, y: (x.bfloat16(), y))


def large_epsilon(draw: Draw) -> Training:
    """Adam with an ε far above the gradients."""
    net = perceptron(draw, blobs(draw.data))
    return net.train(partial(Adam, eps=draw.rate(30, 300)), 1e-3, 150)


FAMILIES = sick(
    "mlp", never_zeroed, softmax_twice, forgotten_layer, replaced_head, frozen_but_handed,
    rate_zero, detached, wrong_sign, log_of_zero, bad_batch_nan, root_of_zero, one_bad_batch,
    one_long_step, decayed_away, learnt_by_heart, half_precision, large_epsilon,
)  # fmt: skip
