"""Which parts of a model a loss reaches."""

import gc
import weakref

import torch
from torch import nn

from gradwatch.record.signals import parts_reached

MODEL = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("a", "b", "c")})


def test_the_parts_whose_parameters_get_a_gradient() -> None:
    inputs = torch.randn(2, 3)
    through_b = MODEL["c"](MODEL["b"](MODEL["a"](inputs).detach())).sum()
    shared = MODEL["a"](inputs).sum() * MODEL["c"](inputs).sum()
    for loss in (through_b, shared, MODEL["b"](inputs).mean()):
        MODEL.zero_grad()
        before = parts_reached(loss, MODEL)
        loss.backward()
        grown = [
            n for n, part in MODEL.items() if any(p.grad is not None for p in part.parameters())
        ]
        assert before == parts_reached(loss, MODEL) == grown


def test_numbers_reach_nothing_and_large_graphs_are_left_alone() -> None:
    assert parts_reached(torch.tensor(1.0), MODEL) == []
    loss = MODEL["a"](torch.randn(2, 3)).sum()
    for _ in range(6000):
        loss = loss + 1
    assert parts_reached(loss, MODEL) == []


def test_nothing_is_kept_alive() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3)})
    loss = model["a"](torch.randn(2, 3)).sum()
    assert parts_reached(loss, model) == ["a"]
    gone = weakref.ref(model["a"].weight)
    del model, loss
    gc.collect()
    assert gone() is None
