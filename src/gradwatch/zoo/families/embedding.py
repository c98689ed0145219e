"""Networks on token embeddings."""

from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Bag
from gradwatch.zoo.tasks import Task, tokens
from gradwatch.zoo.training import Draw, Setup, Training, healthy, sick


def _bag(draw: Draw, task: Task) -> Setup[Bag]:
    return Setup(draw, task, Bag(task.inputs, 16, task.outputs))


def unused_rows(draw: Draw) -> Training:
    """A vocabulary several times larger than what ever occurs."""
    used = draw.integer(20, 40)
    net = _bag(draw, tokens(draw.data, vocabulary=used * draw.integer(3, 10), used=used))
    return net.train(Adam, 5e-3, 150, ["embed"])


def rate_zero(draw: Draw) -> Training:
    """The embedding's group has learning rate zero."""
    net = _bag(draw, tokens(draw.data))
    groups = [
        {"params": list(net.model.embed.parameters()), "lr": 0.0},
        {"params": [*net.model.hidden.parameters(), *net.model.head.parameters()]},
    ]
    return net.train(Adam, 5e-3, 120, ["embed"], given=groups)


def constant_table(draw: Draw) -> Training:
    """The hidden layer starts constant: every unit is the same."""
    net = _bag(draw, tokens(draw.data))
    nn.init.constant_(net.model.hidden.weight, draw.rate(0.01, 0.1))
    nn.init.zeros_(net.model.hidden.bias)
    nn.init.constant_(net.model.head.weight, 0.1)
    return net.train(SGD, 0.5, 120, ["hidden", "head"])


def rate_too_small(draw: Draw) -> Training:
    """SGD that never reaches the embedding in the time given."""
    return _bag(draw, tokens(draw.data)).train(SGD, draw.rate(1e-7, 1e-6), 120)


def rare_words(draw: Draw) -> Training:
    """A Zipf-like vocabulary: many rows are rare, new ones are still being met."""
    task = tokens(draw.data, vocabulary=draw.integer(400, 1200), tail=1.0)
    return _bag(draw, task).train(Adam, 1e-2, 200)


def plain(draw: Draw) -> Training:
    """A small vocabulary, all of it used."""
    task = tokens(draw.data, vocabulary=draw.integer(15, 40))
    return _bag(draw, task).train(Adam, 5e-3, 200)


FAMILIES = (
    *sick("embedding", unused_rows, rate_zero, constant_table, rate_too_small),
    *healthy("embedding", rare_words, plain),
)  # fmt: skip
