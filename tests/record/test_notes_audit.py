"""What the optimizers were given, held against what the model has."""

import copy

import torch
from tests.record.sinks import MemorySink, watch_into
from torch import nn

from gradwatch.record.notes import audit
from gradwatch.run import EventKind


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_all_is_well() -> None:
    model = net()
    report = audit(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert report == {
        "unknown_to_optimizers": [],
        "in_no_watched_module": [],
        "frozen_but_handed_over": [],
    }


def test_a_layer_no_optimizer_knows() -> None:
    model = net()
    optimizers = [torch.optim.SGD([model[0].weight], lr=0.1), torch.optim.Adam([model[0].bias])]
    sink = MemorySink()
    watch_into(sink, model, *optimizers).close()
    assert sink.info["audit"]["unknown_to_optimizers"] == ["1.weight", "1.bias"]
    (event,) = (event for event in sink.events if event.kind is EventKind.AUDIT)
    assert event.step == 0
    assert "1.weight, 1.bias" in event.text
    assert event.data["names"] == ["1.weight", "1.bias"]


def test_an_optimizer_of_a_copy() -> None:
    model = net()
    other = copy.deepcopy(model)
    report = audit(model, [torch.optim.SGD(other.parameters(), lr=0.1)])
    assert len(report["in_no_watched_module"]) == 4
    assert report["in_no_watched_module"][0] == "group 0, parameter 0 (4, 4)"
    assert len(report["unknown_to_optimizers"]) == 4
    sink = MemorySink()
    watch_into(sink, model, torch.optim.SGD(other.parameters(), lr=0.1)).close()
    assert any("and 1 more" in event.text for event in sink.events)


def test_frozen_but_handed_over_and_frozen_on_purpose() -> None:
    model = net()
    model[0].requires_grad_(False)
    report = audit(model, [torch.optim.SGD(model[0].parameters(), lr=0.1)])
    assert report["frozen_but_handed_over"] == ["0.weight", "0.bias"]
    model = net()
    model[0].requires_grad_(False)
    report = audit(model, [torch.optim.SGD(model[1].parameters(), lr=0.1)])
    assert not any(report.values())


def test_a_tied_weight_is_one_parameter() -> None:
    model = net()
    model[1].weight = model[0].weight
    report = audit(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    assert not any(report.values())


def test_what_is_noted_of_each_optimizer() -> None:
    model, other, sink = net(), net(), MemorySink()
    groups = [
        {"params": [model[0].weight], "weight_decay": 0.1},
        {"params": [model[0].bias], "weight_decay": 0.0},
    ]
    ours = torch.optim.AdamW(groups)
    theirs = torch.optim.SGD([other[0].weight, model[1].weight], lr=0.1)
    watch_into(sink, model, ours, theirs).close()
    assert sink.info["optimizers"] == [
        {
            "optimizer": "AdamW",
            "parameters": 2,
            "foreign": 0,
            "groups": [{"group": 0, "weight_decay": 0.1}, {"group": 1, "weight_decay": 0.0}],
        },
        {
            "optimizer": "SGD",
            "parameters": 2,
            "foreign": 1,
            "groups": [{"group": 2, "weight_decay": 0.0}],
        },
    ]
