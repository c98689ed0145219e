"""The states of a training step; the hooks of the training end here."""

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

import gradwatch.kernel as kernel
from gradwatch.record.cpu import CpuMeter
from gradwatch.record.device import DeviceMeter, forced
from gradwatch.record.forward import Forward
from gradwatch.record.guard import ErrorGuard
from gradwatch.record.logs import LoggedNumber, Logs, flattened
from gradwatch.record.notes import LossNotes, OptimizerNotes, UnansweredPasses
from gradwatch.record.options import Options, Record
from gradwatch.record.parameters import TrackedOptimizer, TrackedParameters, named_parameters
from gradwatch.record.recorder import Call, Found, Meter, Recorder, StepRows
from gradwatch.record.sampler import GradientSampler
from gradwatch.record.schedule import ALLOWANCE, Pace, Schedule, StepClock, StepPlan
from gradwatch.record.tensors import number, on_accelerator
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family, State
from gradwatch.store import Writer

SHORTEST_IDLE = 4
"""If nothing is recorded for so many steps, the samplers' hooks are taken off meanwhile."""
STEPS_WITHOUT_LOSS = 3
"""Steps without a logged loss before an event asks for one."""


class StepState(Enum):
    """Where in a step the training is, as far as the hooks have shown."""

    WAITING = "waiting"
    """No backward pass was seen since the last optimizer step."""
    BACKWARD = "backward"
    """A backward pass has run; no optimizer has used its gradients yet."""
    STEPPING = "stepping"
    """Inside `optimizer.step`, with gradients of a backward pass that was seen."""
    CLOSURE = "closure"
    """Inside `optimizer.step`, with no backward pass seen: a closure may run one."""
    IDLE = "idle"
    """Steps that record nothing: the hooks only count them."""


# The hooks look at these on every step, and a member of an enum is a slow attribute.
_WAITING, _BACKWARD, _STEPPING, _CLOSURE, _IDLE = StepState
_HAS_GRADIENTS = (_BACKWARD, _STEPPING)


