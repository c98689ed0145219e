"""`Watcher`: what the training loop holds from `watch` to `close`, and how it ends.

There is one per model, none in forked children, and all are closed at the end of the process.
"""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from gradwatch.record import hooks
from gradwatch.record.guard import ErrorGuard, Overhead, log
from gradwatch.record.options import Options
from gradwatch.record.parameters import Networks, networks_of, unwrap
from gradwatch.record.steps import StepController
from gradwatch.store import Writer


class Watcher:
    """Records a training; made by `watch`. Nothing it does raises into the loop.

    Use it as a context manager or call `close`; otherwise it closes when the process ends.
    """

    run_dir = Path()
    """The folder that is recorded to."""

    def __init__(
        self, model: Module, optimizers: Sequence[Optimizer], sink: Writer, options: Options
    ) -> None:
        self._sink = sink
        self._monitor = options.monitor
        self.on_closed: Callable[[bool], None] | None = None
        """Called once the run is closed; told whether the training came to its end by itself."""
        self.guard = ErrorGuard(self._let_go)
        self.controller = StepController(model, sink, options, self.guard)
        self._keep = self.controller.logs.keep
        self._closed = False
        # Weak, so that watching keeps no model alive; its end is the end of the recording. Several
        # networks are held together by us alone, and weakly themselves.
        self._together = model if isinstance(model, Networks) else None
        self._models = [weakref.ref(network, self._orphaned) for network in networks_of(model)]
        hooks.start(self.controller)
        self.guard.run(self.controller.begin, list(optimizers))
        _live.add(self)

    # -- for the loop ----------------------------------------------------------------------------

    def log(self, values: Any = None, /, **named: Any) -> None:
        """Log numbers or one-element tensors: `log(loss=loss)`, `log({"acc/top1": 0.3})`.

        A bare number is the loss; a number inside a dict of its own is `G.loss`, as in
        `log({"G": {"loss": loss}})`. What is no number is left out, with a warning.
        They belong to the coming step if a backward ran since the last optimizer step, else to the
        step just made; a number that a loop logs before its first backward pass is taken to be
        logged so every time, and belongs to the coming step.
        """
        given = values if values is None or isinstance(values, Mapping) else {"loss": values}
        quick = named if given is None else given
        # Names that it has met before are kept at once.
        if (named and quick is not named) or not self._keep(quick):
            self.guard.run(self.controller.log, quick, named)

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
        self.guard.run(self.controller.logs.drain)
        self.guard.run(self.controller.recorder.hand_over)
        return self._sink.flush(timeout)

    def close(self) -> None:
        """Record the weights a last time, take every hook away and finish the run's files."""
        self._close("closed", ended=True)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        said = "closed" if kind is None else f"closed by {kind.__name__}"
        self._close(said, ended=kind is None)

    def __repr__(self) -> str:
        state = "recording" if self.recording else "closed" if self._closed else "stopped"
        return f"<Watcher of {str(self.run_dir)!r}: {state}>"

    # -- ends ------------------------------------------------------------------------------------

    def _close(self, text: str, *, ended: bool | None = None) -> None:
        """Close, with these words as the last event; `ended` is for `on_closed`, None: not told."""
        if self._closed:
            return
        self._closed = True
        self.guard.run(self.controller.end, text)
        self._let_go()
        if self.on_closed is not None and ended is not None:
            _attempt(self.on_closed, ended)

    def _let_go(self) -> None:
        """Hooks away, files closed; each in its own right, since one of them may be what failed."""
        self._take_hooks_away()
        if self._monitor is not None:
            _attempt(self._monitor.close)
        _attempt(self._sink.close)

    def _take_hooks_away(self) -> None:
        self.guard.switch_off()
        _attempt(hooks.stop, self.controller)
        _attempt(self.controller.detach)
        _attempt(self.controller.recorder.hand_over)

    def _orphaned(self, _: object) -> None:
        """The model is gone: all that was recorded goes to the writer, the last steps included.

        This may run anywhere, so its thread is not waited for; `close` and the process's end do.
        """
        if not self.recording:
            return
        self.guard.switch_off()
        if not self.controller.clock.begun:
            log.warning("gradwatch: the watched model is gone; keep a reference to what you watch")
        _attempt(self.controller.end, "closed because the model is gone")
        self._take_hooks_away()
        _attempt(self._sink.close, 0.0)


class Disabled:
    """The watcher of `GRADWATCH_MODE=off`: answers like one, and does nothing at all."""

    run_dir: Path | None = None
    overhead = Overhead(0.0, 0.0, allowance=0.0, charged=0.0)
    background = 0.0
    should_stop = recording = False

    def flush(self, timeout: float = 30.0) -> bool:
        """There is nothing to wait for."""
        return True

    def __enter__(self) -> "Disabled":
        return self

    def _nothing(self, *_: object, **__: object) -> None:
        """Nothing."""

    log = step = close = __exit__ = _nothing


def _attempt(action: Callable[..., object], *args: object) -> None:
    try:
        action(*args)
    except Exception as error:
        log.debug("gradwatch: %s while letting go", error)


# -- all watchers of the process -----------------------------------------------------------------

_live: weakref.WeakSet[Watcher] = weakref.WeakSet()


def close_previous(model: Module) -> None:
    """A model has one watcher: an earlier one is closed, and says so."""
    networks = {id(unwrap(network)) for network in networks_of(model)}
    for earlier in [watcher for watcher in _live if watcher.recording]:
        watched = {id(unwrap(it)) for ref in earlier._models if (it := ref()) is not None}
        if watched & networks:
            log.warning("gradwatch: the model is watched again; %s is closed", earlier)
            earlier._close("closed because the model is watched again")


def _close_all() -> None:
    for watcher in list(_live):
        # Python sets this when an exception, Ctrl-C too, ends a program.
        watcher._close("closed at the end of the process", ended=not hasattr(sys, "last_value"))


def _silence_all() -> None:
    """In a forked child: silent, and neither files nor locks are touched."""
    hooks.forget_all()
    for watcher in list(_live):
        watcher._closed = True
        watcher.guard.switch_off()
        watcher.controller.forward.table = {}  # its hook goes on being called, and knows no layer


# What is registered later runs earlier, and `gradwatch.store` was imported above: its writers close
# after us.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_silence_all)
