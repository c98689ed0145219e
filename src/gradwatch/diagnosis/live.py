"""The checks that run beside the training: bounded in time, each finding reported once."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks import CHECKS
from gradwatch.diagnosis.diagnose import diagnose
from gradwatch.diagnosis.recent import FamilyRows, RecentPast
from gradwatch.finding import Finding, Severity
from gradwatch.run import Subject

log = logging.getLogger("gradwatch")

LIVE = frozenset(
    {
        "nonfinite",
        "stale-gradients",
        "norm-misuse",
        "output-misuse",
        "input-scale",
        "not-updated",
        "no-gradient",
        "symmetric-weights",
        "bad-init",
        "dead-units",
        "saturation",
        "exploding-gradient",
        "gradient-spikes",
        "update-ratio-too-large",
        "weight-explosion",
        "weight-collapse",
        "divergence",
        "loss-spike",
        "overfitting",
        "loss-scale-overflow",
        "stale-second-moment",
    }
)
"""Checks whose verdict on part of a run holds for the whole of it."""

FIRST_LOOK = 3
SHARE = 0.003
"""Part of the training's time the looks may take, after `ALLOWANCE` seconds."""
ALLOWANCE = 0.2
CLOSEST = 16
"""Steps between two looks at least."""


class FindingState(StrEnum):
    """Where one (check, layer) stands."""

    RAISED = "raised"
    CONTINUING = "continuing"
    CLEARED = "cleared"


class LiveDiagnosis:
    """Judges the recent past now and then; never raises into the training, never repeats itself."""

    def __init__(self, on_finding: Callable[[Finding], None] | None = None) -> None:
        self.on_finding = on_finding
        self.states: dict[tuple[str, str], FindingState] = {}
        self.findings: list[Finding] = []
        """What was reported, in that order."""
        self.run_dir = ""
        """Where the run is kept, for the last line of the log; empty until known."""
        self.seconds = 0.0
        self.should_stop = False
        self._past = RecentPast()
        self._checks = tuple(check for check in CHECKS if check.NAME in LIVE)
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

    def after_step(
        self, step: int, rows: Sequence[FamilyRows], scalars: Mapping[str, float]
    ) -> None:
        """Remember a step, and look if it is time."""
        self._past.add(step, rows, scalars)
        self._taken += 1
        self._logged_loss |= "loss" in scalars
        bad = _nonfinite(scalars)
        self._bad_steps = self._bad_steps + 1 if bad else 0
        first_bad = self._bad_steps == 1
        if first_bad or self._taken >= self._next:
            self.look(step)
            self._plan()
        if self._taken == FIRST_LOOK and not self._logged_loss:
            log.warning("gradwatch: no loss was logged; add watcher.log(loss=loss) to the loop")
        if self._bad_steps >= 3:
            self.should_stop = True

    def look(self, step: int) -> None:
        """Run the live checks on the steps that are kept, and report what is new."""
        began = time.perf_counter()
        self._looked_at = step
        diagnosis = diagnose(self._past.run(), self._checks)
        present = {
            (finding.check, finding.layers[0] if finding.layers else ""): finding
            for finding in diagnosis.everything()
            if finding.severity > Severity.INFO
        }
        roots = {id(finding) for finding in diagnosis.findings}
        for key, finding in present.items():
            before = self.states.get(key)
            self.states[key] = FindingState.RAISED if before is None else FindingState.CONTINUING
            if before is None:
                grave = finding.severity is Severity.CRITICAL
                self._report(finding, loud=grave or id(finding) in roots)
        for key in self.states.keys() - present.keys():
            self.states[key] = FindingState.CLEARED
        self.seconds += time.perf_counter() - began

    def _report(self, finding: Finding, *, loud: bool) -> None:
        """Once for each check and layer; what follows from another only to the callback."""
        self.findings.append(finding)
        if loud:
            log.warning(
                "gradwatch: step %d: %s: %s", self._looked_at, finding.check, finding.message
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
        if len(self._past) > FIRST_LOOK and self._looked_at < self._past.last_step:
            self.look(self._past.last_step)
        if self.findings and self.run_dir:
            log.warning("gradwatch: read more: gradwatch diagnose %s", self.run_dir)


def _nonfinite(scalars: Mapping[str, float]) -> bool:
    """Whether this step's loss or input was not finite: reason enough to look at once."""
    return any(scalars.get(name, 0.0) > 0 for name in ("loss_nonfinite", "input_nonfinite"))
