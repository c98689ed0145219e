"""The states of a training step; the hooks of the training end here."""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from weakref import WeakSet

from torch.nn import Module
from torch.optim import Optimizer

from gradwatch.record.backend import OptimizerStep, SentRows
from gradwatch.record.clipping import GradientSampler
from gradwatch.record.clock import (
    ALLOWANCE,
    Pace,
    StepClock,
    families_due,
    idle_steps,
    takes_histograms,
    takes_sketches,
)
from gradwatch.record.guard import ErrorGuard
from gradwatch.record.metadata import (
    LoggedScalar,
    LogPlacement,
    RunMetadata,
    ScalarBuffer,
    flattened,
)
from gradwatch.record.optimizers import LossScaling
from gradwatch.record.options import Options, Record
from gradwatch.record.outside import OutsideChanges
from gradwatch.record.parameters import TrackedOptimizer, TrackedParameters
from gradwatch.record.passes import UnansweredPasses, silent_optimizers
from gradwatch.record.recorder import Recorder
from gradwatch.record.rows import StepMonitor
from gradwatch.record.signal import Signal
from gradwatch.record.tensors import number
from gradwatch.run import Event, EventKind
from gradwatch.stats import Family
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
    ENDED = "ended"


# The hooks look at these on every step, and a member of an enum is a slow attribute.
_WAITING, _BACKWARD, _STEPPING, _CLOSURE, _IDLE, _ENDED = StepState
_HAS_GRADIENTS = (_BACKWARD, _STEPPING)


class StepPlan(NamedTuple):
    """What is to be measured on a step."""

    step: int
    due: frozenset[Family]
    full: bool
    """Also histograms, and a look at the model's parameters."""
    sketches: bool
    cosines: bool


_NO_PLAN = StepPlan(-1, frozenset(), full=False, sketches=False, cosines=False)


