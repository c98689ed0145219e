"""Backward passes and losses before the first step: counted, noted and taken back."""

import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into

from gradwatch.record import Watcher


def passes(watcher: Watcher, model: torch.nn.Module, count: int, *, clear: bool) -> None:
    for step in range(count):
        if clear:
            model.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        watcher.log(loss=loss)


def test_what_is_counted_before_the_first_step() -> None:
    for clear, unused in ((True, 29), (False, 0)):
        model, sink = mlp(), MemorySink()
        optimizer = torch.optim.Adam(model.parameters())
        watcher = watch_into(sink, model, optimizer)
        passes(watcher, model, 30, clear=clear)
        watcher.close()
        told = sink.info["without_step"]
        counts = [told[name] for name in ("backwards", "discarded", "losses", "moved")]
        assert counts == [30, unused, 30, False]
        assert told["optimizers"] == ["Adam"]
        assert sink.logged[0]["backwards"] == 30.0


def test_it_is_noted_in_the_loop_and_taken_back_by_a_step() -> None:
    model, sink = mlp(), MemorySink()
    optimizer = torch.optim.Adam(model.parameters())
    watcher = watch_into(sink, model, optimizer)
    passes(watcher, model, 19, clear=True)
    assert "without_step" not in sink.info
    passes(watcher, model, 2, clear=True)
    assert sink.info["without_step"]["backwards"] == 20
    optimizer.step()
    watcher.close()
    assert sink.info["without_step"] == {}


def test_weights_that_somebody_else_moves() -> None:
    model, sink = mlp(), MemorySink()
    watcher = watch_into(sink, model)
    passes(watcher, model, 10, clear=True)
    model[2].weight.data += 1.0
    passes(watcher, model, 15, clear=True)
    watcher.close()
    assert sink.info["without_step"]["moved"] is True


def test_an_optimizer_that_never_steps_beside_one_that_does() -> None:
    model, sink = mlp(), MemorySink()
    first, second, third = (torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 2, 4))
    watcher = watch_into(sink, model, first, second, third)
    for step in range(40):
        passes(watcher, model, 1, clear=True)
        first.step()
        if step == 35:
            second.step()
    assert [entry["position"] for entry in sink.info["silent_optimizers"]] == [2, 3]
    watcher.close()
    (silent,) = sink.info["silent_optimizers"]
    assert (silent["optimizer"], silent["position"], silent["of"]) == ("SGD", 3, 3)
    assert silent["parameters"] == ["4.weight", "4.bias"]
    assert silent["backwards"] == 40