class StepController:
    """Turns what the hooks see into steps, each recorded as far as it is due.

                        backward                       backward
            ┌─────────────────────────► BACKWARD      ┌──────────┐
            │                             │ pre-hook  │          │
            │                             ▼           │          ▼
         WAITING ◄──── post-hook ────  STEPPING    CLOSURE ── STEPPING
            │ │                                       ▲          │
            │ └────────────── pre-hook ───────────────┘          │
            ├────────────────── post-hook ◄──────────────────────┘
            │
            │ the step is complete, the next SHORTEST_IDLE or more record
            │ nothing, and there is one optimizer
            ▼
           IDLE    pre- and post-hooks only count, logged numbers are buffered; back to WAITING
                   when those steps are over or another optimizer or the user steps

    `watcher.step()` leads from WAITING and BACKWARD to WAITING.
    A post-hook ends the step if every optimizer expected in it has stepped (see `StepClock`).
    """

    def __init__(self, model: Module, sink: Writer, options: Options, guard: ErrorGuard) -> None:
        self.state = _WAITING
        self.options = options
        self.guard = guard
        self.scaling = options.scaling
        self.clock = StepClock(options.step or 0)
        self.schedule = Schedule(options.families, self.clock.first, options.every)
        self.recorder = Recorder(sink, guard.timer, options.monitor)
        self.recorder.histograms = Record.HISTOGRAMS in options.record
        self.parameters = TrackedParameters(
            model, options.wanted, self._track, self.recorder.declare
        )
        layers = {info.layer for info in named_parameters(model) if options.wanted(info.name)}
        self.forward = Forward(model, layers, options.record, self.recorder)
        self.pace = Pace(guard.timer, options.budget, lambda: sink.backlog)
        self.logs = Logs(guard, self.recorder, self._log_steps, self._logged)
        self.loss_notes = LossNotes(self.recorder, self.parameters)
        self.optimizer_notes = OptimizerNotes(self.recorder, self.parameters)
        self._unanswered: UnansweredPasses | None = UnansweredPasses(self.recorder, self.parameters)
        """Until the first step."""
        self._calls: dict[TrackedOptimizer, Call] = {}
        """Calls of `optimizer.step` that have begun."""
        self._before: Found | None = None
        """Without an optimizer: the weights before an update that only the user announces."""
        self._inside: TrackedOptimizer | None = None
        self._strangers: WeakSet[Optimizer] = WeakSet()
        """Optimizers that step no parameter of the model, or leave that to one they wrap."""
        self._graph: object = None
        self._hooked = True
        self._rates: dict[TrackedOptimizer, tuple[list[float], StepRows]] = {}
        self._plan = StepPlan(-1, frozenset(), full=False)
        """Of the coming step."""
        self._ended_at = time.perf_counter()
        self._finished = self.clock.first - 1
        self._logs_early = True

    # -- the run ---------------------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Take stock and arm the first step."""
        for optimizer in optimizers:
            self.parameters.add(optimizer)
        step = self.clock.number
        self.parameters.scan(step)
        self.clock.expect(self.parameters.optimizers)
        self.recorder.event(Event(step, EventKind.STARTED, "recording starts"))
        self.optimizer_notes.audit(step, optimizers)
        self._arm(step)

    def end(self, text: str) -> None:
        """The last sample of the weights: they are those before the step that will not come."""
        self.logs.drain()
        clock, step = self.clock, self.clock.coming
        there = self.parameters.model is not None
        if there and step > clock.first and Family.WEIGHT in self.options.families:
            self.recorder.take(self._weights(step))
        self.recorder.deliver(wait=True)
        if self._unanswered is not None:
            self._unanswered.end(clock.first, self._strangers)
        else:
            self.optimizer_notes.look_for_silent()
        self._read_notes()
        self.recorder.event(Event(clock.made, EventKind.CLOSED, text))
        timer, overhead = self.guard.timer, self.pace.overhead
        cost = {
            "overhead": float(overhead),
            "overhead_after_allowance": overhead.after,
            "spent": timer.spent,
            "allowance": ALLOWANCE,
            "background": self.recorder.sink.background / max(timer.wall, 1e-9),
        }
        self.recorder.sink.note({"complete": True, **cost, **self.logs.samples.info()})
        self.recorder.hand_over()

    def detach(self) -> None:
        """Take away every hook but those on the optimizers; what is logged is kept no more."""
        self.clock.end_idle()
        for tracked in self.parameters.all:
            tracked.sampler.remove()
        self.forward.detach()

    def plan(self, step: int) -> StepPlan:
        """What is to be measured on this step."""
        return self._plan if step == self._plan.step else self.schedule.plan(step, self.pace.k)

    def _make_meter(self, tracked: TrackedOptimizer) -> Meter:
        """What measures parameters on an accelerator, or on the CPU."""
        tensors = [p for p in tracked.tensors() if p is not None and not is_lazy(p)]
        device = any(map(on_accelerator, tensors)) or (forced() and tensors)
        return (DeviceMeter if device else CpuMeter)(tracked, self.recorder)

    # -- the hooks on optimizers -----------------------------------------------------------------

    def before_step(self, optimizer: Optimizer, closure: object) -> None:
        """An optimizer is about to step, and calls the closure if there is one."""
        tracked = self.parameters.find(optimizer) or self._adopt(optimizer)
        if tracked is None:
            return
        self._wake()
        if self.clock.has_stepped(tracked):
            self._finish(self.clock.number)  # some optimizer was waited for in vain
        begins = self.clock.enter(tracked)
        if self.state is _BACKWARD:
            self.state = _STEPPING
        elif self.state is _WAITING:
            self.state = _CLOSURE
        self._inside = tracked
        plan = self.plan(self.clock.number)
        if not plan.due:
            return
        if plan.full:
            self._report(self.parameters.refresh(plan.step))
        if self._calls:
            # An optimizer may wrap another and call its `step` from its own: then both hooks fire,
            # and the inner one counts. A call of this very one was left open by an error.
            calls, mine = self._calls.items(), set(tracked.ids)
            self._calls = {t: call for t, call in calls if mine.isdisjoint(t.ids)}
        call = Call(tracked, plan, Found(plan.step), callable(closure), unowned=begins)
        call.collects = self.clock.complete
        self._calls[tracked] = call
        self._measure_before(call)

    def _measure_before(self, call: Call) -> None:
        """Everything that is lost once the weights have changed."""
        tracked, found, due = call.tracked, call.found, call.plan.due
        kernel.set_threads(torch.get_num_threads())  # as many as the training itself uses
        if call.unowned:  # the first of the step: nobody has stepped since the last
            for other in self.parameters.optimizers:
                if other is not tracked or call.closure:
                    other.meter.compare_weights(found)
        call.skipped = found.skipped = tracked.meter.is_skipped()
        if Family.WEIGHT in due:
            histograms = call.plan.full and self.recorder.histograms
            tracked.meter.weights(found, histograms=histograms)
            if call.unowned and self.parameters.unowned.parameters:
                self.parameters.unowned.meter.weights(found, histograms=histograms)
        if not call.closure:
            self._measure_gradients(call)
        if Family.UPDATE in due:
            tracked.meter.snapshot()

    def _measure_gradients(self, call: Call) -> None:
        """What the backward passes of this step have left, and what the layers showed."""
        found, unowned = call.found, self.parameters.unowned
        if Family.GRAD in call.plan.due:
            call.tracked.meter.gradients(call)
            if call.unowned and unowned.parameters:
                unowned.meter.gradients(call)
        call.tracked.sampler.scalars(found.scalars)
        if call.skipped or self.scaling.known:
            found.scalars["skipped"] = float(call.skipped)
        if call.collects:
            self.forward.collect(found)

    def _measure_after(self, call: Call) -> None:
        """Everything the step itself has made."""
        if call.closure:
            self._measure_gradients(call)
        if Family.UPDATE in call.plan.due:
            call.tracked.meter.updates(call)
        if Family.GROUP in call.plan.due:
            self._learning_rates(call)

    def _learning_rates(self, call: Call) -> None:
        """One row per parameter group; those of the last step where no rate has changed."""
        optimizer, ids = call.tracked.optimizer, call.tracked.group_ids
        groups = [] if optimizer is None else optimizer.param_groups
        rates = [number(group.get("lr")) for group in groups]
        if not rates or len(rates) != len(ids):
            return  # a group may be new
        if call.tracked not in self._rates or self._rates[call.tracked][0] != rates:
            call.found.nothing(Family.GROUP, ids, State.MEASURED)  # rows to be filled
            call.found.rows[-1].rows["lr"] = rates
            self._rates[call.tracked] = rates, call.found.rows.pop()
        call.found.rows.append(self._rates[call.tracked][1]._replace(step=call.plan.step))

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        tracked = self.parameters.find(optimizer)
        if tracked is None:
            return
        self._inside = None
        if (call := self._calls.pop(tracked, None)) is not None:
            self._measure_after(call)
            self.recorder.take(call.found)
        if not tracked.has_stepped and tracked.sampler.missed:
            self.parameters.settle(tracked, with_gradient=True)
        tracked.has_stepped = True
        tracked.sampler.stepped()
        self.state = _WAITING
        if self.clock.complete:
            self._finish(self.clock.number)

    def _adopt(self, optimizer: Optimizer) -> TrackedOptimizer | None:
        """An optimizer nobody told us about: ours if it steps a parameter of the model."""
        if optimizer in self._strangers or not self.parameters.are_stepped_by(optimizer):
            self._strangers.add(optimizer)
            return None
        tracked, replaced = self.parameters.add(optimizer)
        self._report(self.parameters.scan(self.clock.number))
        for old in replaced:
            if old is self._inside and (outer := old.optimizer) is not None:
                self.clock.forget(old)  # in the middle of its step: it wraps the one that steps
                self._strangers.add(outer)
            else:
                self.clock.replace(old, tracked)
        text = f"{type(optimizer).__name__} steps watched parameters and is watched from now on"
        self.recorder.event(Event(self.clock.number, EventKind.OPTIMIZER_ADOPTED, text))
        self.optimizer_notes.describe()
        return tracked

    # -- the hooks on sampled parameters ---------------------------------------------------------

    def _track(self, optimizer: Optimizer | None) -> TrackedOptimizer:
        sampler = GradientSampler(self.guard, self.scaling, self._backward_ran, self._thrown_away)
        return TrackedOptimizer(optimizer, sampler, self._make_meter)

    def _backward_ran(self) -> None:
        if self.state is _WAITING:
            self.state = _BACKWARD
        elif self.state is _CLOSURE:
            self.state = _STEPPING
        if self._unanswered is not None:
            self._unanswered.backward()
        self.forward.backward()

    def _thrown_away(self, scale: float | None) -> None:
        """A backward starts although the last one was neither used nor kept."""
        if self.state in _HAS_GRADIENTS and self.scaling.has_backed_off(scale):
            self._skip(self.clock.coming)

    def _skip(self, step: int) -> None:
        """A scaler found an overflow and did not step: the step counts, and is marked."""
        self._wake()
        if self.clock.complete:
            self.clock.advance()
        plan = self.plan(step)
        # The weights are still those before the step: nothing was updated.
        found = self._weights(step) if Family.WEIGHT in plan.due else Found(step)
        for tracked in self._there():
            for family in {Family.GRAD, Family.UPDATE, Family.OPTIM} & plan.due:
                found.nothing(family, tracked.ids, State.SKIPPED_STEP)
        found.scalars["skipped"] = 1.0
        found.skipped = True
        self.forward.skipped(found)
        self.recorder.take(found)
        self._end_step(step)

    def _weights(self, step: int) -> Found:
        found = Found(step)
        for tracked in self._there():
            tracked.meter.weights(found, histograms=self.recorder.histograms)
        return found

    def _there(self) -> list[TrackedOptimizer]:
        return [tracked for tracked in self.parameters.all if tracked.parameters]

    # -- the user's calls ------------------------------------------------------------------------

    def step(self) -> None:
        """The user says that the step is over."""
        self._wake()
        step, parameters = self.clock.number, self.parameters
        if not self.clock.begun:
            if self.state in _HAS_GRADIENTS and parameters.optimizers and self.scaling.known:
                self._skip(step)
                return
            plan = self.plan(step)
            if plan.full or parameters.has_lazy:
                self._report(parameters.refresh(step))
            if plan.due:  # an update is done, and nobody called us before it
                found = self._before or Found(step)
                for tracked in self._there():
                    call = Call(tracked, plan, found, closure=True)
                    call.collects = tracked is parameters.unowned
                    self._measure_after(call)
                self.recorder.take(found)
        self._end_step(step)

    def _end_step(self, step: int) -> None:
        """A step that no hook has ended is over."""
        for tracked in self.parameters.all:
            tracked.sampler.stepped()
        self.clock.end_idle()
        self.clock.advance()
        self.state = _WAITING
        self._finish(step)

    def log(self, given: Any, named: Mapping[str, Any]) -> None:
        """Numbers from the user, that are not of the usual kind."""
        self.logs.drain()
        values = {**flattened(given), **flattened(named)}
        untouched = self.clock.number == self.clock.first and not self.clock.begun
        self.logs.log(values, before_all=untouched, backward_ran=self.state in _HAS_GRADIENTS)
        self.loss_notes.look(values)
        if self.loss_notes.looks and isinstance(values.get("loss"), torch.Tensor):
            self.logs.look_closely("loss")

    def _logged(self, items: Sequence[LoggedNumber]) -> None:
        if self._unanswered is not None:
            self._unanswered.logged(items)

    def _log_steps(self) -> tuple[int, int]:
        """The steps that numbers logged now belong to: those logged early, and others."""
        # Without the samplers' hooks nobody sees a backward: logs are placed as they used to be.
        if self._hooked:
            self._logs_early = self.state in _HAS_GRADIENTS
        coming = self.clock.coming
        return coming, coming if self._logs_early else self.clock.made

    # -- from one step to the next ---------------------------------------------------------------

    def _finish(self, step: int) -> None:
        """The step is complete; called again for the same step it does nothing."""
        if step == self._finished:
            return
        self._finished = step
        now = time.perf_counter()
        self.logs.drain()
        self.recorder.deliver()
        if self._plan.due:
            self.recorder.numbers([(step, "step_seconds", now - self._ended_at)])
            self.recorder.finish(step)
            self._read_notes()
            if step == self.clock.first + STEPS_WITHOUT_LOSS:
                self.loss_notes.ask_for_a_loss(step)
            if len(self.parameters.optimizers) > 1 and step & (step - 1) == 0:
                self.optimizer_notes.look_for_silent()
        self._ended_at = now
        self._arm(step + 1, stretched=self.pace.after(step, bool(self._plan.due)))

    def _read_notes(self) -> None:
        """What the forward passes have shown meanwhile: the graph of the layers, the loss."""
        graph = self.forward.graph
        if graph is not None and graph is not self._graph:
            self._graph = graph
            self.recorder.sink.graph(graph)
            self.parameters.learn_order(graph.order)
        self.loss_notes.note(self.forward.loss_guess)

    def _wake(self) -> None:
        """A step is made, and it is not one of those that are only counted."""
        if self._unanswered is not None:
            self._unanswered.answered()
            self._unanswered = None
        if self.state is _IDLE:
            self.end_idle()

    def _arm(self, step: int, *, stretched: bool = False) -> None:
        """Put up the hooks that the coming step needs, or begin a stretch of idle steps."""
        k = self.pace.k
        if stretched and self.options.every is None:
            text = f"recording every {k} steps to stay within the budget"
            self.recorder.event(Event(step, EventKind.STRETCHED, text, data={"k": k}))
        self._plan = plan = self.schedule.plan(step, k)
        idle = 0 if plan.due else self.schedule.idle(step, k)
        self._hooked = idle < SHORTEST_IDLE or self.scaling.known
        optimizers, unowned = self.parameters.optimizers, self.parameters.unowned
        for tracked in self.parameters.all:
            tracked.sampler.prepare(sampling=Family.GRAD in plan.due, hooked=self._hooked)
        if plan.due and Record.WEIGHTS in self.options.record:
            for tracked in optimizers:
                tracked.meter.keep_weights()
        self.forward.arm(plan)
        alone = not optimizers and bool(unowned.parameters)  # nobody calls us before the update
        self._before = self._weights(step) if alone and Family.WEIGHT in plan.due else None
        if alone and Family.UPDATE in plan.due:
            unowned.meter.snapshot()
        # With several optimizers the clock must see who steps, so those steps are not idle.
        optimizer = optimizers[0].optimizer if len(optimizers) == 1 else None
        if optimizer is not None and not self._hooked and self.clock.complete:
            self.clock.begin_idle(optimizer, idle)
            self.state = _IDLE

    def end_idle(self) -> None:
        """The idle steps are over, or something needs us earlier."""
        self.logs.drain()
        self._finished, self._ended_at = self.clock.number, time.perf_counter()
        self.state = _WAITING
        self.recorder.deliver()
        self._arm(self.clock.number + 1, stretched=self.pace.after_idle(self.clock.end_idle()))

    def _report(self, changes: Sequence[Event]) -> None:
        """Parameters that have come, gone or changed since the model was last looked at."""
        for event in changes:
            self.recorder.event(event)
            self._strangers.clear()  # one of them may have been given parameters of the model
