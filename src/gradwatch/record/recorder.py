"""What is measured when: before an optimizer's step, after it, and where it goes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gradwatch.kernel as kernel
from gradwatch.record import measuring
from gradwatch.record.changes import changes
from gradwatch.record.far.remote import Remote
from gradwatch.record.frame import Frame
from gradwatch.record.instrument import Batch, Monitor, Sink
from gradwatch.record.measuring import Measured
from gradwatch.record.optimizers import learning_rates
from gradwatch.record.options import Options, Record
from gradwatch.record.scaling import Scaling, held_scale, overflowed
from gradwatch.record.signal import PendingReadings, Reading, Signal
from gradwatch.record.verdict import Phase, Verdict
from gradwatch.record.ward import Ward
from gradwatch.run import Event, EventKind, Subject
from gradwatch.stats import Family, State

_WHAT = {Family.GRAD: "gradient", Family.WEIGHT: "weight"}


class Recorder:
    """Fills frames and hands them to the sink when the step they belong to is done."""

    def __init__(
        self,
        sink: Sink,
        options: Options,
        scaling: Scaling,
        instruments: Sequence[Signal] = (),
        monitor: Monitor | None = None,
    ) -> None:
        self.sink = sink
        self.instruments = list(instruments)
        self.monitor = monitor
        self.scaling = scaling
        self.histograms = Record.HISTOGRAMS in options.record
        self.remote = Remote(scaling)
        self._batches: list[Batch] = []
        self._scalars: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()

    # -- around an optimizer's step --------------------------------------------------------------

    def before(self, frame: Frame) -> None:
        """Everything that is lost once the weights have changed."""
        kernel.set_threads(torch.get_num_threads())  # as many as the training itself uses
        frame.skipped = not frame.ward.remote and overflowed(frame.ward.optimizer)
        if Family.WEIGHT in frame.due:
            self._weights(frame, frame.ward)
            if frame.rest is not None:
                self._weights(frame, frame.rest)
        if not frame.closure:
            self._backward(frame)
        if Family.UPDATE in frame.due:
            self._copy(frame.ward)

    def after(self, frame: Frame) -> None:
        """Everything the step itself has made, and off with the rows."""
        ward = frame.ward
        if frame.hollow:
            return
        if frame.closure:
            self._backward(frame)
        self._changes(frame)
        for owner, measured in frame.measured:
            self.put(frame.step, owner, measured)
        if Family.GROUP in frame.due and (optimizer := ward.optimizer) is not None:
            rows = learning_rates(optimizer)
            if len(rows) == len(ward.group_ids):
                states = np.zeros(len(rows), np.uint8)
                self._send(Batch(Family.GROUP, ward.group_ids, rows, states), frame.step)
        if frame.scalars:
            self.scalars(frame.step, frame.scalars)

    def forget(self, frame: Frame) -> None:
        """Nothing of this frame is to be recorded."""
        frame.ward.copies.drop()
        self.remote.drop(frame.ward)
        self.remote.discard(frame)

    def _copy(self, ward: Ward) -> None:
        if ward.remote:
            self.remote.take(ward)
        else:
            ward.copies.take(ward.parameters())

    def _backward(self, frame: Frame) -> None:
        """What the backward passes of this step have left, and what the layers showed."""
        rest = frame.rest
        if Family.GRAD in frame.due:
            self._gradients(frame, frame.ward)
            if rest is not None and rest.remote:
                self._far_gradients(frame, rest, before_step=False)
            elif rest is not None and rest.tracks:
                measured = measuring.gradients(
                    rest,
                    histograms=self._wide(frame),
                    sketches=frame.sketches,
                    cosines=frame.cosines,
                )
                frame.measured.append((rest, measured))
        self._phase_scalars(frame)
        if frame.collects:
            self.collect(frame.step)

    def _weights(self, frame: Frame, ward: Ward) -> None:
        if ward.remote:
            self.remote.weights(frame, frame.step, ward, histograms=self._wide(frame))
        elif ward.tracks:
            measured = measuring.weights(ward, histograms=self._wide(frame))
            frame.measured.append((ward, measured))

    def _gradients(self, frame: Frame, ward: Ward) -> None:
        if ward.remote:
            self._far_gradients(frame, ward, before_step=not frame.closure)
            return
        if frame.skipped:
            measured = measuring.nothing(Family.GRAD, len(ward.tracks), State.SKIPPED_STEP)
        else:
            held = 1.0 if frame.closure else held_scale(ward.optimizer)
            verdict = self._verdict(ward, held)
            clipping = verdict.factor
            measured = measuring.gradients(
                ward,
                multiplier=1.0 / (held * clipping),
                clipped=not verdict.undoable,
                histograms=self._wide(frame),
                sketches=frame.sketches,
                cosines=frame.cosines,
            )
            cut = verdict.undoable and measuring.mark_cut(measured)
            if verdict.phase in (Phase.RAW, Phase.SCALED) and not cut:
                frame.scalars["clip_factor"] = clipping
        frame.measured.append((ward, measured))

    def _far_gradients(self, frame: Frame, ward: Ward, *, before_step: bool) -> None:
        self.remote.gradients(
            frame,
            frame.step,
            ward,
            before_step=before_step,
            histograms=self._wide(frame),
            sketches=frame.sketches,
            cosines=frame.cosines,
        )

    def _verdict(self, ward: Ward, held: float) -> Verdict:
        verdict = ward.sentinel.judge()
        return verdict if held != 1.0 else self.scaling.explain(verdict, ward.optimizer)

    def _phase_scalars(self, frame: Frame) -> None:
        sentinel = frame.ward.sentinel
        if sentinel.posts:
            frame.scalars["backwards"] = float(sentinel.backwards)
        if sentinel.stale is not None:
            frame.scalars["stale"] = float(sentinel.stale)
        if frame.skipped or self.scaling.known:
            frame.scalars["skipped"] = float(frame.skipped)

    def _changes(self, frame: Frame) -> None:
        """What the optimizer did with the gradients."""
        update, adam = Family.UPDATE in frame.due, Family.OPTIM in frame.due
        if frame.ward.remote:
            if update:
                self.remote.update(frame, frame.step, frame.ward)
            if adam:
                self.remote.adam(frame, frame.step, frame.ward)
            return
        for measured in changes(frame.ward, update=update, adam=adam):
            if frame.skipped:
                count = len(measured.states)
                measured = measuring.nothing(measured.family, count, State.SKIPPED_STEP)
            frame.measured.append((frame.ward, measured))

    def _wide(self, frame: Frame) -> bool:
        return self.histograms and frame.full

    # -- without an optimizer's step -------------------------------------------------------------

    def skipped(self, step: int, due: frozenset[Family], wards: Sequence[Ward]) -> None:
        """A step that the scaler left out: it counts, and its rows say so."""
        if Family.WEIGHT in due:
            self.weights(step, wards)  # still those before the step: nothing was updated
        for family in (Family.GRAD, Family.UPDATE, Family.OPTIM):
            if family in due:
                for ward in wards:
                    nothing = measuring.nothing(family, len(ward.tracks), State.SKIPPED_STEP)
                    self.put(step, ward, nothing)
        self.scalars(step, {"skipped": 1.0})
        for instrument in self.instruments:
            for reading in instrument.skipped(step):
                self._take(reading, step)
            self._post(step, instrument.pending(step))

    def weights(self, step: int, wards: Sequence[Ward]) -> None:
        """The weights as they are now, outside any step."""
        for ward in wards:
            if ward.remote:
                self.remote.weights(None, step, ward, histograms=self.histograms)
            elif ward.tracks:
                self.put(step, ward, measuring.weights(ward, histograms=self.histograms))

    def collect(self, step: int) -> None:
        """What the instruments have seen of this step."""
        under_way: list[PendingReadings] = []
        for instrument in self.instruments:
            for reading in instrument.collect(step):
                self._take(reading, step)
            if values := instrument.scalars(step):
                self.scalars(step, values)
            for event in instrument.events():
                self.sink.event(event)
            under_way += instrument.pending(step)
        self._post(step, under_way)

    def backward(self) -> None:
        """A backward pass has run."""
        for instrument in self.instruments:
            instrument.backward()

    def _post(self, step: int, under_way: Sequence[PendingReadings]) -> None:
        if under_way:
            self.remote.post(step, under_way)

    def _take(self, reading: Reading, step: int) -> None:
        family, subjects, rows, states = reading
        ids = self.sink.declare(subjects)
        self.declared(subjects, ids)
        self._send(Batch(family, ids, rows, states), step)

    def note(self, info: Mapping[str, Any]) -> None:
        """Something that is true of the whole run."""
        self.sink.note(info)
        if self.monitor is not None:
            self.monitor.noted(info)

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """Pass on which subjects the ids stand for."""
        if self.monitor is not None:
            self.monitor.declared(subjects, ids)

    # -- out -------------------------------------------------------------------------------------

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.sink.scalars(step, values)
        if self.monitor is not None:
            self._scalars.update(values)

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Scalars of many steps: step, name, value; the monitor hears of the last of each name."""
        self.sink.numbers(items)
        if self.monitor is not None:
            self._scalars.update((name, value) for _, name, value in items)

    def deliver(self, *, wait: bool = False) -> None:
        """Pass on what has come over from an accelerator."""
        for arrival in self.remote.arrivals(wait=wait):
            if arrival.ward is not None and arrival.measured is not None:
                self.put(arrival.step, arrival.ward, arrival.measured, arrival.ids)
            for reading in arrival.readings:
                self._take(reading, arrival.step)
            if arrival.scalars:
                self.scalars(arrival.step, arrival.scalars)
            if arrival.skipped:
                self.tell_skipped(arrival.step)

    def tell_skipped(self, step: int) -> None:
        """An event for a step that changed nothing."""
        text = "skipped by the scaler: the scaled gradients were not finite"
        self.sink.event(Event(step, EventKind.SKIPPED_STEP, text))

    def finish(self, step: int) -> None:
        """The step is complete: let the monitor judge it."""
        if self.monitor is not None:
            batches, self._batches = self._batches, []
            scalars, self._scalars = self._scalars, {}
            self.monitor.after_step(step, batches, scalars)

    def put(
        self, step: int, ward: Ward, measured: Measured, ids: NDArray[np.uint32] | None = None
    ) -> None:
        """One family of one ward, histograms included; `ids` where its tensors were others then."""
        if not ward.tracks:
            return
        ids = ward.ids if ids is None else ids
        if ids is ward.ids and (measured.states == State.UNSUPPORTED).any():
            self._tell_unsupported(step, ward, measured)
        self._send(Batch(measured.family, ids, measured.rows, measured.states), step)
        for number, histogram in zip(ids, measured.histograms, strict=False):
            if histogram is not None:
                self.sink.histograms(measured.family, step, int(number), histogram)

    def _tell_unsupported(self, step: int, ward: Ward, measured: Measured) -> None:
        """Say once of each tensor that it cannot be read: silence would look like health."""
        what = _WHAT.get(measured.family)
        for index in np.flatnonzero(measured.states == State.UNSUPPORTED):
            name = ward.tracks[index].subject.name
            if what is not None and (what, name) not in self._told:
                self._told.add((what, name))
                text = f"the {what} cannot be read here (device, layout or type)"
                self.sink.event(Event(step, EventKind.NOT_RECORDED, text, name))

    def _send(self, batch: Batch, step: int) -> None:
        self.sink.put(batch.family, step, batch.ids, batch.rows, batch.states)
        if self.monitor is not None:
            self._batches.append(batch)
