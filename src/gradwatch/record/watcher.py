"""`Watcher`: from `watch` to `close`, what the training loop holds in its hand."""

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from gradwatch.record import lifetime
from gradwatch.record.barrier import Barrier, log
from gradwatch.record.clock import StepClock
from gradwatch.record.conductor import Conductor
from gradwatch.record.heartbeat import Heartbeat
from gradwatch.record.instrument import Monitor, Sink
from gradwatch.record.options import Options
from gradwatch.record.scaling import Scaling
from gradwatch.record.signal import Signal


class Watcher:
    """Records a training; made by `watch`. Nothing it does raises into the loop.

    Use it as a context manager or call `close`; otherwise it closes when the process ends.
    """

    def __init__(
        self,
        model: Module,
        optimizers: Sequence[Optimizer],
        *,
        sink: Sink,
        options: Options,
        first_step: int = 0,
        scaler: Any = None,
        run_dir: Path = Path(),
        instruments: Sequence[Signal] = (),
        monitor: Monitor | None = None,
    ) -> None:
        self.run_dir = run_dir
        self._sink = sink
        self._monitor = monitor
        self._barrier = Barrier(self._let_go)
        self._conductor = Conductor(
            model,
            sink=sink,
            options=options,
            clock=StepClock(first_step),
            barrier=self._barrier,
            scaling=Scaling(scaler),
            instruments=instruments,
            monitor=monitor,
        )
        self._jot = self._conductor.jots.take
        self._closed = False
        self._model = weakref.ref(model, self._orphaned)
        self._heartbeat = Heartbeat(
            self._barrier,
            self._conductor.before_step,
            self._conductor.after_step,
            self._conductor.doze,
            self._conductor.wake,
        )
        self._barrier.run(self._conductor.begin, list(optimizers))
        lifetime.register(self, model)

    # -- for the loop ----------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Log numbers or one-element tensors: `log(loss=loss)`, `log({"acc/top1": 0.3})`.

        They belong to the coming step if a backward ran since the last optimizer step, else to the
        step just made; a number that a loop logs before its first backward pass is taken to be
        logged so every time, and belongs to the coming step.
        """
        if values is None and self._jot(named):
            return
        self._barrier.run(self._conductor.log, {**(values or {}), **named})

    def step(self) -> None:
        """End the present step: for loops whose optimizer is no torch optimizer."""
        self._barrier.run(self._conductor.step)

    @property
    def overhead(self) -> float:
        """Time spent inside gradwatch, as a share of the time since `watch`."""
        return self._barrier.meter.overhead

    @property
    def should_stop(self) -> bool:
        """Whether a live check asks to end the training."""
        return self._monitor is not None and self._monitor.should_stop

    @property
    def recording(self) -> bool:
        """Whether rows are still being recorded."""
        return not self._closed and not self._barrier.off

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything recorded so far survives the death of this process."""
        try:
            self._conductor.jots.drain()
            return self._sink.flush(timeout)
        except Exception as error:
            self._barrier.fail(error)
            return False

    def close(self) -> None:
        """Record the weights a last time, take every hook away and finish the run's files."""
        self._close("closed")

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close("closed" if kind is None else f"closed by {kind.__name__}")

    def __repr__(self) -> str:
        state = "recording" if self.recording else "closed" if self._closed else "stopped"
        return f"<Watcher of {str(self.run_dir)!r}: {state}>"

    # -- ends ------------------------------------------------------------------------------------

    def _close(self, text: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._barrier.run(self._conductor.end, text)
        self._barrier.off = True
        self._let_go()

    def _let_go(self) -> None:
        """Hooks away, files closed; each in its own right, since one of them may be what failed."""
        for action in (self._heartbeat.stop, self._conductor.detach, self._close_sink):
            try:
                action()
            except Exception as error:
                log.debug("gradwatch: %s while letting go", error)

    def _close_sink(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._sink.close()

    def _orphaned(self, _: object) -> None:
        """The model is gone. This may run anywhere, so the writer's thread is not waited for."""
        if self._closed or self._barrier.off:
            return
        self._closed = True
        self._barrier.off = True
        if not self._conductor.clock.begun:
            log.warning("gradwatch: the watched model is gone; keep a reference to what you watch")
        try:
            self._conductor.jots.drain()
            self._heartbeat.stop()
            self._conductor.detach()
            self._sink.close(0.0)
        except Exception as error:
            log.debug("gradwatch: %s after the model was gone", error)

    def _forked(self) -> None:
        """In a child of this process: silent, and neither files nor locks are touched."""
        self._closed = True
        self._barrier.off = True
