"""The optimizer's hooks: torch's global ones, so that no optimizer is missed or altered.

The global hooks see every optimizer of the process, also one that was made, replaced or wrapped
after `watch`, and nothing is stored in any of them. There is one pair for all watchers: torch walks
its table of global hooks in every step, and to change the table while another thread is in a step
would end that step with an error.
"""

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradwatch.record.barrier import Barrier
from gradwatch.record.doze import Doze

Beat = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]

_lock = threading.RLock()  # a model may be collected, and its watcher stopped, at any allocation
_beating: tuple["Heartbeat", ...] = ()
_handles: list[Any] = []


class Heartbeat:
    """Calls `before` and `after` around the step of every optimizer in the process."""

    def __init__(
        self, barrier: Barrier, before: Beat, after: Beat, doze: Doze, wake: Callable[[], None]
    ) -> None:
        self.barrier, self.before, self.after = barrier, before, after
        self.doze, self.wake = doze, wake
        _start(self)

    def stop(self) -> None:
        """Beat no more; twice does nothing."""
        _stop(self)


# Compiled steps run the hooks too; disabled, they are not traced into the graph.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _pre(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for beat in _beating:
        start = perf_counter()
        if beat.doze.passes(optimizer):
            beat.doze.clock.number += 1
            beat.barrier.meter.spent += perf_counter() - start
        else:
            beat.barrier.run(beat.before, optimizer, args, kwargs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _post(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for beat in _beating:
        start, doze = perf_counter(), beat.doze
        if doze.passes(optimizer):
            doze.left -= 1
            beat.barrier.meter.spent += perf_counter() - start
            if not doze.left:
                beat.barrier.run(beat.wake)
        else:
            beat.barrier.run(beat.after, optimizer, args, kwargs)


def _start(beat: Heartbeat) -> None:
    global _beating
    with _lock:
        _beating = (*_beating, beat)
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_pre))
            _handles.append(register_optimizer_step_post_hook(_post))


def _stop(beat: Heartbeat) -> None:
    global _beating
    with _lock:
        _beating = tuple(other for other in _beating if other is not beat)
        # With other threads about, which may be in a step, the hooks stay and do nothing.
        if not _beating and not _other_threads():
            for handle in _handles:
                handle.remove()
            _handles.clear()


def fall_silent() -> None:
    """In a forked child: nothing beats, and the lock is not what another thread left behind."""
    global _beating, _lock
    _beating, _lock = (), threading.RLock()


def _other_threads() -> bool:
    here = threading.current_thread()
    return any(t is not here and not t.daemon for t in threading.enumerate())


def bare_optimizer(thing: Any) -> Optimizer | None:
    """The innermost torch optimizer: wrappers keep it in `.optimizer`.

    Some of them (accelerate's) are optimizers themselves, and never run the hooks given to them.
    """
    found = None
    for _ in range(4):
        if isinstance(thing, Optimizer):
            found = thing
        thing = getattr(thing, "optimizer", None)
    return found
