"""The optimizer's hooks: torch's global ones, so that no optimizer is missed or altered.

The global hooks see every optimizer of the process, also one that was made, replaced or wrapped
after `watch`, and nothing is stored in any of them. There is one pair for all watchers: torch walks
its table of global hooks in every step, and to change the table while another thread is in a step
would end that step with an error.
"""

import threading
from time import perf_counter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradwatch.record.steps import StepController

_lock = threading.RLock()  # a model may be collected, and its watcher stopped, at any allocation
# Replaced as a whole and never changed: a step in another thread may be walking through it.
_active: tuple[StepController, ...] = ()
_handles: list[Any] = []


def start(controller: StepController) -> None:
    """From now on tell it of the step of every optimizer in the process."""
    global _active
    with _lock:
        _active = (*_active, controller)
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_pre))
            _handles.append(register_optimizer_step_post_hook(_post))


def stop(controller: StepController) -> None:
    """Tell it nothing any more; twice does nothing."""
    global _active
    with _lock:
        _active = tuple(other for other in _active if other is not controller)
        here = threading.current_thread()
        # With other threads about, which may be in a step, the hooks stay and do nothing.
        if not _active and all(t is here or t.daemon for t in threading.enumerate()):
            while _handles:
                _handles.pop().remove()


# Compiled steps run the hooks too; disabled, they are not traced into the graph. Steps that record
# nothing pass through here as well, so these two make no call for them but of the clocks.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _pre(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for controller in _active:
        began, clock, guard = perf_counter(), controller.clock, controller.guard
        if clock.idle_left and clock.idle_optimizer() is optimizer:
            clock.number += 1
            guard.timer.spent += perf_counter() - began
        else:
            closure = args[1] if len(args) > 1 else kwargs.get("closure")  # after the optimizer
            guard.run(controller.before_step, optimizer, closure)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _post(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for controller in _active:
        began, clock, guard = perf_counter(), controller.clock, controller.guard
        if clock.idle_left and clock.idle_optimizer() is optimizer:
            clock.idle_left -= 1
            guard.timer.spent += perf_counter() - began
            if not clock.idle_left:
                guard.run(controller.end_idle)
        else:
            guard.run(controller.after_step, optimizer)


def forget_all() -> None:
    """In a forked child: nothing is called, and the lock is not what another thread left behind."""
    global _active, _lock
    _active, _lock = (), threading.RLock()


def bare_optimizer(thing: Any) -> Optimizer | None:
    """The innermost torch optimizer: wrappers keep it in `.optimizer`.

    Some of them (accelerate's) are optimizers themselves, and never run the hooks given to them.
    """
    innermost = None
    for _ in range(4):
        if isinstance(thing, Optimizer):
            innermost = thing
        thing = getattr(thing, "optimizer", None)
    return innermost
