"""`GradientFlowAnimator`: record gradients step by step, write them out four ways.

What is recorded becomes a run, so that its layers are judged as those of any run: the flags, lists
and health are those of its findings.
"""

import csv
import io
import itertools
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.analysis import Rules
from gradwatch.analysis.frames import FrameTable, Mask, Recorded, drawn, run_of
from gradwatch.checks.limits import Trouble
from gradwatch.diagnosis.verdict import TROUBLES, verdicts
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_text
from gradwatch.finding import Severity
from gradwatch.kernel import MOMENTS, measure_arrays
from gradwatch.original import GradientFlowAnimator as Original
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.run import Subject, as_array, as_run, choice, number, whole_number
from gradwatch.run.given import by_name, refused
from gradwatch.stats import Kind, Stat

FORMAT = 1


class GlyphScale(StrEnum):
    """What a glyph shows: the intensity over the run, or that within its frame."""

    RUN = "run"
    FRAME = "frame"


class GradientHealth(StrEnum):
    """The gravest finding about what was recorded."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class FlowAdvice(AdviceCode):
    """What to try."""

    FIND_NON_FINITE = "find-non-finite", "First find the layer and step where NaN or Inf began."
    CONNECT = (
        "connect",
        "Find out why no gradient arrives: a detached branch, an unused layer, dead units.",
    )
    CLIP = "clip", "Clip the gradient's global norm."
    LOWER_LEARNING_RATE = "lower-learning-rate", "Lower the learning rate, or warm it up."
    INITIALISATION = (
        "initialisation",
        "Check the initialisation against the activation (Xavier, Kaiming).",
    )
    RESIDUAL_OR_NORMALISATION = (
        "residual-or-normalisation",
        "Add residual paths or normalisation layers.",
    )
    CHECK_PRECISION = "check-precision", "In half precision: check the loss scale."


ADVICE = {
    Trouble.NON_FINITE: (FlowAdvice.FIND_NON_FINITE,),
    Trouble.DEAD: (FlowAdvice.CONNECT,),
    Trouble.EXPLODING: (FlowAdvice.CLIP, FlowAdvice.LOWER_LEARNING_RATE),
    Trouble.VANISHING: (
        FlowAdvice.INITIALISATION,
        FlowAdvice.RESIDUAL_OR_NORMALISATION,
        FlowAdvice.CHECK_PRECISION,
    ),
}


class LayerGradientInfo(Result):
    """None where the layer had no gradient (no elements) or no finite one."""

    name: str
    mean_abs_grad: float | None
    max_abs_grad: float | None
    grad_norm: float | None
    is_vanishing: bool | None
    """Whether the layer is judged vanishing, and was beyond the limit on this step."""
    is_exploding: bool | None
    flow_intensity: float | None
    """Norm over the largest finite norm of the same frame."""
    run_intensity: float | None
    """Place of the norm between the smallest and largest of the run, on a log scale; 0 for zero."""
    nan_count: int
    inf_count: int


class GradientFrame(Result):
    """One recorded step."""

    step: int
    layers: tuple[LayerGradientInfo, ...]
    """In the order in which they were first recorded."""


class GradientFlowSummary(Result):
    """What the retained frames say together."""

    total_steps: int
    """Frames recorded, those that have left the window included."""
    frames_retained: int
    first_step: int | None
    last_step: int | None
    layers_with_vanishing_grads: tuple[str, ...]
    layers_with_exploding_grads: tuple[str, ...]
    layers_with_nonfinite_grads: tuple[str, ...]
    layers_with_dead_grads: tuple[str, ...]
    overall_health: GradientHealth
    recommendations: tuple[FlowAdvice, ...]
    vanishing_threshold: float | None
    exploding_threshold: float | None


class Recording(Result):
    """What `export_json` writes."""

    format: int
    frames: tuple[GradientFrame, ...]
    summary: GradientFlowSummary


class GradientFlowAnimator:
    """Keeps statistics, never gradients; with `max_frames` the oldest frame leaves in O(1).

    What vanishes or explodes is what `diagnose` says. A threshold is a limit of your own that
    decides instead, for this animator: a layer vanishes where the mean of its |g| is below
    `vanishing_threshold`, and explodes where the largest |g| is above `exploding_threshold`.
    `rules="original"` gives the original's own animator, which has methods of other names.
    """

    def __new__(
        cls,
        max_frames: int = 0,
        vanishing_threshold: float | None = None,
        exploding_threshold: float | None = None,
        *,
        rules: Rules | str = Rules.GRADWATCH,
    ) -> Any:
        """An animator, or the original's where `rules` asks for it."""
        if choice(Rules, rules, "rules") is Rules.GRADWATCH:
            return super().__new__(cls)
        animator = Original(whole_number(max_frames, "max_frames", least=0))
        if vanishing_threshold is not None:
            animator.with_vanishing_threshold(number(vanishing_threshold, "vanishing_threshold"))
        if exploding_threshold is not None:
            animator.with_exploding_threshold(number(exploding_threshold, "exploding_threshold"))
        return animator

    def __init__(
        self,
        max_frames: int = 0,
        vanishing_threshold: float | None = None,
        exploding_threshold: float | None = None,
        *,
        rules: Rules | str = Rules.GRADWATCH,
    ) -> None:
        self._most = whole_number(max_frames, "max_frames", least=0)
        low, high = vanishing_threshold, exploding_threshold
        self.vanishing_threshold = (
            None if low is None else number(low, "vanishing_threshold", least=0)
        )
        self.exploding_threshold = (
            None if high is None else number(high, "exploding_threshold", least=low or 0)
        )
        self.recorded = 0
        self._first: dict[str, Subject] = {}
        self._kept: deque[Recorded] = deque(maxlen=self._most or None)
        self._table: FrameTable | None = None

    def record_step(self, step: int, gradients: Mapping[str, ArrayLike | None]) -> None:
        """One pass over the gradients, None where there is none; steps must increase."""
        step = whole_number(step, "step", least=0)
        if self.recorded > 0 and not self._kept:
            raise GradwatchError(
                "Expected an animator of one's own to record into, got one that shows a run. "
                "Make a new one: GradientFlowAnimator().",
                Exit.USAGE,
            )
        if self._kept and step <= self._kept[-1].step:
            last = self._kept[-1].step
            raise refused(f"a step after {last}", step, "Record every step once, in order.")
        arrays = {
            name: np.empty(0) if gradient is None else as_array(gradient, name)
            for name, gradient in by_name(gradients, "gradients by name").items()
        }
        for name, array in arrays.items():
            if name not in self._first or not self._first[name].count:
                shape = array.shape if array.size else ()  # without a gradient it is not known
                self._first[name] = Subject(
                    Kind.PARAMETER, name, name, shape, str(array.dtype), array.size
                )
        records = measure_arrays(list(arrays.values())) if arrays else np.empty(0, MOMENTS)
        self._kept.append(Recorded(step, tuple(arrays), records))
        self.recorded += 1
        self._table = None

    @classmethod
    def from_run(
        cls,
        run: Any,
        max_frames: int = 0,
        vanishing_threshold: float | None = None,
        exploding_threshold: float | None = None,
    ) -> "GradientFlowAnimator":
        """The gradients of a recorded run, in forward order; steps without any are left out.

        Norms or arrays by name are made into a run, as `analyze_flow` does.
        Its layers are judged by the whole run, whatever `max_frames` keeps.
        """
        animator: GradientFlowAnimator = cls(max_frames, vanishing_threshold, exploding_threshold)
        run = as_run(run)
        rows = run.measured_rows(Stat.GRAD_NORM)
        animator.recorded = len(rows)
        animator._table = FrameTable(run, rows[-animator._most :] if animator._most else rows)
        return animator

    def _retained(self) -> FrameTable:
        if self._table is None:
            run = run_of(self._kept, self._first)
            self._table = FrameTable(run, np.arange(len(self._kept)))
        return self._table

    @property
    def frames(self) -> list[GradientFrame]:
        """The retained frames; intensities over the run are those of these frames."""
        table = self._retained()
        columns = [values.tolist() for values in self._columns(table)]
        frames = []
        for step, seen, *layers in zip(
            table.steps.tolist(), table.seen.tolist(), *columns, strict=True
        ):
            every = map(LayerGradientInfo, table.names, *layers)
            frames.append(GradientFrame(step, tuple(itertools.compress(every, seen))))
        return frames

    def _columns(self, table: FrameTable) -> Iterator[NDArray[Any]]:
        """The fields of `LayerGradientInfo` after the name, [frame, layer]."""
        norms_only = np.isnan(table.mean)
        yield table.told(table.mean, norms_only)
        yield table.told(table.top, norms_only)
        yield table.told(table.norm)
        own = self._beyond_own_limits(table)
        for trouble in (Trouble.VANISHING, Trouble.EXPLODING):
            yield (
                table.told(own[trouble], norms_only)
                if trouble in own
                else table.told(table.beyond(trouble))
            )
        yield table.told(table.shares)
        yield table.told(table.places)
        yield table.nan
        yield table.inf

    def _beyond_own_limits(self, table: FrameTable) -> dict[Trouble, Mask]:
        """Where layers are beyond the limits that the user gave."""
        own: dict[Trouble, Mask] = {}
        if self.vanishing_threshold is not None:
            own[Trouble.VANISHING] = table.mean < self.vanishing_threshold
        if self.exploding_threshold is not None:
            own[Trouble.EXPLODING] = table.top > self.exploding_threshold
        return own

    def summary(self) -> GradientFlowSummary:
        """What the findings say of each layer; by a limit of your own, what any frame does."""
        table = self._retained()
        layers = {trouble: table.with_trouble(trouble) for trouble in Trouble}
        health = _health(table)
        for trouble, beyond in self._beyond_own_limits(table).items():
            layers[trouble] = tuple(itertools.compress(table.names, np.asarray(beyond.any(axis=0))))
            if layers[trouble] and health is not GradientHealth.CRITICAL:
                health = GradientHealth.PROBLEMS_DETECTED
        low, high = self.vanishing_threshold, self.exploding_threshold
        empty, judged = missing("no frames were recorded"), missing("as diagnose judges")
        return GradientFlowSummary(
            total_steps=self.recorded,
            frames_retained=len(table.steps),
            first_step=table.steps[0] if len(table.steps) else empty,
            last_step=table.steps[-1] if len(table.steps) else empty,
            layers_with_vanishing_grads=layers[Trouble.VANISHING],
            layers_with_exploding_grads=layers[Trouble.EXPLODING],
            layers_with_nonfinite_grads=layers[Trouble.NON_FINITE],
            layers_with_dead_grads=layers[Trouble.DEAD],
            overall_health=health,
            recommendations=tuple(
                code for trouble, codes in ADVICE.items() if layers[trouble] for code in codes
            ),
            vanishing_threshold=judged if low is None else low,
            exploding_threshold=judged if high is None else high,
        )

    def recording(self) -> Recording:
        """Frames and summary as one result."""
        return Recording(FORMAT, tuple(self.frames), self.summary())

    def to_ascii(self, *, scale: GlyphScale | str = GlyphScale.RUN, columns: int = 100) -> str:
        """`scale="run"` shows decay over time, "frame" each step by itself."""
        table = self._retained()
        by_run = choice(GlyphScale, scale, "scale") is GlyphScale.RUN
        shades = table.places if by_run else table.shares
        return drawn(table, shades, whole_number(columns, "columns", least=1))

    def export_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Strict JSON; `Recording.from_json` brings it back."""
        return write_text(path, self.recording().to_json(indent=1) + "\n", overwrite=overwrite)

    def export_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """One row per frame and layer, quoted as RFC 4180 has it; empty where None."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        names = [field.name for field in fields(LayerGradientInfo)]
        writer.writerow(["step", "layer", *names[1:]])
        for frame in self.frames:
            for layer in frame.layers:
                values = [getattr(layer, name) for name in names]
                writer.writerow(
                    [frame.step, *(int(v) if isinstance(v, bool) else v for v in values)]
                )
        # Half a character, as a name may hold it in Python, has no place in UTF-8.
        whole = text.getvalue().encode(errors="backslashreplace").decode()
        return write_text(path, whole, overwrite=overwrite)


def _health(table: FrameTable) -> GradientHealth:
    """The gravest finding; of those that only inform, the ones about gradients count."""
    findings = list(verdicts(table.run).diagnosis.everything())
    worst = max((item.severity for item in findings), default=None)
    if worst is Severity.CRITICAL:
        return GradientHealth.CRITICAL
    if worst is Severity.WARNING:
        return GradientHealth.PROBLEMS_DETECTED
    if any(item.check in TROUBLES for item in findings):
        return GradientHealth.MINOR_ISSUES
    return GradientHealth.HEALTHY if table.seen.any() else GradientHealth.UNKNOWN