class StepController:
    """Follows the steps of a training and tells the recorder what to measure when.

    One per watcher. Every public method is called inside the error guard, by the hooks on the
    optimizers, the sampled parameters and the user's own calls::

                      backward ran               pre-hook
           WAITING ─────────────────► BACKWARD ─────────────► STEPPING ──┐
            ▲ │ ▲                        │                       ▲       │
            │ │ └── skipped by a scaler ─┘          backward ran │       │
            │ │                                                  │       │
            │ └────────────── pre-hook ──────────────────────► CLOSURE   │
            │                                                    │       │
            ├────────────────── post-hook ◄──────────────────────┴───────┘
            │
            │ the step is complete, the next SHORTEST_IDLE or more record
            │ nothing, and there is one optimizer
            ▼
           IDLE    pre- and post-hooks only count, logged numbers are buffered; back to WAITING
                   when those steps are over or another optimizer or the user steps

    `watcher.step()` leads from WAITING and BACKWARD to WAITING; `end` from everywhere to ENDED.
    A post-hook ends the step if every optimizer expected in it has stepped (see `StepClock`).
    """

    def __init__(
        self,
        model: Module,
        *,
        sink: Writer,
        options: Options,
        clock: StepClock,
        guard: ErrorGuard,
        scaling: LossScaling,
        signals: Sequence[Signal],
        monitor: StepMonitor | None,
    ) -> None:
        self.state = _WAITING
        self.sink = sink
        self.options = options
        self.clock = clock
        self.guard = guard
        self.recorder = Recorder(sink, options, scaling, signals, monitor)
        self.parameters = TrackedParameters(
            model, sink, options.wanted, self._track, self.recorder.declared
        )
        self.pace = Pace(guard.timer, options.budget, lambda: sink.backlog)
        self.metadata = RunMetadata(self.recorder, self.parameters)
        self.manual = ManualSteps(self.recorder, self.parameters)
        self.placement = LogPlacement()
        self.scalar_buffer = ScalarBuffer(
            guard, self._log_steps, self.placement.early, self._logged
        )
        self._unanswered: UnansweredPasses | None = UnansweredPasses(
            self.recorder, self.parameters, self.scalar_buffer.drain
        )
        """Until the first step."""
        self._silent: list[dict[str, Any]] = []
        self._outside = OutsideChanges(self.recorder, self.parameters)
        self._calls: list[OptimizerStep] = []
        """Calls of `optimizer.step` that have begun, the innermost last."""
        self._inside: TrackedOptimizer | None = None
        self._wrappers: WeakSet[Optimizer] = WeakSet()
        """Optimizers that only pass on to another, which is tracked instead."""
        self._strangers: WeakSet[Optimizer] = WeakSet()
        """Optimizers that step no parameter of the model."""
        self._hooked = True
        self._plan = _NO_PLAN
        """Of the coming step: what the signals were armed for."""
        self._ended_at = time.perf_counter()
        self._finished = clock.first - 1
        self._logs_early = True

    # -- the run ---------------------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Optimizer]) -> None:
        """Take stock and arm the first step."""
        for optimizer in optimizers:
            self.parameters.add(optimizer)
        step = self.clock.number
        self.parameters.scan(step)
        self.clock.expect(self.parameters.optimizers)
        self.sink.event(Event(step, EventKind.STARTED, "recording starts"))
        for signal in self.recorder.signals:
            signal.attach()
        self.metadata.audit(step, optimizers)
        self._arm(step)
        if not optimizers:
            self.manual.prepare(step, self.due(step))

    def end(self, text: str) -> None:
        """The last sample of the weights: they are those before the step that will not come."""
        self.scalar_buffer.drain()
        clock = self.clock
        step = clock.coming
        there = self.parameters.model is not None
        if there and step > clock.first and Family.WEIGHT in self.options.families:
            self.recorder.weights(step, self.parameters.all)
        self.recorder.deliver(wait=True)
        self._settle(step + 1)
        if self._unanswered is not None:
            self._unanswered.end(clock.first, self._strangers)
        else:
            self._look_for_silent()
        self.state = _ENDED
        self.metadata.end()
        self.sink.event(Event(clock.made, EventKind.CLOSED, text))
        timer, overhead = self.guard.timer, self.pace.overhead
        cost = {
            "overhead": float(overhead),
            "overhead_after_allowance": overhead.after,
            "spent": timer.spent,
            "allowance": ALLOWANCE,
            "background": self.sink.background / max(timer.wall, 1e-9),
        }
        if timer.on_devices:
            cost["device_seconds"] = timer.on_devices
        self.sink.note({"complete": True, **cost})

    def detach(self) -> None:
        """Take away every hook but those on the optimizers; what is logged is kept no more."""
        self.clock.end_idle()
        for tracked in self.parameters.all:
            tracked.sampler.remove()
        for signal in self.recorder.signals:
            signal.detach()

    def plan(self, step: int) -> StepPlan:
        """What is to be measured on this step: on the first, everything."""
        if step == self._plan.step:
            return self._plan
        if step == self.clock.first:
            return StepPlan(step, self.options.families, full=True, sketches=True, cosines=True)
        k, every = self.pace.k, self.options.every
        due = families_due(step, self.options.families, k=k, every=every)
        full = takes_histograms(step, k=k, every=every)
        return StepPlan(step, due, full, *takes_sketches(step, k=k, every=every))

    def due(self, step: int) -> frozenset[Family]:
        """The families to record on this step."""
        return self.plan(step).due

    # -- the hooks on optimizers -----------------------------------------------------------------

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An optimizer is about to step."""
        tracked = self.parameters.find(optimizer) or self._adopt(optimizer)
        if tracked is None:
            return
        if self._unanswered is not None:
            self._answer()
        if self.state is _IDLE:
            self.end_idle()
        if self.clock.has_stepped(tracked):
            self._finish(self.clock.number)  # some optimizer was waited for in vain
        begins = self.clock.enter(tracked)
        if self.state is _BACKWARD:
            self.state = _STEPPING
        elif self.state is _WAITING:
            self.state = _CLOSURE
        self._inside = tracked
        plan = self.plan(self.clock.number)
        if plan.due:
            self._outside.compare(plan.step)
            self._begin_call(tracked, plan, begins, _has_closure(args, kwargs))

    def _begin_call(
        self, tracked: TrackedOptimizer, plan: StepPlan, begins: bool, closure: bool
    ) -> None:
        if plan.full:
            self._report(self.parameters.refresh(plan.step))
        if self._calls:
            self._supersede_wrappers(tracked)
        call = OptimizerStep(
            tracked,
            plan.step,
            plan.due,
            histograms=plan.full and self.recorder.histograms,
            closure=closure,
            unowned=self.parameters.unowned if begins else None,
            collects=self.clock.complete,
            sketches=plan.sketches,
            cosines=plan.cosines,
        )
        self._calls.append(call)
        self.recorder.before(call)

    def _supersede_wrappers(self, tracked: TrackedOptimizer) -> None:
        """Record nothing of calls around this one that step the same parameters.

        An optimizer may wrap another and call its `step` from its own: then both hooks fire, and
        the inner one counts. A call of this very optimizer was left open by an error in the user's
        step.
        """
        for outer in self._calls:
            if outer.tracked is tracked or not set(outer.tracked.ids).isdisjoint(tracked.ids):
                outer.supersede()
        self._calls = [outer for outer in self._calls if outer.tracked is not tracked]

    def after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An optimizer has stepped."""
        tracked = self.parameters.find(optimizer)
        if tracked is None:
            return
        self._inside = None
        while self._calls:
            call = self._calls.pop()
            if call.tracked is tracked:
                self.recorder.after(call)
                if call.skipped:
                    self.recorder.report_skipped(call.step)
                break
        tracked.sampler.stepped()
        tracked.has_stepped = True
        self._wait()
        if self.clock.complete:
            self._finish(self.clock.number)

    def _wait(self) -> None:
        """No gradients are left to be used; idle steps go on until `end_idle`."""
        if self.state is not _IDLE:
            self.state = _WAITING

    def _adopt(self, optimizer: Optimizer) -> TrackedOptimizer | None:
        """An optimizer nobody told us about: ours if it steps a parameter of the model."""
        if optimizer in self._strangers or optimizer in self._wrappers:
            return None
        if not self.parameters.are_stepped_by(optimizer):
            self._strangers.add(optimizer)
            return None
        tracked, replaced = self.parameters.add(optimizer)
        for old in replaced:
            outer = old.optimizer if old is self._inside else None
            if outer is None:
                self.clock.replace(old, tracked)
            else:  # it is in the middle of its step: it wraps the one that really steps
                self.clock.forget(old)
                self._wrappers.add(outer)
        step = self.clock.number
        self._report(self.parameters.scan(step))
        tracked.sampler.prepare(sampling=Family.GRAD in self._plan.due, hooked=True)
        text = f"{type(optimizer).__name__} steps watched parameters and is watched from now on"
        self.sink.event(Event(step, EventKind.OPTIMIZER_ADOPTED, text))
        self.metadata.describe()
        self.manual.forget()
        return tracked

    # -- the hooks on sampled parameters ---------------------------------------------------------

    def _track(self, optimizer: Optimizer | None) -> TrackedOptimizer:
        scale = self.recorder.scaling.now
        sampler = GradientSampler(self.guard, self._backward_ran, self._thrown_away, scale)
        return TrackedOptimizer(optimizer, sampler, self.recorder.make_backend)

    def _backward_ran(self) -> None:
        if self.state is _WAITING:
            self.state = _BACKWARD
        elif self.state is _CLOSURE:
            self.state = _STEPPING
        if self._unanswered is not None:
            self._unanswered.backward()
        self.recorder.backward()

    def _thrown_away(self, scale: float | None) -> None:
        """A backward starts although the last one was neither used nor kept."""
        scaling = self.recorder.scaling
        if self.state in _HAS_GRADIENTS and scaling.search() and scaling.has_backed_off(scale):
            self._skip(self.clock.coming)

    def _skip(self, step: int) -> None:
        """A scaler found an overflow and did not step: the step counts, and is marked."""
        self._answer()
        if self.clock.complete:
            self.clock.advance()
        self.recorder.skipped(step, self.due(step), self.parameters.all)
        self.recorder.report_skipped(step)
        for tracked in self.parameters.all:
            tracked.sampler.stepped()
        self.state = _WAITING
        self.clock.advance()
        self._finish(step)

    # -- the user's calls ------------------------------------------------------------------------

    def step(self) -> None:
        """The user says that the step is over."""
        self._answer()
        if self.state is _IDLE:
            self.end_idle()
        step = self.clock.number
        if not self.clock.begun:
            has_gradients = self.state in _HAS_GRADIENTS
            if has_gradients and self.parameters.optimizers and self.recorder.scaling.known:
                self._skip(step)
                return
            plan = self.plan(step)
            if self.parameters.has_lazy:
                self._report(self.parameters.scan(step))
            self.manual.measure(step, plan.due, plan.full and self.recorder.histograms)
            if plan.full:
                self._report(self.parameters.refresh(step))
        self._wait()
        self.clock.advance()
        self._finish(step)
        if not self.parameters.optimizers:
            self.manual.prepare(step + 1, self.due(step + 1))

    def log(self, given: Any, named: Mapping[str, Any]) -> None:
        """Numbers from the user."""
        self.scalar_buffer.drain()
        values = self.metadata.numbers_in({**flattened(given), **flattened(named)}, self.clock.made)
        coming, made = self._log_steps()
        if self._logs_early:
            self.placement.learn(values)
            plain = self.metadata.log(coming, values)
        else:
            untouched = self.clock.number == self.clock.first and not self.clock.begun
            before, after = self.placement.split(values, before_all=untouched)
            plain = self.metadata.log(coming, before) | self.metadata.log(made, after)
        self.scalar_buffer.learn(plain)
        if self._unanswered is not None:
            self._unanswered.logged([(coming, name, number(v)) for name, v in values.items()])

    def _logged(self, items: Sequence[LoggedScalar]) -> None:
        if self._unanswered is not None:
            self._unanswered.logged(items)
        self.recorder.numbers(items)

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
        self.scalar_buffer.drain()
        self.recorder.deliver()
        recorded = bool(self._plan.due)
        if recorded:
            self.recorder.scalars(step, {"step_seconds": now - self._ended_at})
            self.recorder.finish(step)
            self.metadata.read()
            if step == self.clock.first + STEPS_WITHOUT_LOSS:
                self.metadata.ask_for_a_loss(step)
            if len(self.parameters.optimizers) > 1 and step & (step - 1) == 0:
                self._look_for_silent()
            # the time of their own hooks is ours too
            self.guard.timer.spent += sum([s.take_spent() for s in self.recorder.signals])
        self._ended_at = now
        self._settle(step)
        if self.pace.after(step, recorded):
            self._report_stretched(step)
        self._arm(step + 1)

    def _answer(self) -> None:
        """A step is made."""
        if self._unanswered is not None:
            self._unanswered.answered()
            self._unanswered = None

    def _look_for_silent(self) -> None:
        silent = silent_optimizers(self.parameters.optimizers)
        if silent != self._silent:
            self._silent = silent
            self.recorder.note({"silent_optimizers": silent})

    def _settle(self, before: int) -> None:
        """What devices took for steps that they have finished counts too."""
        for step, seconds in self.recorder.launch_times.settled(before):
            self.pace.on_device(step, seconds)

    def _arm(self, step: int) -> None:
        """Put up the hooks that the coming step needs, or begin a stretch of idle steps."""
        before, self._plan = self._plan.due, _NO_PLAN
        self._plan = self.plan(step)
        due = self._plan.due
        idle = 0 if due else idle_steps(step, k=self.pace.k, every=self.options.every)
        self._hooked = idle < SHORTEST_IDLE or self.recorder.scaling.known
        for tracked in self.parameters.all:
            tracked.sampler.prepare(sampling=Family.GRAD in due, hooked=self._hooked)
        if due and Record.WEIGHTS in self.options.record:
            self._outside.keep()
        if due or before:  # signals without hooks need not be disarmed again
            for signal in self.recorder.signals:
                signal.arm(step, due)
        # With several optimizers the clock must see who steps, so those steps are not idle.
        if not self._hooked and self.clock.complete and len(self.parameters.optimizers) == 1:
            optimizer = self.parameters.optimizers[0].optimizer
            if optimizer is not None:
                self.clock.begin_idle(optimizer, idle)
                self.state = _IDLE

    def end_idle(self) -> None:
        """The idle steps are over, or something needs us earlier."""
        self.scalar_buffer.drain()
        passed = self.clock.end_idle()
        self._finished, self._ended_at = self.clock.number, time.perf_counter()
        self.state = _WAITING
        if self.pace.after_idle(passed):
            self._report_stretched(self.clock.number)
        self.recorder.deliver()
        self._arm(self.clock.number + 1)

    def _report_stretched(self, step: int) -> None:
        if self.options.every is None:
            text = f"recording every {self.pace.k} steps to stay within the budget"
            self.sink.event(Event(step, EventKind.STRETCHED, text, data={"k": self.pace.k}))

    def _report(self, changes: Sequence[Event]) -> None:
        """Parameters that have come, gone or changed since the model was last looked at."""
        for event in changes:
            self.sink.event(event)
        self._strangers.clear()  # one of them may have been given parameters of the model since


