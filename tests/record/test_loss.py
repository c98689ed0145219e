"""What is known of a loss from its graph: its kind, and which parts of a model it reaches."""

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradwatch.record.loss import describe_loss, parts_reached

torch.set_num_threads(1)
LABELS = torch.tensor([0, 3, 1, 4, 2, 2])
TEN = math.log(10)


def logits() -> Tensor:
    torch.manual_seed(0)
    return nn.Linear(4, 10)(torch.randn(6, 4))


def ce(classes: int = 10, fed: str = "logits", *, scaled: bool = False) -> dict[str, Any]:
    told = {"loss_kind": "cross_entropy", "classes": classes, "loss_fed_with": fed}
    return told if scaled else told | {"chance": pytest.approx(math.log(classes))}


CASES: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "cross entropy": (lambda x: F.cross_entropy(x, LABELS), ce()),
    "weighted": (lambda x: F.cross_entropy(x, LABELS, weight=torch.ones(10)), ce()),
    "smoothed": (lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1), ce()),
    "soft targets": (lambda x: F.cross_entropy(x, torch.full((6, 10), 0.1)), ce()),
    "of probabilities": (
        lambda x: F.cross_entropy(x.softmax(-1), LABELS),
        ce(fed="probabilities"),
    ),
    "of reshaped probabilities": (
        lambda x: F.cross_entropy(x.softmax(-1).view(2, 3, 10).view(6, 10), LABELS),
        ce(fed="probabilities"),
    ),
    "nll of log softmax": (lambda x: F.nll_loss(F.log_softmax(x, 1), LABELS), ce()),
    "nll of logs": (
        lambda x: F.nll_loss(x.softmax(1).log(), LABELS),
        {"loss_kind": "nll", "classes": 10, "chance": pytest.approx(TEN)},
    ),
    "softmax over the batch": (
        lambda x: F.nll_loss(F.log_softmax(x, 0), LABELS),
        ce() | {"softmax_over": 6},
    ),
    "log of softmax over the batch": (
        lambda x: F.nll_loss(x.softmax(0).log(), LABELS),
        {"loss_kind": "nll", "classes": 10, "chance": pytest.approx(TEN), "softmax_over": 6},
    ),
    "without the last class": (
        lambda x: F.nll_loss(F.log_softmax(x, 1)[:, :-1], LABELS),
        ce(),
    ),
    "for an accumulation of 4": (lambda x: F.cross_entropy(x, LABELS) / 4, ce(scaled=True)),
    "halved": (lambda x: 0.5 * F.cross_entropy(x, LABELS), ce(scaled=True)),
    "own mean": (lambda x: F.cross_entropy(x, LABELS, reduction="none").mean(), ce()),
    "summed": (
        lambda x: F.cross_entropy(x, LABELS, reduction="sum"),
        {
            "loss_kind": "cross_entropy",
            "classes": 10,
            "loss_fed_with": "logits",
            "loss_reduction": "sum",
        },
    ),
    "per pixel": (
        lambda x: F.cross_entropy(x.view(6, 5, 2, 1), torch.zeros(6, 2, 1, dtype=torch.long)),
        ce(5),
    ),
    "language": (lambda x: F.cross_entropy(x.view(2, 3, 10).flatten(0, 1), LABELS), ce()),
    "bce": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(6, 10)),
        {"loss_kind": "bce", "classes": 2, "chance": pytest.approx(math.log(2))},
    ),
    "bce of logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(6, 10)),
        {
            "loss_kind": "bce_logits",
            "classes": 2,
            "chance": pytest.approx(math.log(2)),
            "loss_fed_with": "logits",
        },
    ),
    "bce of sigmoids": (
        lambda x: F.binary_cross_entropy_with_logits(x.sigmoid(), torch.ones(6, 10)),
        {
            "loss_kind": "bce_logits",
            "classes": 2,
            "chance": pytest.approx(math.log(2)),
            "loss_fed_with": "probabilities",
        },
    ),
    "samples of a batch": (
        lambda x: F.cross_entropy(x @ x.T / 0.1, torch.arange(6)),
        {
            "loss_kind": "cross_entropy",
            "classes": 6,
            "loss_fed_with": "logits",
            "classes_are_samples": True,
        },
    ),
    "mse": (lambda x: F.mse_loss(x, torch.zeros(6, 10)), {"loss_kind": "mse"}),
    "mse by hand": (lambda x: ((x - 1) ** 2).mean(), {"loss_kind": "mse"}),
    "summed mse": (
        lambda x: F.mse_loss(x, torch.zeros(6, 10), reduction="sum"),
        {"loss_kind": "mse", "loss_reduction": "sum"},
    ),
    "summed mse by hand": (
        lambda x: ((x - 1) ** 2).sum(),
        {"loss_kind": "mse", "loss_reduction": "sum"},
    ),
    "mean of sums by hand": (lambda x: ((x - 1) ** 2).sum(1).mean(), {"loss_kind": "mse"}),
    "l1": (lambda x: F.l1_loss(x, torch.zeros(6, 10)), {"loss_kind": "l1"}),
    "huber": (lambda x: F.huber_loss(x, torch.zeros(6, 10)), {"loss_kind": "huber"}),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, torch.zeros(6, 10)), {"loss_kind": "smooth_l1"}),
    "two losses": (
        lambda x: F.cross_entropy(x, LABELS) + F.mse_loss(x, torch.zeros(6, 10)),
        {"loss_kind": "sum"},
    ),
    "unknown": (lambda x: x.exp().sum(), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_losses(case: str) -> None:
    make, expected = CASES[case]
    assert describe_loss(make(logits())) == expected


def test_as_many_samples_as_classes() -> None:
    torch.manual_seed(0)
    assert describe_loss(F.cross_entropy(nn.Linear(4, 6)(torch.randn(6, 4)), LABELS)) == ce(6)


def test_after_the_backward_too() -> None:
    loss = F.cross_entropy(logits(), LABELS)
    loss.backward()
    assert describe_loss(loss) == ce()


@pytest.mark.parametrize("value", [0.5, torch.tensor(0.5), None])
def test_a_number_says_nothing(value: object) -> None:
    assert describe_loss(value) == {}


def test_a_checkpoint_behind_the_loss_is_not_run() -> None:
    calls = [0]

    def inner(x: Tensor) -> Tensor:
        calls[0] += 1
        return F.cross_entropy(x.softmax(-1), LABELS) * 0.5

    described = describe_loss(checkpoint(inner, logits(), use_reentrant=False))
    assert calls == [1]
    assert described == ce(fed="probabilities", scaled=True)


# -- what a loss reaches ---------------------------------------------------------------------------

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
