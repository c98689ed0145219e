"""Numbers logged during idle steps."""

import gc
import math

import pytest
import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into

from gradwatch.record import Watcher
from gradwatch.record.logs import MOST_KEPT


def stretch(watcher: Watcher) -> None:
    """As if the budget allowed next to nothing."""
    pace = watcher.controller.pace
    pace.k, pace.choose = 1 << 12, lambda *_: 1 << 12  # type: ignore[method-assign]


def test_buffered_numbers_are_handed_over_many_at_a_time_and_lose_nothing() -> None:
    sink, model = MemorySink(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer, every=None)
    seen = []
    for step in range(40 + 3 * MOST_KEPT):
        if step == 20:
            stretch(watcher)
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        watcher.log(loss=loss, step_twice=2 * step)
        seen.append(loss.item())
        if step == 19 + MOST_KEPT // 4:  # some are waiting now
            assert watcher.controller.clock.idle_left
            assert len(sink.logged) < step
            assert watcher.flush()
            assert [sink.logged[s]["loss"] for s in range(step + 1)] == seen
    watcher.close()
    assert [sink.logged[s]["loss"] for s in range(len(seen))] == seen
    assert all(sink.logged[s]["step_twice"] == 2 * s for s in range(len(seen)))


@pytest.mark.parametrize("odd", [math.nan, math.inf, "word", "3.5", torch.ones(3), None])
def test_what_is_no_plain_number_goes_the_long_way(odd: object) -> None:
    sink, model = MemorySink(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer, every=None)
    stretch(watcher)
    for step in range(60):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        watcher.log(loss=odd if step == 50 else 1.0)
        if step == 50:
            assert watcher.controller.clock.idle_left
            if isinstance(odd, float):
                assert not math.isfinite(sink.logged[step]["loss"])
                assert sink.logged[step]["loss_nonfinite"] == 1.0
            else:  # no number at all: a loss that is not finite would be a false alarm
                assert step not in sink.logged
    assert watcher.recording
    watcher.close()
    assert sink.logged[59]["loss"] == 1.0


def test_a_model_that_dies_in_idle_steps_loses_no_number() -> None:
    sink, model = MemorySink(), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watcher = watch_into(sink, model, optimizer, every=None)
    stretch(watcher)
    for step in range(40):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        watcher.log(loss=float(step))
    assert watcher.controller.clock.idle_left
    assert 39 not in sink.logged  # it waits
    del model, optimizer
    gc.collect()
    assert sink.closed
    assert [sink.logged[step]["loss"] for step in range(40)] == [float(s) for s in range(40)]
