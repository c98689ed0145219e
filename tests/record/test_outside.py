"""Weights that somebody else than the optimizer changes between two steps."""

import numpy as np
import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into
from torch import nn


def train(change, steps: int = 12, every: int = 1) -> tuple[MemorySink, nn.Sequential]:  # type: ignore[no-untyped-def]
    """`change(model, step)` runs after each step."""
    model, sink = mlp(), MemorySink()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer, every=every)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        change(model, step)
    watcher.close()
    return sink, model


def seen(sink: MemorySink) -> list[int]:
    return sorted(step for step, values in sink.logged.items() if "outside_change" in values)


def test_the_optimizers_own_updates_are_none() -> None:
    sink, _ = train(lambda model, step: None)
    assert not seen(sink)
    assert sink.info["weights_compared"]


@pytest.mark.parametrize("write", ["init", "data", "load"])
def test_how_much_a_layer_was_changed(write: str) -> None:
    truth: list[float] = []

    def change(model: nn.Sequential, step: int) -> None:
        if step != 5:
            return
        was = model[2].weight.detach().clone()
        if write == "init":
            nn.init.kaiming_uniform_(model[2].weight)
        elif write == "data":
            model[2].weight.data.normal_()
        else:
            state = model.state_dict()
            model.load_state_dict({**state, "2.weight": -state["2.weight"]})
        now = model[2].weight.detach()
        truth.append(float((now - was).norm() / max(was.norm(), now.norm())))

    sink, _ = train(change)
    assert seen(sink) == [6]
    # of 9 × 12 elements 64 are looked at
    assert sink.logged[6]["outside_change"] == pytest.approx(truth[0], rel=0.35)
    (entry,) = sink.info["outside_changes"]
    assert (entry["step"], entry["names"], entry["compared"]) == (6, ["2.weight"], 3)


@pytest.mark.parametrize("layer", [0, 7, 29])
def test_any_layer_of_a_deep_network(layer: int) -> None:
    torch.manual_seed(0)
    model, sink = nn.Sequential(*[nn.Linear(16, 16) for _ in range(30)]), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer, every=1)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        if step == 3:
            nn.init.normal_(model[layer].weight)
    watcher.close()
    assert seen(sink) == [4]
    assert sink.info["outside_changes"][0]["names"] == [f"{layer}.weight"]


def test_what_is_put_back_before_the_next_step_is_no_change() -> None:
    def change(model: nn.Sequential, step: int) -> None:
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model.load_state_dict(kept)

    assert not seen(train(change)[0])


def test_only_beside_recorded_steps_is_anything_seen() -> None:
    def change(model: nn.Sequential, step: int) -> None:
        if step in (4, 7):
            nn.init.normal_(model[0].weight)

    sink, _ = train(change, steps=12, every=4)
    assert seen(sink) == [8], "step 8 is recorded, step 5 is not"


def test_before_the_first_step() -> None:
    model, sink = mlp(), MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch_into(sink, model, optimizer)
    nn.init.zeros_(model[0].weight)
    loss_of(model, 0).backward()
    optimizer.step()
    watcher.close()
    assert sink.logged[0]["outside_change"] == 1.0


def test_optimizers_that_share_a_weight() -> None:
    model, sink = mlp(), MemorySink()
    first = torch.optim.SGD(model.parameters(), 0.1)
    second = torch.optim.Adam([model[0].weight, model[2].weight], 0.1)
    watcher = watch_into(sink, model, first, second)
    for step in range(6):
        loss_of(model, step).backward()
        first.step()
        second.step()
    watcher.close()
    assert not seen(sink)


def test_in_half_precision_and_with_nothing_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
    sink = MemorySink()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watcher = watch_into(sink, model, optimizer)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        if step == 1:
            with torch.no_grad():
                model[0].weight.mul_(3.0)
    watcher.close()
    assert seen(sink) == [2]
    assert sink.logged[2]["outside_change"] == pytest.approx(2 / 3, abs=0.01)
    assert np.isfinite(sink.info["outside_changes"][0]["change"])