class ManualSteps:
    """Steps that only the user can announce: an optimizer of another library, an update by hand.

    Nobody calls us before such an update: what must be read before it is read a step early.
    """

    def __init__(self, recorder: Recorder, parameters: TrackedParameters) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._weights: list[SentRows] = []

    def prepare(self, step: int, due: frozenset[Family]) -> None:
        """Between two steps: the weights as they are before the update of `step`."""
        unowned, recorder = self._parameters.unowned, self._recorder
        self.forget()
        if Family.WEIGHT in due:
            self._weights = recorder.send_weights(step, unowned, histograms=recorder.histograms)
        if Family.UPDATE in due and unowned.parameters:
            unowned.backend.snapshot(unowned)

    def forget(self) -> None:
        """A torch optimizer has turned up: its hooks will see to everything."""
        self._weights = []
        self._parameters.unowned.backend.drop_snapshot()

    def measure(self, step: int, due: frozenset[Family], histograms: bool) -> None:
        """The update of `step` is done: gradients, weights before it, what it changed."""
        for tracked in self._parameters.all:
            if tracked.parameters:
                unowned = tracked is self._parameters.unowned
                call = OptimizerStep(tracked, step, due, histograms, closure=True, collects=unowned)
                if unowned:
                    call.pending += self._weights
                self._recorder.after(call)
                tracked.sampler.stepped()
        self._weights = []


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the optimizer was given a closure; `args[0]` is the optimizer itself."""
    closure: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return callable(closure)
