"""The checks that run beside the training: bounded in time, each finding reported once.

They look at the recent past: the first steps and the last few hundred, kept in memory.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks import TRAINING_CHECKS, nonfinite
from gradwatch.checks.logged import is_loss
from gradwatch.diagnosis.diagnose import diagnose
from gradwatch.finding import Finding, Severity
from gradwatch.run import MemorySource, Run, Subject
from gradwatch.stats import HAS_VALUE, Family, Kind, Stat, State, row_dtype
from gradwatch.text import plain

FIRST, LAST = 16, 496
KEPT: tuple[Stat, ...] = (
    Stat.GRAD_NORM,
    Stat.GRAD_NAN,
    Stat.GRAD_INF,
    Stat.GRAD_ZERO_ROWS,
    Stat.GRAD_DEAD_ROWS,
    Stat.WEIGHT_NORM,
    Stat.WEIGHT_STD,
    Stat.WEIGHT_NAN,
    Stat.WEIGHT_INF,
    Stat.WEIGHT_ROW_SPREAD,
    Stat.UPDATE_NORM,
    Stat.UPDATE_RATIO,
    Stat.OPTIM_RATIO_RMS,
    Stat.ACT_STD,
    Stat.ACT_MEAN,
    Stat.ACT_GATE_ZERO_FRACTION,
    Stat.ACT_FLAT_FRACTION,
    Stat.ACT_ENTROPY,
    Stat.PROBE_NONFINITE,
    Stat.PROBE_INPUT_NONFINITE,
    Stat.PROBE_TRAINING,
    Stat.LR,
)
_NOT_SAMPLED = int(State.NOT_SAMPLED)
_FIELDS = {family: [str(stat) for stat in KEPT if stat.family is family] for family in Family}


class RecordedRows(Protocol):
    """The rows of one family on one step, as the recorder hands them over."""

    @property
    def family(self) -> Family:
        """Gradients, weights, … : what the rows are rows of."""

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The subject of each row."""

    @property
    def rows(self) -> NDArray[np.void]:
        """One record per subject, a field per statistic."""

    @property
    def states(self) -> NDArray[np.uint8]:
        """A `State` byte for each row."""


