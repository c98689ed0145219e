"""The rows of a step, from where they are measured to the writer's thread and the live checks.

Everything that measures fills a `Found`. The recorder keeps what was found in a ring of 16 steps,
which the writer's thread empties: in the step nothing is queued, packed or written.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.guard import OverheadTimer
from gradwatch.record.schedule import StepPlan
from gradwatch.record.transfer import Transfer
from gradwatch.run import Event, EventKind, HistogramTable, Subject
from gradwatch.stats import Family, State
from gradwatch.stats.rows import empty_rows
from gradwatch.store import Writer

if TYPE_CHECKING:
    from gradwatch.record.parameters import TrackedOptimizer

RING = 16
"""Steps whose rows wait before the writer's thread is woken."""
CROWDED = 4 * RING
"""Steps that wait before the training hands them over itself: the thread does not keep up."""


class StepRows(NamedTuple):
    """The rows of one family on one step; `rows` are of `row_dtype(family)`."""

    family: Family
    step: int
    ids: NDArray[np.uint32]
    rows: NDArray[np.void]
    states: NDArray[np.uint8]


@dataclass(slots=True)
class Found:
    """What measuring a step has given so far; `Recorder.take` hands it on."""

    step: int
    rows: list[StepRows] = field(default_factory=list)
    tables: list[tuple[Family, NDArray[np.uint32], HistogramTable]] = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)
    late: "list[Late]" = field(default_factory=list)
    skipped: bool = False
    """A device found that the optimizer was told to leave the weights alone."""

    def nothing(self, family: Family, ids: NDArray[np.uint32], state: State) -> "Found":
        """Add rows that only say why there is no value."""
        states = np.full(len(ids), state, np.uint8)
        self.rows.append(StepRows(family, self.step, ids, empty_rows(family, len(ids)), states))
        return self


class Late(NamedTuple):
    """Numbers still on a device: their copy to the host has begun. `finish` gets them in order."""

    transfer: Transfer
    finish: Callable[[list[NDArray[np.float64]]], Found]


@dataclass(slots=True)
class Call:
    """One call of an optimizer's `step`, from its first hook to its last."""

    tracked: "TrackedOptimizer"
    plan: StepPlan
    found: Found
    closure: bool = False
    """The gradient is made inside the call: it can be read only afterwards."""
    skipped: bool = False
    """It is known that the call will leave the weights alone."""
    collects: bool = False
    """What the forward passes showed is read with this call."""
    unowned: bool = False
    """The parameters of no optimizer are measured with this call."""


class Meter:
    """Measures the parameters of one optimizer where they lie.

    What it finds on a device comes late: nobody waits for it.
    """

    def gradients(self, call: Call) -> None:
        """The gradients in the units backward made them in: loss scale and clipping undone."""

    def weights(self, found: Found, *, histograms: bool) -> None:
        """The weights as they are now."""

    def snapshot(self) -> None:
        """Keep the weights as they are now, for `updates`."""

    def drop_snapshot(self) -> None:
        """The step it was taken for will not be compared."""

    def updates(self, call: Call) -> None:
        """What the step did to the weights since `snapshot`, and Adam's ratio, as far as due."""

    def keep_weights(self) -> None:
        """Right after a step: keep some elements, to see whether somebody else changes them."""

    def compare_weights(self, found: Found) -> None:
        """Right before a step: whether those are what they were."""

    def is_skipped(self) -> bool:
        """Whether the optimizer was told to leave the weights alone, as far as is known now."""
        return False


class StepMonitor(Protocol):
    """Judges a step right after it, within the budget: the live checks."""

    @property
    def should_stop(self) -> bool:
        """Whether the training cannot recover."""

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """The subjects that ids stand for, whenever some are declared."""

    def noted(self, info: Mapping[str, Any]) -> None:
        """What was found out about the run: the kind of its loss, its number of classes."""

    def after_step(self, step: int, rows: Sequence[StepRows], scalars: Mapping[str, float]) -> None:
        """Judge the rows of a step that has just been recorded."""

    def close(self) -> None:
        """The training is over."""


