"""`Watcher`: what the training loop holds from `watch` to `close`, and how it ends.

There is one per model, none in forked children, and all are closed at the end of the process.
"""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from gradwatch.record import hooks
from gradwatch.record.guard import ErrorGuard, Overhead, log
from gradwatch.record.hooks import OptimizerHooks
from gradwatch.record.options import Options
from gradwatch.record.parameters import Networks, networks_of, unwrap
from gradwatch.record.recorder import StepMonitor
from gradwatch.record.sampler import LossScaling
from gradwatch.record.schedule import StepClock
from gradwatch.record.steps import StepController
from gradwatch.store import Writer


class Watcher:
    """Records a training; made by `watch`. Nothing it does raises into the loop.

    Use it as a context manager or call `close`; otherwise it closes when the process ends.
    """

    def __init__(
        self,
        model: Module,
        optimizers: Sequence[Optimizer],
        *,
        sink: Writer,
        options: Options,
        first_step: int = 0,
        scaler: Any = None,
        run_dir: Path = Path(),
        monitor: StepMonitor | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._sink = sink
        self._monitor = monitor
        self.on_closed: Callable[[bool], None] | None = None
        """Called once the run is closed; told whether the training came to its end by itself."""
        self.guard = ErrorGuard(self._let_go)
        self.controller = StepController(
            model,
            sink=sink,
            options=options,
            clock=StepClock(first_step),
            guard=self.guard,
            scaling=LossScaling(scaler),
            monitor=monitor,
        )
        self._keep = self.controller.logs.keep
        self._closed = False
        # Weak, so that watching keeps no model alive; its end is the end of the recording. Several
        # networks are held together by us alone, and weakly themselves.
        self._together = model if isinstance(model, Networks) else None
        self._models = [weakref.ref(network, self._orphaned) for network in networks_of(model)]
        self._hooks = OptimizerHooks(
            self.guard,
            self.controller.clock,
            before=self.controller.before_step,
            after=self.controller.after_step,
            idle_over=self.controller.end_idle,
        )
        self.guard.run(self.controller.begin, list(optimizers))
        _live.add(self)
        for network in networks_of(model):
            _by_model[unwrap(network)] = weakref.ref(self)

    # -- for the loop ----------------------------------------------------------------------------

    def log(self, values: Any = None, /, **named: Any) -> None:
        """Log numbers or one-element tensors: `log(loss=loss)`, `log({"acc/top1": 0.3})`.

        A bare number is the loss; a number inside a dict of its own is `G.loss`, as in
        `log({"G": {"loss": loss}})`. What is no number is left out, with a warning.
        They belong to the coming step if a backward ran since the last optimizer step, else to the
        step just made; a number that a loop logs before its first backward pass is taken to be
        logged so every time, and belongs to the coming step.
        """
        if values is None:
            quick: Mapping[str, Any] | None = named
        elif named:
            quick = None
        else:
            quick = values if isinstance(values, Mapping) else {"loss": values}
        if quick is None or not self._keep(quick):  # which keeps names that it has met before
            self.guard.run(self.controller.log, {} if values is None else values, named)

    def step(self) -> None:
        """End the present step: for loops whose optimizer is no torch optimizer."""
        self.guard.run(self.controller.step)

    @property
    def overhead(self) -> Overhead:
        """Time spent inside gradwatch, as a share of the time since `watch`.

        Its `free` are the free seconds that were used, `after` is the share of the time since they
        were used up, which the budget is for; `print` says both.
        """
        return self.controller.pace.overhead

    @property
    def background(self) -> float:
        """Processor time of the writing thread, as a share of the time since `watch`."""
        return self._sink.background / max(self.guard.timer.wall, 1e-9)

    @property
    def should_stop(self) -> bool:
        """Whether a live check asks to end the training."""
        return self._monitor is not None and self._monitor.should_stop

    @property
    def recording(self) -> bool:
        """Whether rows are still being recorded."""
        return not self._closed and not self.guard.off

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far survives the death of this process."""
        try:
            self.controller.logs.drain()
            self.controller.recorder.hand_over()
            return self._sink.flush(timeout)
        except Exception as error:
            self.guard.fail(error)
            return False

    def close(self) -> None:
        """Record the weights a last time, take every hook away and finish the run's files."""
        if not self._closed:
            self._close("closed")
            self._say(ended=True)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._close(f"closed by {kind.__name__}")
            self._say(ended=False)

    def __repr__(self) -> str:
        state = "recording" if self.recording else "closed" if self._closed else "stopped"
        return f"<Watcher of {str(self.run_dir)!r}: {state}>"

    # -- ends ------------------------------------------------------------------------------------

    def _close(self, text: str) -> None:
        """Close, with these words as the last event."""
        if self._closed:
            return
        self._closed = True
        self.guard.run(self.controller.end, text)
        self.guard.switch_off()
        self._let_go()

    def _say(self, *, ended: bool) -> None:
        if self.on_closed is not None:
            _attempt(partial(self.on_closed, ended))

    def _let_go(self) -> None:
        """Hooks away, files closed; each in its own right, since one of them may be what failed."""
        hand_over = self.controller.recorder.hand_over
        for action in (self._hooks.stop, self.controller.detach, hand_over, self._close_sink):
            _attempt(action)

    def _close_sink(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._sink.close()

    def _orphaned(self, _: object) -> None:
        """The model is gone: all that was recorded goes to the writer, the last steps included.

        This may run anywhere, so its thread is not waited for; `close` and the process's end do.
        """
        if not self.recording:
            return
        self.guard.switch_off()
        if not self.controller.clock.begun:
            log.warning("gradwatch: the watched model is gone; keep a reference to what you watch")
        for action in (
            lambda: self.controller.end("closed because the model is gone"),
            self._hooks.stop,
            self.controller.detach,
            self.controller.recorder.hand_over,
            lambda: self._sink.close(0.0),
        ):
            _attempt(action)

    def _forked(self) -> None:
        """In a child of this process: silent, and neither files nor locks are touched."""
        self._closed = True
        self.guard.switch_off()


class Disabled:
    """The watcher of `GRADWATCH_MODE=off`: answers like one, and does nothing at all."""

    run_dir: Path | None = None
    overhead = Overhead(0.0, 0.0, allowance=0.0, charged=0.0)
    background = 0.0
    should_stop = False
    recording = False

    def log(self, values: Any = None, /, **named: Any) -> None:
        """Nothing."""

    def step(self) -> None:
        """Nothing."""

    def flush(self, timeout: float = 30.0) -> bool:
        """There is nothing to wait for."""
        return True

    def close(self) -> None:
        """Nothing."""

    def __enter__(self) -> "Disabled":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing."""


def _attempt(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        log.debug("gradwatch: %s while letting go", error)


# -- all watchers of the process -----------------------------------------------------------------

_live: weakref.WeakSet[Watcher] = weakref.WeakSet()
_by_model: weakref.WeakKeyDictionary[Module, weakref.ref[Watcher]] = weakref.WeakKeyDictionary()


def close_previous(model: Module) -> None:
    """A model has one watcher: an earlier one is closed, and says so."""
    for network in networks_of(model):
        reference = _by_model.pop(unwrap(network), None)
        earlier = reference() if reference is not None else None
        if earlier is not None and earlier.recording:
            log.warning("gradwatch: the model is watched again; %s is closed", earlier)
            earlier._close("closed because the model is watched again")


def _close_all() -> None:
    for watcher in list(_live):
        if not watcher._closed:
            watcher._close("closed at the end of the process")
            # Python sets this when an exception, Ctrl-C too, ends a program.
            watcher._say(ended=not hasattr(sys, "last_value"))


def _silence_all() -> None:
    hooks.forget_all()
    for watcher in list(_live):
        watcher._forked()


# What is registered later runs earlier, and `gradwatch.store` was imported above: its writers close
# after us.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_silence_all)