class RecentPast:
    """A ring of `LAST` steps behind the first `FIRST`; grows only in the number of subjects."""

    def __init__(self) -> None:
        self._subjects: dict[int, Subject] = {}
        self._place: NDArray[np.int64] = np.zeros(0, np.int64)
        """Column of each id within the series of its kind."""
        self._widths = dict.fromkeys(Kind, 0)
        self._values: dict[Family, dict[str, NDArray[Any]]] = {}
        """By family and field [slot, column], only the fields that are kept."""
        self._columns: dict[Family, tuple[NDArray[np.uint32], slice | NDArray[np.int64]]] = {}
        """The ids a family had last, and their columns: they hardly ever change."""
        self._states: dict[Family, NDArray[np.uint8]] = {}
        self._scalars: dict[str, NDArray[np.float64]] = {}
        self._steps = np.zeros(FIRST + LAST, np.int64)
        self._seen = 0
        self.info: dict[str, Any] = {}
        """What is known of the whole run."""

    def __len__(self) -> int:
        return min(self._seen, FIRST + LAST)

    @property
    def last_step(self) -> int:
        """Number of the newest step; −1 before the first."""
        return int(self._steps[: len(self)].max()) if self._seen else -1

    def declare(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """Learn which subjects the ids stand for."""
        for number, subject in zip(ids.tolist(), subjects, strict=True):
            if number not in self._subjects:
                if number >= len(self._place):
                    grown = np.zeros(max(64, 2 * number + 1), np.int64)
                    grown[: len(self._place)] = self._place
                    self._place = grown
                self._place[number] = self._widths[subject.kind]
                self._widths[subject.kind] += 1
            self._subjects[number] = subject

    def add(self, step: int, batches: Sequence[RecordedRows], scalars: Mapping[str, float]) -> None:
        """Take one step in; the oldest but the first ones goes."""
        at = self._seen if self._seen < FIRST else FIRST + (self._seen - FIRST) % LAST
        self._seen += 1
        self._steps[at] = step
        # The slot held an older step: what this one does not record must not show that.
        for states in self._states.values():
            states[at] = _NOT_SAMPLED
        for values in self._scalars.values():
            values[at] = np.nan
        for batch in batches:
            if not _FIELDS[batch.family]:
                continue
            columns = self._columns_of(batch)
            for name, table in self._tables(batch.family).items():
                table[at, columns] = batch.rows[name]
            self._states[batch.family][at, columns] = batch.states
        for name, value in scalars.items():
            if name not in self._scalars:
                self._scalars[name] = np.full(FIRST + LAST, np.nan)
            self._scalars[name][at] = value

    def _columns_of(self, batch: RecordedRows) -> slice | NDArray[np.int64]:
        ids, columns = self._columns.get(batch.family, (None, slice(0)))
        if batch.ids is not ids:
            places = self._place[batch.ids]
            first = int(places[0]) if len(places) else 0
            in_order = np.array_equal(places, np.arange(first, first + len(places)))
            columns = slice(first, first + len(places)) if in_order else places
            self._columns[batch.family] = batch.ids, columns
        return columns

    def _tables(self, family: Family) -> dict[str, NDArray[Any]]:
        """The numbers of one family, wide enough for every subject declared so far."""
        width = self._widths[family.kind]
        before = self._states.get(family)
        if before is None or before.shape[1] < width:
            dtype, shape = row_dtype(family), (FIRST + LAST, width)
            tables = {name: np.zeros(shape, dtype[name]) for name in _FIELDS[family]}
            states = np.full(shape, _NOT_SAMPLED, np.uint8)
            if before is not None:
                states[:, : before.shape[1]] = before
                for name, table in self._values[family].items():
                    tables[name][:, : table.shape[1]] = table
            self._values[family], self._states[family] = tables, states
        return self._values[family]

    def run(self) -> Run:
        """The steps that are kept, in the order of time; NaN where nothing was measured."""
        order = np.argsort(self._steps[: len(self)], kind="stable")
        values: dict[Stat, NDArray[np.float64]] = {}
        states: dict[Stat, NDArray[np.uint8]] = {}
        for family in self._values:
            tables = self._tables(family)
            taken = self._states[family][order]
            for name, table in tables.items():
                values[Stat(name)] = np.where(HAS_VALUE[taken], table[order], np.nan)
                states[Stat(name)] = taken
        return Run(
            MemorySource(
                self._steps[order],
                tuple(
                    self._subjects[n] for n in sorted(self._subjects, key=self._place.__getitem__)
                ),
                values,
                states,
                scalars={name: table[order] for name, table in self._scalars.items()},
                info=dict(self.info),
            )
        )


# Seen by whoever has set up logging, and by nobody else: a training's terminal is its own.
log = logging.getLogger("gradwatch.live")
log.addHandler(logging.NullHandler())

OF_WHOLE_RUNS = frozenset(
    {
        "vanishing-gradient",
        "update-ratio-too-small",
        "update-lost-to-rounding",
        "loss-oscillation",
        "slow-convergence",
        "not-learning",
        "eps-dominated-adam",
        "update-leads-loss",
        "clipped-to-nothing",
        "clipping-every-step",
        "heavy-tailed-gradients",
        "uneven-learning-speeds",
        "weight-decay-on-norms",
        "replica-divergence",
        "constant-output",
        "class-imbalance",
        "unused-input",
    }
)
"""Checks that cannot judge a run that goes on."""

FIRST_LOOK = 3
SHARE = 0.003
"""Part of the training's time the looks may take, after `ALLOWANCE` seconds."""
ALLOWANCE = 0.02
CLOSEST = 16
"""Steps between two looks at least."""


class LiveDiagnosis:
    """Judges the recent past now and then; never raises into the training, never repeats itself."""

    def __init__(self, on_finding: Callable[[Finding], None] | None = None) -> None:
        self.on_finding = on_finding
        self.findings: list[Finding] = []
        """What was reported, in that order."""
        self.run_dir = ""
        """Where the run is kept, for the last line of the log; empty until known."""
        self.seconds = 0.0
        self.should_stop = False
        self._reported: set[tuple[str, str]] = set()
        """Check and layer of each."""
        self._past = RecentPast()
        self._waiting: list[tuple[int, Sequence[RecordedRows], Mapping[str, float]]] = []
        self._checks = tuple(c for c in TRAINING_CHECKS if c.NAME not in OF_WHOLE_RUNS)
        self._began = time.perf_counter()
        self._next = FIRST_LOOK
        self._taken = 0
        self._bad_steps = 0
        self._looked_at = -1
        self._logged_loss = False

    def declared(self, subjects: Sequence[Subject], ids: NDArray[np.uint32]) -> None:
        """The subjects that ids stand for."""
        self._past.declare(subjects, ids)

    def noted(self, info: Mapping[str, Any]) -> None:
        """What was found out about the run: the kind of its loss, its number of classes."""
        self._past.info.update(info)
        if info.get("without_step"):  # nothing else will ask for a look
            self.look(max(self._past.last_step, 0))

    def after_step(
        self, step: int, rows: Sequence[RecordedRows], scalars: Mapping[str, float]
    ) -> None:
        """Remember a step, and look if it is time."""
        self._waiting.append((step, rows, scalars))
        if len(self._waiting) >= CLOSEST:
            self._take_in()
        self._taken += 1
        self._logged_loss = self._logged_loss or any(map(is_loss, scalars))
        bad = scalars.get("loss_nonfinite", 0.0) > 0 or scalars.get("input_nonfinite", 0.0) > 0
        self._bad_steps = self._bad_steps + 1 if bad else 0
        first_bad = self._bad_steps == 1  # at once: the next steps may already hide the origin
        if first_bad or self._taken >= self._next:
            self.look(step)
            self._plan()
        if self._taken == FIRST_LOOK and not self._logged_loss:
            log.warning("gradwatch: no loss was logged; add watcher.log(loss=loss) to the loop")
        if self._bad_steps >= 3:  # one or two may be bad batches; three in a row do not pass
            self.should_stop = True

    def _take_in(self) -> None:
        """Several steps at once: the second time round the code is warm, and costs a tenth."""
        for step, rows, scalars in self._waiting:
            self._past.add(step, rows, scalars)
        self._waiting.clear()

    def look(self, step: int) -> None:
        """Run the live checks on the steps that are kept, and report what is new."""
        began = time.perf_counter()
        self._take_in()
        self._looked_at = step
        diagnosis = diagnose(self._past.run(), self._checks)
        present = {
            (finding.check, finding.layers[0] if finding.layers else ""): finding
            for root in diagnosis.findings
            for finding in (root, *root.consequences)
            if finding.severity > Severity.INFO
            # where NaN began is news, how far it got is not
            and (finding is root or (finding.check, root.check) != (nonfinite.NAME, nonfinite.NAME))
        }
        roots = {id(finding) for finding in diagnosis.findings}
        for key, finding in present.items():
            if key not in self._reported:
                self._reported.add(key)
                grave = finding.severity is Severity.CRITICAL
                self._report(finding, loud=grave or id(finding) in roots)
        self.seconds += time.perf_counter() - began

    def _report(self, finding: Finding, *, loud: bool) -> None:
        """Once for each check and layer; what follows from another only to the callback."""
        self.findings.append(finding)
        if loud:
            log.warning(
                "gradwatch: step %d: %s: %s", self._looked_at, finding.check, plain(finding.message)
            )
        if self.on_finding is not None:
            try:
                self.on_finding(finding)
            except Exception as error:
                log.warning("gradwatch: on_finding raised %s and is not called again", error)
                self.on_finding = None

    def _plan(self) -> None:
        """Look again after at least `CLOSEST` steps, later when looking is dear."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        steps = max(CLOSEST, self._taken // 4 if self._taken < 256 else CLOSEST)
        if self.seconds > ALLOWANCE:
            pace = elapsed / max(self._taken, 1)
            wait = (self.seconds - ALLOWANCE) / SHARE - elapsed
            steps = max(steps, min(math.ceil(wait / pace), 100_000))
        self._next = self._taken + steps

    def close(self) -> None:
        """A last look, if anything came since the last one, and where to read more."""
        self._take_in()
        if len(self._past) > FIRST_LOOK and self._looked_at < self._past.last_step:
            self.look(self._past.last_step)
        if self.findings and self.run_dir:
            log.warning("gradwatch: read more: gradwatch diagnose %s", plain(str(self.run_dir)))