class Recorder:
    """Keeps what was found until the writer's thread takes it, and shows it to the live checks."""

    def __init__(self, sink: Writer, timer: OverheadTimer, monitor: StepMonitor | None) -> None:
        self.sink = sink
        self.timer = timer
        self.monitor = monitor
        self.histograms = True
        """Whether histograms are recorded on full steps."""
        self.outside: list[dict[str, Any]] = []
        """The first times that somebody else than the optimizer has set weights."""
        self.event = sink.event
        self._ring: deque[Found] = deque()
        self._numbers: deque[tuple[int, str, float]] = deque()
        # One thread empties the ring at a time. A model may be collected inside, and its last rows
        # come: the lock is one that a thread takes twice.
        self._emptying = threading.RLock()
        self._late: deque[Late] = deque()
        self._rows: list[StepRows] = []
        self._scalars: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        sink.source = self.hand_over

    # -- for what measures -----------------------------------------------------------------------

    def declare(self, subjects: Sequence[Subject]) -> NDArray[np.uint32]:
        """Ids for these subjects, old or new."""
        ids = self.sink.declare(subjects)
        if self.monitor is not None:
            self.monitor.declared(subjects, ids)
        return ids

    def take(self, found: Found) -> None:
        """Keep the rows, tables and numbers of a step; wait for what is late."""
        self._ring.append(found)
        self._rows += found.rows
        self._scalars |= found.scalars
        self._late += found.late
        if found.skipped:
            self.report_skipped(found.step)

    def number(self, step: int, name: str, value: Tensor) -> None:
        """A number the user logged that is on a device."""

        def finish(arrived: list[NDArray[np.float64]]) -> Found:
            found = Found(step, scalars={name: float(arrived[0][0])})
            if name == "loss" and not isfinite(found.scalars[name]):
                found.scalars["loss_nonfinite"] = 1.0
            return found

        self._late.append(Late(Transfer([value.detach().reshape(-1)[:1]]), finish))

    def numbers(self, items: Sequence[tuple[int, str, float]]) -> None:
        """Scalars of many steps: step, name, value; the monitor is given the last of each name."""
        self._numbers += items
        for _, name, value in items:
            self._scalars[name] = value

    def note(self, info: Mapping[str, Any]) -> None:
        """Something that is true of the whole run."""
        self.sink.note(info)
        if self.monitor is not None:
            self.monitor.noted(info)

    def report_skipped(self, step: int) -> None:
        """An event for a step that changed nothing."""
        text = "skipped by the scaler: the scaled gradients were not finite"
        self.event(Event(step, EventKind.SKIPPED_STEP, text))

    def report_unreadable(self, step: int, what: str, name: str) -> None:
        """Say once of each tensor that it cannot be read: silence would look like health."""
        if (what, name) not in self._told:
            self._told.add((what, name))
            text = f"the {what} cannot be read here (device, layout or type)"
            self.event(Event(step, EventKind.NOT_RECORDED, text, name))

    # -- from one step to the next ---------------------------------------------------------------

    def finish(self, step: int) -> None:
        """The step is complete: let the monitor judge it, and the thread have what waits."""
        rows, scalars, self._rows, self._scalars = self._rows, self._scalars, [], {}
        if self.monitor is not None:
            self.monitor.after_step(step, rows, scalars)
        if len(self._ring) >= CROWDED:
            self.hand_over()
        elif len(self._ring) % RING == RING - 1:  # once, and not until the thread has come
            self.sink.wake()

    def deliver(self, *, wait: bool = False) -> None:
        """Take what has come over from devices, oldest first."""
        while self._late and (wait or self._late[0].transfer.arrived):
            transfer, finish = self._late.popleft()
            transfer.wait()
            self.take(finish(transfer.parts()))

    def hand_over(self) -> None:
        """Give the sink everything the ring holds: called by its thread, and before an end."""
        with self._emptying:
            while self._ring:
                found = self._ring.popleft()
                for rows in found.rows:
                    self.sink.put(rows.family, rows.step, rows.ids, rows.rows, rows.states)
                for family, ids, table in found.tables:
                    self.sink.histogram_table(family, found.step, ids, table)
                self.sink.scalars(found.step, found.scalars)
            self.sink.numbers([self._numbers.popleft() for _ in range(len(self._numbers))])
