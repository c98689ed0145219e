"""Networks on token embeddings."""

from typing import Any

from torch import nn
from torch.optim import SGD, Adam

from gradwatch.zoo.models import Bag
from gradwatch.zoo.recipe import Draw, healthy, sick
from gradwatch.zoo.tasks import tokens
from gradwatch.zoo.training import Training


def unused_rows(draw: Draw) -> Training:
    """A vocabulary several times larger than what ever occurs."""
    used = draw.integer(20, 40)
    task = tokens(draw.data, vocabulary=used * draw.integer(3, 10), used=used)
    model = Bag(task.inputs, 16, task.outputs)
    return Training(model, task, Adam(model.parameters(), 5e-3), 150, draw.batch, ("embed",))


def rate_zero(draw: Draw) -> Training:
    """The embedding's group has learning rate zero."""
    task = tokens(draw.data)
    model = Bag(task.inputs, 16, task.outputs)
    rest = [*model.hidden.parameters(), *model.head.parameters()]
    groups: list[dict[str, Any]] = [
        {"params": list(model.embed.parameters()), "lr": 0.0},
        {"params": rest},
    ]
    return Training(model, task, Adam(groups, 5e-3), 120, draw.batch, ("embed",))


def constant_table(draw: Draw) -> Training:
    """The hidden layer starts constant: every unit is the same."""
    task = tokens(draw.data)
    model = Bag(task.inputs, 16, task.outputs)
    nn.init.constant_(model.hidden.weight, draw.rate(0.01, 0.1))
    nn.init.zeros_(model.hidden.bias)
    nn.init.constant_(model.head.weight, 0.1)
    return Training(
        model, task, SGD(model.parameters(), 0.5), 120, draw.batch, ("hidden", "head")
    )  # fmt: skip


def rate_too_small(draw: Draw) -> Training:
    """SGD that never reaches the embedding in the time given."""
    task = tokens(draw.data)
    model = Bag(task.inputs, 16, task.outputs)
    return Training(model, task, SGD(model.parameters(), draw.rate(1e-7, 1e-6)), 120, draw.batch)


def rare_words(draw: Draw) -> Training:
    """A Zipf-like vocabulary: many rows are rare, new ones are still being met."""
    task = tokens(draw.data, vocabulary=draw.integer(400, 1200), tail=1.0)
    model = Bag(task.inputs, 16, task.outputs)
    return Training(model, task, Adam(model.parameters(), 1e-2), 200, draw.batch)


def plain(draw: Draw) -> Training:
    """A small vocabulary, all of it used."""
    task = tokens(draw.data, vocabulary=draw.integer(15, 40))
    model = Bag(task.inputs, 16, task.outputs)
    return Training(model, task, Adam(model.parameters(), 5e-3), 200, draw.batch)


FAMILIES = (
    *sick("embedding", unused_rows, rate_zero, constant_table, rate_too_small),
    *healthy("embedding", rare_words, plain),
)  # fmt: skip
