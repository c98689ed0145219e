"""The states of a step, as the drawing at `StepController` has them."""

from collections.abc import Callable
from typing import Any

import torch
from tests.record.loops import loss_of, mlp
from tests.record.sinks import MemorySink, watch_into

from gradwatch.record import Watcher
from gradwatch.record.steps import StepState


class Asking(torch.optim.Optimizer):
    """Asks for the state inside its step, before and after a closure runs."""

    ask: Callable[[], StepState]
    inside: list[StepState]

    def step(self, closure: Any = None) -> Any:
        self.inside = [self.ask()]
        if closure is not None:
            closure()
            self.inside.append(self.ask())
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.01 * parameter.grad


def watched(every: int = 1) -> tuple[torch.nn.Module, Asking, Watcher]:
    model = mlp()
    optimizer = Asking(model.parameters(), {})
    watcher = watch_into(MemorySink(), model, optimizer, every=every)
    optimizer.ask = lambda: watcher.controller.state
    return model, optimizer, watcher


def test_a_backward_and_a_step() -> None:
    model, optimizer, watcher = watched()
    for step in range(3):
        assert watcher.controller.state is StepState.WAITING
        loss_of(model, step).backward()
        assert watcher.controller.state is StepState.BACKWARD
        optimizer.step()
        assert optimizer.inside == [StepState.STEPPING]
    watcher.close()


def test_a_backward_in_a_closure() -> None:
    model, optimizer, watcher = watched()
    for step in range(3):
        optimizer.step(lambda step=step: loss_of(model, step).backward())
        assert optimizer.inside == [StepState.CLOSURE, StepState.STEPPING]
        assert watcher.controller.state is StepState.WAITING
    watcher.close()


def test_steps_that_record_nothing_are_idle_until_the_next_that_does() -> None:
    model, optimizer, watcher = watched(every=8)
    states = []
    for step in range(10):
        loss_of(model, step).backward()
        states.append(watcher.controller.state)
        optimizer.step()
    idle = [StepState.IDLE] * 7
    assert states == [StepState.BACKWARD, *idle, StepState.BACKWARD, StepState.IDLE]
    watcher.step()  # the user steps: the idle steps are over
    assert watcher.controller.clock.number == 10
    watcher.close()


def test_a_step_told_by_the_user() -> None:
    model = mlp()
    watcher = watch_into(MemorySink(), model)
    loss_of(model, 0).backward()
    assert watcher.controller.state is StepState.BACKWARD
    watcher.step()
    assert watcher.controller.state is StepState.WAITING
    watcher.close()
