"""Keeps step, cadence, roster and recorder together; the hooks of the training end here."""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

from torch.nn import Module
from torch.optim import Optimizer

from gradwatch.record import cadence, ranks
from gradwatch.record.barrier import Barrier
from gradwatch.record.clock import StepClock
from gradwatch.record.doze import Doze
from gradwatch.record.frame import Frame, has_closure
from gradwatch.record.habits import Habits
from gradwatch.record.instrument import Monitor, Sink
from gradwatch.record.jots import Jot, Jots
from gradwatch.record.manual import ManualSteps
from gradwatch.record.options import Options
from gradwatch.record.pace import ALLOWANCE, Pace
from gradwatch.record.recorder import Recorder
from gradwatch.record.roster import Roster
from gradwatch.record.scaling import Scaling
from gradwatch.record.sentinel import Sentinel
from gradwatch.record.side_notes import SideNotes
from gradwatch.record.signal import Signal
from gradwatch.record.ward import Ward
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family

RESTING = 4
"""If nothing is recorded for so many steps, the sentinels' hooks are taken off meanwhile."""
PATIENCE = 3
"""Steps without a logged loss before an event asks for one."""


class Conductor:
    """One per watcher. Every public method is called inside the barrier."""

    def __init__(
        self,
        model: Module,
        *,
        sink: Sink,
        options: Options,
        clock: StepClock,
        barrier: Barrier,
        scaling: Scaling,
        instruments: Sequence[Signal],
        monitor: Monitor | None,
    ) -> None:
        self.sink = sink
        self.options = options
        self.clock = clock
        self.barrier = barrier
        self.recorder = Recorder(sink, options, scaling, instruments, monitor)
        self.roster = Roster(
            model, sink, options.wanted, self._make_sentinel, self.recorder.declared
        )
        self.pace = Pace(barrier.meter, options.budget)
        self.notes = SideNotes(self.recorder, self.roster)
        self.manual = ManualSteps(self.recorder, self.roster)
        self._frames: list[Frame] = []
        self._open: Ward | None = None
        self._hollow: WeakSet[Optimizer] = WeakSet()
        self._strangers: WeakSet[Optimizer] = WeakSet()
        self._unstepped = False
        self._awake = True
        self._armed: frozenset[Family] = frozenset()
        self._ended = time.perf_counter()
        self._finished = clock.first - 1
        self._logs_early = True
        self.habits = Habits()
        self.doze = Doze(clock)
        self.jots = Jots(barrier, self.doze, self._log_jots)

    # -- the run ---------------------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Take stock and arm the first step."""
        for optimizer in optimizers:
            self.roster.add(optimizer)
        step = self.clock.number
        self.roster.scan(step)
        self.clock.expect(self.roster.wards)
        self.sink.event(Event(step, EventKind.STARTED, "recording starts"))
        for instrument in self.recorder.instruments:
            instrument.attach()
        self.notes.audit(step, optimizers)
        self._arm(step)
        if not optimizers:
            self.manual.prepare(step, self.due(step))

    def end(self, text: str) -> None:
        """The last sample of the weights: they are those before the step that will not come."""
        self.jots.drain()
        step = self.clock.coming
        if step > self.clock.first and Family.WEIGHT in self.options.families:
            self.recorder.weights(step, self.roster.all)
        self.recorder.deliver(wait=True)
        if self._unstepped and self.clock.number == self.clock.first and not self.clock.begun:
            text = "backward ran, but no optimizer step was seen: call watcher.step() after each"
            self.sink.event(Event(self.clock.first, EventKind.NOT_RECORDED, text))
        self.notes.end()
        self.sink.event(Event(self.clock.made, EventKind.CLOSED, text))
        meter = self.barrier.meter
        cost = {"overhead": meter.overhead, "spent": meter.spent, "allowance": ALLOWANCE}
        self.sink.note({"complete": True, **cost})

    def detach(self) -> None:
        """Take away every hook but the heart-beat's."""
        for ward in self.roster.all:
            ward.sentinel.dismiss()
        for instrument in self.recorder.instruments:
            instrument.detach()

    def due(self, step: int) -> frozenset[Family]:
        if step == self.clock.first:
            return self.options.families
        return cadence.due(step, self.options.families, k=self.pace.k, every=self.options.every)

    # -- the heart-beat --------------------------------------------------------------------------

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An optimizer is about to step."""
        ward = self.roster.find(optimizer) or self._adopt(optimizer)
        if ward is None:
            return
        if self.doze.left:
            self.wake()
        if self.clock.has_stepped(ward):
            self._finish(self.clock.number)  # some optimizer was waited for in vain
        begins = self.clock.enter(ward)
        step = self.clock.number
        self._open = ward
        due = self.due(step)
        if not due:
            return
        full = self._is_full(step)
        if full:
            self._rescan(step)
        self._step_inside(ward)
        frame = Frame(ward, step, due, full, has_closure(args, kwargs))
        frame.rest = self.roster.rest if begins else None
        frame.collects = self.clock.complete
        if step != self.clock.first:
            frame.sketches, frame.cosines = cadence.sketched(
                step, k=self.pace.k, every=self.options.every
            )
        self._frames.append(frame)
        self.recorder.before(frame)

    def _step_inside(self, ward: Ward) -> None:
        """Open frames belong to optimizers that wrap this one: where they share tensors, it counts.

        A frame of this very ward was left behind by an error in the user's step.
        """
        for outer in self._frames:
            if outer.ward is ward or not set(outer.ward.ids).isdisjoint(ward.ids):
                outer.hollow = True
                self.recorder.forget(outer)
        self._frames = [outer for outer in self._frames if outer.ward is not ward]

    def after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An optimizer has stepped."""
        ward = self.roster.find(optimizer)
        if ward is None:
            return
        self._open = None
        while self._frames:
            frame = self._frames.pop()
            if frame.ward is ward:
                self.recorder.after(frame)
                if frame.skipped:
                    self.recorder.tell_skipped(frame.step)
                break
        ward.sentinel.stepped()
        self._unstepped = False
        if self.clock.complete:
            self._finish(self.clock.number)

    def step(self) -> None:
        """The user says that the step is over."""
        if self.doze.left:
            self.wake()
        step = self.clock.number
        if not self.clock.begun:
            if self._unstepped and self.roster.wards and self.recorder.scaling.known:
                self._skip(step)
                return
            self.manual.measure(step, self.due(step), self._is_full(step))
            if self._is_full(step):
                self._rescan(step)
        self._unstepped = False
        self.clock.advance()
        self._finish(step)
        if not self.roster.wards:
            self.manual.prepare(step + 1, self.due(step + 1))

    def log(self, values: Mapping[str, Any]) -> None:
        """Numbers from the user."""
        # While the sentinels rest nobody sees a backward: then logs are placed as they used to be.
        if self._awake:
            self._logs_early = self._unstepped
        if self._logs_early:
            self.habits.seen(values)
            plain = self.notes.log(self.clock.coming, values)
        else:
            untouched = self.clock.number == self.clock.first and not self.clock.begun
            before, after = self.habits.parted(values, before_all=untouched)
            plain = self.notes.log(self.clock.coming, before) | self.notes.log(
                self.clock.made, after
            )
        self.jots.learn(plain)

    def _log_jots(self, jots: Sequence[Jot]) -> None:
        """Numbers logged in a stretch that records nothing, each with the step made before it."""
        if self._logs_early:
            self.recorder.numbers([(step + 1, name, value) for step, name, value in jots])
            return
        early = self.habits.early
        self.recorder.numbers([(step + (name in early), name, value) for step, name, value in jots])

    # -- steps -----------------------------------------------------------------------------------

    def _is_full(self, step: int) -> bool:
        return step == self.clock.first or cadence.full(
            step, k=self.pace.k, every=self.options.every
        )

    def _finish(self, step: int) -> None:
        """The step is complete; called again for the same step it does nothing."""
        if step == self._finished:
            return
        self._finished = step
        now = time.perf_counter()
        self.recorder.deliver()
        if self._armed:
            self.recorder.scalars(step, {"step_seconds": now - self._ended})
            self.recorder.finish(step)
            self.notes.read()
            if step == self.clock.first + PATIENCE:
                self.notes.ask_for_a_loss(step)
            for instrument in self.recorder.instruments:
                self.barrier.meter.spent += instrument.take_spent()
        self._ended = now
        if self.pace.after(step, bool(self._armed)):
            self._tell_stretched(step)
        self._arm(step + 1)

    def _arm(self, step: int) -> None:
        due = self.due(step)
        pause = 0 if due else cadence.quiet(step, k=self.pace.k, every=self.options.every)
        self._awake = pause < RESTING or self.recorder.scaling.known
        late = ranks.is_averaged_late()
        for ward in self.roster.all:
            ward.sentinel.sampling = Family.GRAD in due
            ward.sentinel.averaged_late = late
            ward.sentinel.set_awake(self._awake)
        if due or self._armed:
            for instrument in self.recorder.instruments:
                instrument.arm(step, due)
        self._armed = due
        if not self._awake and self.clock.complete and len(self.roster.wards) == 1:
            optimizer = self.roster.wards[0].optimizer
            if optimizer is not None:
                self.doze.begin(optimizer, pause)

    def wake(self) -> None:
        """The steps that were let pass are over, or something needs us earlier."""
        self.jots.drain()
        passed = self.doze.end()
        self._finished, self._ended = self.clock.number, time.perf_counter()
        self._unstepped = False
        if self.pace.after_idle(passed):
            self._tell_stretched(self.clock.number)
        self.recorder.deliver()
        self._arm(self.clock.number + 1)

    def _tell_stretched(self, step: int) -> None:
        if self.options.every is None:
            text = f"recording every {self.pace.k} steps to stay within the budget"
            self.sink.event(Event(step, EventKind.STRETCHED, text, data={"k": self.pace.k}))

    def _rescan(self, step: int) -> None:
        for event in self.roster.scan(step):
            self.sink.event(event)
        self._strangers.clear()

    def _adopt(self, optimizer: Optimizer) -> Ward | None:
        """An optimizer nobody told us about: ours if it steps a parameter of the model."""
        if optimizer in self._strangers or optimizer in self._hollow:
            return None
        if not self.roster.owns_ours(optimizer):
            self._strangers.add(optimizer)
            return None
        ward, gone = self.roster.add(optimizer)
        for old in gone:
            outer = old.optimizer if old is self._open else None
            if outer is None:
                self.clock.replace(old, ward)
            else:  # it is in the middle of its step: it wraps the one that really steps
                self.clock.forget(old)
                self._hollow.add(outer)
        step = self.clock.number
        self._rescan(step)
        ward.sentinel.sampling = Family.GRAD in self._armed
        text = f"{type(optimizer).__name__} steps watched parameters and is watched from now on"
        self.sink.event(Event(step, EventKind.OPTIMIZER_ADOPTED, text))
        self.manual.forget()
        return ward

    # -- backward passes -------------------------------------------------------------------------

    def _make_sentinel(self) -> Sentinel:
        scale = self.recorder.scaling.now
        return Sentinel(self.barrier, self._backward_ran, self._thrown_away, scale)

    def _backward_ran(self) -> None:
        self._unstepped = True
        self.recorder.backward()

    def _thrown_away(self, scale: float | None) -> None:
        """A backward starts although the last one was neither used nor kept."""
        scaling = self.recorder.scaling
        if self._unstepped and scaling.search() and scaling.has_backed_off(scale):
            self._skip(self.clock.coming)

    def _skip(self, step: int) -> None:
        """A scaler found an overflow and did not step: the step counts, and is marked."""
        if self.clock.complete:
            self.clock.advance()
        self.recorder.skipped(step, self.due(step), self.roster.all)
        self.recorder.tell_skipped(step)
        for ward in self.roster.all:
            ward.sentinel.stepped()
        self._unstepped = False
        self.clock.advance()
        self._finish(step)
