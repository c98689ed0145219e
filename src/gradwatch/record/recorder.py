"""What is measured when: before an optimizer's step, after it, and where it goes."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.backend import Backend, OptimizerStep, SentRows
from gradwatch.record.backend_cpu import CpuBackend, cpu_engine
from gradwatch.record.device.backend import DeviceBackend
from gradwatch.record.device.choice import ChosenEngine, forced
from gradwatch.record.device.launches import LaunchTimes
from gradwatch.record.device.transfer import Transfer
from gradwatch.record.optimizers import LearningRates, LossScaling
from gradwatch.record.options import Options, Record
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import (
    FamilyRows,
    Parts,
    PendingRows,
    Reading,
    ReadyRows,
    StepMonitor,
    StepRows,
    nothing,
)
from gradwatch.record.signal import Signal
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, State
from gradwatch.store import Writer

_WHAT = {Family.GRAD: "gradient", Family.WEIGHT: "weight"}


class Recorder:
    """Measures around the calls of `optimizer.step` and hands the rows to the sink.

    Rows measured on the CPU are handed on when the call they belong to is done, those of a device
    when their numbers have come over.
    """

    def __init__(
        self,
        sink: Writer,
        options: Options,
        scaling: LossScaling,
        signals: Sequence[Signal] = (),
        monitor: StepMonitor | None = None,
    ) -> None:
        self.sink = sink
        self.signals = list(signals)
        # Those that have something to say: to ask the others costs as much.
        self._with_scalars = [s for s in signals if type(s).scalars is not Signal.scalars]
        self._with_backward = [s for s in signals if type(s).backward is not Signal.backward]
        self.monitor = monitor
        self.scaling = scaling
        self.launch_times = LaunchTimes()
        for signal in signals:
            signal.launch_times = self.launch_times
        self.histograms = Record.HISTOGRAMS in options.record
        self._under_way: deque[SentRows] = deque()
        self._rows: list[StepRows] = []
        self._scalars: dict[str, float] = {}
        self._reported: set[tuple[str, str]] = set()
        self._rates = LearningRates()
        self._engines = cpu_engine()
        self._step = 0

    def make_backend(self, on_device: bool) -> Backend:
        """What measures parameters on an accelerator, or on the CPU."""
        if on_device or forced():
            return DeviceBackend(self.scaling, partial(ChosenEngine, report=self._report_engine))
        return CpuBackend(self.scaling)

    def _report_engine(self, device: torch.device, engine: str, why_no_better: str) -> None:
        self._engines[str(device)] = engine
        self.note({"engines": dict(self._engines)})
        if why_no_better:
            text = f"{device} is measured by torch's operations, not by Triton: {why_no_better}"
            self.sink.event(Event(self._step, EventKind.ENGINE, text))

    # -- around an optimizer's step --------------------------------------------------------------

    def before(self, call: OptimizerStep) -> None:
        """Everything that is lost once the weights have changed."""
        kernel.set_threads(torch.get_num_threads())  # as many as the training itself uses
        tracked, self._step = call.tracked, call.step
        spans = self.launch_times.begin(tracked.devices)
        call.skipped = tracked.backend.is_skipped(tracked)
        if Family.WEIGHT in call.due:
            call.pending += self.send_weights(call.step, tracked, histograms=call.histograms)
            if call.unowned is not None:
                call.pending += self.send_weights(
                    call.step, call.unowned, histograms=call.histograms
                )
        if not call.closure:
            self._backward(call)
        if Family.UPDATE in call.due:
            tracked.backend.snapshot(tracked)
        self.launch_times.end(call.step, spans)

    def after(self, call: OptimizerStep) -> None:
        """Everything the step itself has made, and off with the rows."""
        tracked = call.tracked
        if call.superseded:
            return
        spans = self.launch_times.begin(tracked.devices)
        if call.closure:
            self._backward(call)
        if Family.UPDATE in call.due or Family.OPTIM in call.due:
            call.pending.append(self._send(call.step, tracked.backend.updates(call), tracked))
        self.launch_times.end(call.step, spans)
        scalars: dict[str, float] = {}
        for sent in call.pending:
            if sent.transfer is None:
                rows = sent.result()
                self._put_families(sent, rows.families)
                scalars |= rows.scalars
            else:
                self._under_way.append(sent)
        if Family.GROUP in call.due and (optimizer := tracked.optimizer) is not None:
            rates = self._rates.rows(optimizer)
            if len(rates) == len(tracked.group_ids):
                states = np.zeros(len(rates), np.uint8)
                self._put(StepRows(Family.GROUP, tracked.group_ids, rates, states), call.step)
        scalars |= call.scalars
        if scalars:
            self.scalars(call.step, scalars)

    def _backward(self, call: OptimizerStep) -> None:
        """What the backward passes of this step have left, and what the layers showed."""
        if Family.GRAD in call.due:
            for tracked in (call.tracked, call.unowned):
                if tracked is not None and (tracked is call.tracked or tracked.parameters):
                    pending = tracked.backend.gradients(tracked, call)
                    call.pending.append(self._send(call.step, pending, tracked))
        call.scalars |= call.tracked.sampler.scalars()
        if call.skipped or self.scaling.known:
            call.scalars["skipped"] = float(call.skipped)
        if call.collects:
            self.collect(call.step)

    # -- without an optimizer's step -------------------------------------------------------------

    def skipped(
        self, step: int, due: frozenset[Family], optimizers: Sequence[TrackedOptimizer]
    ) -> None:
        """A step that the scaler left out: it counts, and its rows say so."""
        if Family.WEIGHT in due:
            self.weights(step, optimizers)  # still those before the step: nothing was updated
        for family in (Family.GRAD, Family.UPDATE, Family.OPTIM):
            if family in due:
                for tracked in optimizers:
                    rows = nothing(family, len(tracked.parameters), State.SKIPPED_STEP)
                    self._put_family(step, tracked, tracked.ids, rows)
        self.scalars(step, {"skipped": 1.0})
        for signal in self.signals:
            for reading in signal.skipped(step):
                self._put_reading(reading, step)
            self._send_together(step, signal.pending(step))

    def weights(self, step: int, optimizers: Iterable[TrackedOptimizer]) -> None:
        """The weights as they are now, outside any step."""
        for tracked in optimizers:
            for sent in self.send_weights(step, tracked, histograms=self.histograms):
                self._put_or_keep(sent)

    def send_weights(
        self, step: int, tracked: TrackedOptimizer, *, histograms: bool
    ) -> list[SentRows]:
        """The weights as they are now, to be handed on later; nothing where there are none."""
        if not tracked.parameters:
            return []
        pending = tracked.backend.weights(tracked, histograms=histograms)
        return [self._send(step, pending, tracked)]

    def collect(self, step: int) -> None:
        """What the signals have seen of this step."""
        pending: list[PendingRows] = []
        for signal in self.signals:
            for reading in signal.collect(step):
                self._put_reading(reading, step)
            for event in signal.events():
                self.sink.event(event)
            pending += signal.pending(step)
        for signal in self._with_scalars:
            if values := signal.scalars(step):
                self.scalars(step, values)
        self._send_together(step, pending)

    def backward(self) -> None:
        """A backward pass has run."""
        for signal in self._with_backward:
            signal.backward()

    def number(self, step: int, name: str, value: Tensor) -> None:
        """A number the user logged that is on a device."""

        def finish(parts: Parts) -> ReadyRows:
            scalars = {name: float(parts[0][0])}
            if name == "loss" and not isfinite(scalars[name]):
                scalars["loss_nonfinite"] = 1.0
            return ReadyRows(scalars=scalars)

        self._under_way.append(
            self._send(step, PendingRows([value.detach().reshape(-1)[:1]], finish))
        )

    # -- on the way from a device ----------------------------------------------------------------

    def _send(
        self, step: int, pending: PendingRows, tracked: TrackedOptimizer | None = None
    ) -> SentRows:
        """Start the copy now: what is to be copied may be overwritten after the step."""
        transfer = Transfer(pending.parts) if pending.parts else None
        ids = None if tracked is None else tracked.ids
        return SentRows(step, transfer, pending.finish, tracked, ids)

    def _send_together(self, step: int, pending: Sequence[PendingRows]) -> None:
        """What the signals saw of a step, all in one transfer."""
        if not pending:
            return
        cuts = [0, *accumulate(len(item.parts) for item in pending)]
        finishers = [item.finish for item in pending]

        def finish(arrived: Parts) -> ReadyRows:
            readings: list[Reading] = []
            scalars: dict[str, float] = {}
            for finish_one, (begin, end) in zip(finishers, pairwise(cuts), strict=True):
                rows = finish_one(arrived[begin:end])
                readings += rows.readings
                scalars |= rows.scalars
            return ReadyRows(readings, scalars)

        parts = [part for item in pending for part in item.parts]
        self._under_way.append(self._send(step, PendingRows(parts, finish)))

    def _put_or_keep(self, sent: SentRows) -> None:
        if sent.transfer is None:
            self._put_families(sent, sent.result().families)
        else:
            self._under_way.append(sent)

    def deliver(self, *, wait: bool = False) -> None:
        """Pass on what has come over from a device, oldest first."""
        while self._under_way and (wait or self._under_way[0].arrived):
            sent = self._under_way.popleft()
            rows = sent.result()
            self._put_families(sent, rows.families)
            for reading in rows.readings:
                self._put_reading(reading, sent.step)
            if rows.scalars:
                self.scalars(sent.step, rows.scalars)
            if _is_alarming(rows):
                for signal in self.signals:
                    signal.alarm()
            if rows.skipped:
                self.report_skipped(sent.step)

    # -- to the sink and the monitor -------------------------------------------------------------

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Store numbers of a step, and show them to the live checks."""
        self.sink.scalars(step, values)
        if self.monitor is not None:
            self._scalars.update(values)

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Scalars of many steps: step, name, value; the monitor is given the last of each name."""
        self.sink.numbers(items)
        if self.monitor is not None:
            self._scalars.update((name, value) for _, name, value in items)

    def note(self, info: Mapping[str, Any]) -> None:
        """Something that is true of the whole run."""
        self.sink.note(info)
        if self.monitor is not None:
            self.monitor.noted(info)

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """Pass on which subjects the ids stand for."""
        if self.monitor is not None:
            self.monitor.declared(subjects, ids)

    def report_skipped(self, step: int) -> None:
        """An event for a step that changed nothing."""
        text = "skipped by the scaler: the scaled gradients were not finite"
        self.sink.event(Event(step, EventKind.SKIPPED_STEP, text))

    def finish(self, step: int) -> None:
        """The step is complete: let the monitor judge it."""
        if self.monitor is not None:
            rows, self._rows = self._rows, []
            scalars, self._scalars = self._scalars, {}
            self.monitor.after_step(step, rows, scalars)

    def _put_families(self, sent: SentRows, families: Iterable[FamilyRows]) -> None:
        if sent.tracked is not None and sent.ids is not None:
            for rows in families:
                self._put_family(sent.step, sent.tracked, sent.ids, rows)

    def _put_family(
        self, step: int, tracked: TrackedOptimizer, ids: NDArray[np.uint32], rows: FamilyRows
    ) -> None:
        """One family, histograms included; `ids` are those the parameters had when measured."""
        if not tracked.parameters:
            return
        # Rows that come late may be of other parameters than the optimizer has now.
        if ids is tracked.ids and State.UNSUPPORTED in rows.states.tobytes():
            self._report_unsupported(step, tracked, rows)
        self._put(StepRows(rows.family, ids, rows.rows, rows.states), step)
        if (table := rows.histograms) is not None and len(table):
            self.sink.histogram_table(rows.family, step, ids[table.tensors], table)

    def _report_unsupported(self, step: int, tracked: TrackedOptimizer, rows: FamilyRows) -> None:
        """Say once of each tensor that it cannot be read: silence would look like health."""
        what = _WHAT.get(rows.family)
        for index in np.flatnonzero(rows.states == State.UNSUPPORTED):
            name = tracked.parameters[index].name
            if what is not None and (what, name) not in self._reported:
                self._reported.add((what, name))
                text = f"the {what} cannot be read here (device, layout or type)"
                self.sink.event(Event(step, EventKind.NOT_RECORDED, text, name))

    def _put_reading(self, reading: Reading, step: int) -> None:
        family, subjects, rows, states = reading
        ids = self.sink.declare(subjects)
        self.declared(subjects, ids)
        self._put(StepRows(family, ids, rows, states), step)

    def _put(self, rows: StepRows, step: int) -> None:
        self.sink.put(rows.family, step, rows.ids, rows.rows, rows.states)
        if self.monitor is not None:
            self._rows.append(rows)


def _is_alarming(rows: ReadyRows) -> bool:
    """Whether a gradient or the loss was not finite, on a step that was really made."""
    gradients = [found.rows for found in rows.families if found.family is Family.GRAD]
    bad = any((found[name] > 0).any() for found in gradients for name in ("grad_nan", "grad_inf"))
    return not rows.skipped and (bad or "loss_nonfinite" in rows.scalars)
