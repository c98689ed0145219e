"""`GradientFlowAnimator`: record gradients step by step, write them out four ways."""

import csv
import io
import os
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gradwatch.analysis import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_text
from gradwatch.kernel import measure_arrays
from gradwatch.original import GradientFlowAnimator as Original
from gradwatch.result import AdviceCode, Missing, Result, dumps, missing
from gradwatch.run import Run
from gradwatch.stats import Stat

FORMAT = 1
FLOOR_DECADES = 12.0
"""Over the run, intensity covers at most so many decades below the largest norm."""
GLYPHS = " ░▒▓█"
NOT_FINITE, ABSENT = "!", "·"
TICK = 10
"""Columns between two step numbers above the drawing."""


class GlyphScale(StrEnum):
    """What a glyph shows: the intensity over the run, or that within its frame."""

    RUN = "run"
    FRAME = "frame"


class GradientHealth(StrEnum):
    """How the gradients look over the retained frames."""

    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class FlowAdvice(AdviceCode):
    """What to try."""

    FIND_NON_FINITE = "find-non-finite", "First find the layer and step where NaN or Inf began."
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


@dataclass(frozen=True)
class LayerGradientInfo(Result):
    """None where the layer had no gradient (no elements) or no finite one."""

    name: str
    mean_abs_grad: float | None
    max_abs_grad: float | None
    grad_norm: float | None
    is_vanishing: bool | None
    is_exploding: bool | None
    flow_intensity: float | None
    """Norm over the largest finite norm of the same frame."""
    run_intensity: float | None
    """Place of the norm between the smallest and largest of the run, on a log scale; 0 for zero."""
    nan_count: int
    inf_count: int

    @property
    def is_nonfinite(self) -> bool:
        """Whether any element was NaN or infinite."""
        return self.nan_count + self.inf_count > 0


@dataclass(frozen=True)
class GradientFrame(Result):
    """One recorded step."""

    step: int
    layers: tuple[LayerGradientInfo, ...]
    """In the order in which they were first recorded."""


@dataclass(frozen=True)
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
    overall_health: GradientHealth
    recommendations: tuple[FlowAdvice, ...]
    vanishing_threshold: float
    exploding_threshold: float


@dataclass(frozen=True)
class Recording(Result):
    """What `export_json` writes."""

    format: int
    frames: tuple[GradientFrame, ...]
    summary: GradientFlowSummary


@dataclass(frozen=True)
class Sample:
    """What one pass over a gradient leaves: statistics of its finite elements, and counts."""

    mean_abs: float | None
    """None where only the norm is known, as is `max_abs`."""
    max_abs: float | None
    norm: float
    count: int
    nan: int
    inf: int

    @property
    def finite(self) -> int:
        """Number of finite elements."""
        return self.count - self.nan - self.inf


class GradientFlowAnimator:
    """Keeps statistics, never gradients; with `max_frames` the oldest frame leaves in O(1).

    `rules="original"` gives the original's own animator, which has methods of other names.
    """

    def __new__(
        cls,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
        *,
        rules: Rules | str = Rules.GRADWATCH,
    ) -> Any:
        """An animator, or the original's where `rules` asks for it."""
        if Rules(rules) is Rules.ORIGINAL:
            return Original(max_frames, vanishing_threshold, exploding_threshold)
        return super().__new__(cls)

    def __init__(
        self,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
        *,
        rules: Rules | str = Rules.GRADWATCH,
    ) -> None:
        if max_frames < 0 or not 0 <= vanishing_threshold < exploding_threshold:
            raise GradwatchError(
                "Expected max_frames of at least 0 and 0 ≤ vanishing_threshold < "
                f"exploding_threshold, got {max_frames}, {vanishing_threshold} and "
                f"{exploding_threshold}.",
                Exit.USAGE,
            )
        self.vanishing_threshold = vanishing_threshold
        self.exploding_threshold = exploding_threshold
        self.recorded = 0
        self._order: dict[str, None] = {}
        self._kept: deque[tuple[int, dict[str, Sample]]] = deque(maxlen=max_frames or None)

    def record_step(self, step: int, gradients: Mapping[str, ArrayLike]) -> None:
        """One pass over the gradients; steps must increase."""
        arrays = [np.asarray(gradient) for gradient in gradients.values()]
        records = measure_arrays(arrays) if arrays else ()
        samples = {
            name: Sample(
                mean_abs=float(np.nan_to_num(record["abs_mean"])),
                max_abs=float(np.nan_to_num(record["abs_max"])),
                norm=float(np.nan_to_num(record["norm"])),
                count=int(record["count"]),
                nan=int(record["nan"]),
                inf=int(record["pos_inf"]) + int(record["neg_inf"]),
            )
            for name, record in zip(gradients, records, strict=True)
        }
        self._keep(step, samples)

    @classmethod
    def from_run(
        cls,
        run: Run,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
    ) -> "GradientFlowAnimator":
        """The gradients of a recorded run, in forward order; steps without any are left out."""
        animator: GradientFlowAnimator = cls(max_frames, vanishing_threshold, exploding_threshold)
        columns = _sample_columns(run)
        measured = run.measured(Stat.GRAD_NORM)
        for row, step in enumerate(run.steps.tolist()):
            present = np.flatnonzero(measured[row]).tolist()
            if present:
                rows = [column[row] for column in columns]
                animator._keep(
                    step, {run.names[at]: Sample(*(row[at] for row in rows)) for at in present}
                )
        return animator

    def _keep(self, step: int, samples: dict[str, Sample]) -> None:
        if self._kept and step <= self._kept[-1][0]:
            raise GradwatchError(
                f"Expected a step after {self._kept[-1][0]}, got {step}. Record every step once, "
                "in order.",
                Exit.USAGE,
            )
        self._order.update(dict.fromkeys(samples))
        self._kept.append((step, samples))
        self.recorded += 1

    @property
    def frames(self) -> list[GradientFrame]:
        """The retained frames; intensities over the run are those of these frames."""
        norms = [s.norm for _, samples in self._kept for s in samples.values() if s.norm > 0]
        high = max(norms, default=1.0)
        low = max(min(norms, default=1.0), high * 10.0**-FLOOR_DECADES)
        return [
            GradientFrame(step, tuple(self._layers(samples, low, high)))
            for step, samples in self._kept
        ]

    def _layers(
        self, samples: dict[str, Sample], low: float, high: float
    ) -> Iterator[LayerGradientInfo]:
        """`low` and `high`: the smallest and largest norm of the run."""
        largest = max((s.norm for s in samples.values() if s.finite), default=0.0)
        for name in self._order:
            if name not in samples:
                continue
            sample = samples[name]
            gone = missing("no gradient" if not sample.count else "no element is finite")
            mean, top = (
                missing("only the norm was recorded") if value is None else value
                for value in (sample.mean_abs, sample.max_abs)
            )
            if not sample.finite:
                mean = top = gone
            yield LayerGradientInfo(
                name=name,
                mean_abs_grad=mean,
                max_abs_grad=top,
                grad_norm=sample.norm if sample.finite else gone,
                is_vanishing=_flag(mean, lambda value: value < self.vanishing_threshold),
                is_exploding=_flag(top, lambda value: value > self.exploding_threshold),
                flow_intensity=(sample.norm / largest if largest > 0 else 0.0)
                if sample.finite
                else gone,
                run_intensity=_place(sample.norm, low, high) if sample.finite else gone,
                nan_count=sample.nan,
                inf_count=sample.inf,
            )

    def summary(self) -> GradientFlowSummary:
        """Layers are listed if flagged in any retained frame; health looks at the last quarter."""
        frames = self.frames
        layers = [layer for frame in frames for layer in frame.layers]
        vanishing = self._in_order(layer.name for layer in layers if layer.is_vanishing)
        exploding = self._in_order(layer.name for layer in layers if layer.is_exploding)
        nonfinite = self._in_order(layer.name for layer in layers if layer.is_nonfinite)
        return GradientFlowSummary(
            total_steps=self.recorded,
            frames_retained=len(frames),
            first_step=frames[0].step if frames else missing("no frames were recorded"),
            last_step=frames[-1].step if frames else missing("no frames were recorded"),
            layers_with_vanishing_grads=vanishing,
            layers_with_exploding_grads=exploding,
            layers_with_nonfinite_grads=nonfinite,
            overall_health=_health(frames, bool(vanishing or exploding), bool(nonfinite)),
            recommendations=_advice(bool(vanishing), bool(exploding), bool(nonfinite)),
            vanishing_threshold=self.vanishing_threshold,
            exploding_threshold=self.exploding_threshold,
        )

    def _in_order(self, names: Iterator[str]) -> tuple[str, ...]:
        flagged = set(names)
        return tuple(name for name in self._order if name in flagged)

    def recording(self) -> Recording:
        """Frames and summary as one result."""
        return Recording(FORMAT, tuple(self.frames), self.summary())

    def to_ascii(self, *, scale: GlyphScale | str = GlyphScale.RUN, columns: int = 100) -> str:
        """`scale="run"` shows decay over time, "frame" each step by itself."""
        frames = self.frames
        present = self._in_order(layer.name for frame in frames for layer in frame.layers)
        return _drawn(frames, present, GlyphScale(scale), columns)

    def export_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Strict JSON; `gradwatch.result.loads` brings NaN and Inf back."""
        return write_text(path, dumps(self.recording(), indent=1) + "\n", overwrite=overwrite)

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
        return write_text(path, text.getvalue(), overwrite=overwrite)


def _sample_columns(run: Run) -> list[list[list[Any]]]:
    """The fields of `Sample`, [step][parameter]; a run of norms has neither sizes nor means."""
    mean, top, norm, count, nan, inf = (
        run.series[Stat(f"grad_{name}")]
        for name in ("abs_mean", "abs_max", "norm", "count", "nan", "inf")
    )
    bad = np.nan_to_num(nan) + np.nan_to_num(inf)
    counts = np.where(count > 0, count, bad + np.isfinite(norm)).astype(np.int64)
    optional = [values.astype(object) for values in (mean, top)]
    for objects, values in zip(optional, (mean, top), strict=True):
        objects[np.isnan(values)] = None
    integers = [np.nan_to_num(values).astype(np.int64) for values in (nan, inf)]
    return [values.tolist() for values in (*optional, np.nan_to_num(norm), counts, *integers)]


def _flag(value: Any, test: Callable[[float], bool]) -> Any:
    return value if isinstance(value, Missing) else test(value)


def _place(norm: float, low: float, high: float) -> float:
    if norm <= 0:
        return 0.0
    if high == low:
        return 1.0
    place = (log10(norm) - log10(low)) / (log10(high) - log10(low))
    return min(max(place, 0.0), 1.0)


# -- the summary's judgement -----------------------------------------------------------------------


def _health(frames: Sequence[GradientFrame], flagged: bool, nonfinite: bool) -> GradientHealth:
    """NaN is never healthy; an old spike is a minor issue; a dead majority is critical."""
    judged = any(layer.is_vanishing is not None for frame in frames for layer in frame.layers)
    if not judged and not nonfinite:
        return GradientHealth.UNKNOWN
    recent = [layer for frame in frames[-max(1, len(frames) // 4) :] for layer in frame.layers]
    counts = Counter(layer.name for layer in recent)
    vanishing = _persistent(counts, Counter(layer.name for layer in recent if layer.is_vanishing))
    exploding = _persistent(counts, Counter(layer.name for layer in recent if layer.is_exploding))
    if nonfinite or exploding or vanishing * 2 > len(counts):
        return GradientHealth.CRITICAL
    if vanishing or any(layer.is_exploding for layer in recent):
        return GradientHealth.PROBLEMS_DETECTED
    return GradientHealth.MINOR_ISSUES if flagged else GradientHealth.HEALTHY


def _persistent(counts: Counter[str], flagged: Counter[str]) -> int:
    """How many layers are flagged in more than half of their recent frames."""
    return sum(flagged[name] * 2 > count for name, count in counts.items())


def _advice(vanishing: bool, exploding: bool, nonfinite: bool) -> tuple[FlowAdvice, ...]:
    wanted = {
        FlowAdvice.FIND_NON_FINITE: nonfinite,
        FlowAdvice.CLIP: exploding,
        FlowAdvice.LOWER_LEARNING_RATE: exploding,
        FlowAdvice.INITIALISATION: vanishing,
        FlowAdvice.RESIDUAL_OR_NORMALISATION: vanishing,
        FlowAdvice.CHECK_PRECISION: vanishing,
    }
    return tuple(code for code, present in wanted.items() if present)


# -- drawn as text: one row per layer, one column per frame (or per group of frames) ---------------


def _drawn(
    frames: Sequence[GradientFrame], names: Sequence[str], scale: GlyphScale, columns: int
) -> str:
    """Every line ends with a newline; a title, the step ticks, a rule, then the layers."""
    if not frames:
        return "(no frames were recorded)\n"
    size = -(-len(frames) // max(columns, 1))
    groups = [frames[at : at + size] for at in range(0, len(frames), size)]
    labels = [_printable(name) for name in names]
    width = max(_width(label) for label in [*labels, "layer"])
    lines = [
        "Gradient flow: steps to the right, layers down; ! is NaN or Inf, · is no gradient.",
        f"{_right('layer', width)}  {_ticks([group[0].step for group in groups])}",
        "─" * (width + 2 + len(groups)),
    ]
    tables = [[{i.name: i for i in frame.layers} for frame in group] for group in groups]
    for name, label in zip(names, labels, strict=True):
        cells = "".join(_cell([t.get(name) for t in table], scale) for table in tables)
        lines.append(f"{_right(label, width)}  {cells}")
    return "\n".join(lines) + "\n"


def _cell(layers: Sequence[LayerGradientInfo | None], scale: GlyphScale) -> str:
    """The strongest of a group of frames; what is not finite is never hidden."""
    present = [i for i in layers if i and (i.grad_norm is not None or i.is_nonfinite)]
    if not present:
        return ABSENT
    if any(layer.is_nonfinite for layer in present):
        return NOT_FINITE
    shades = (i.run_intensity if scale is GlyphScale.RUN else i.flow_intensity for i in present)
    strongest = max(shade or 0.0 for shade in shades)
    # Boundaries at 1/8, 3/8, 5/8, 7/8, each on the darker side.
    return GLYPHS[min(4, int(4.0 * strongest + 0.5))]


def _ticks(steps: Sequence[int]) -> str:
    """The step number above every tenth column, where it fits."""
    line = ""
    for at in range(0, len(steps), TICK):
        if len(line) <= at:
            line = line.ljust(at) + f"{steps[at]} "
    return line.rstrip()


def _printable(name: str) -> str:
    """Control characters never reach a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def _width(text: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _right(text: str, width: int) -> str:
    return " " * (width - _width(text)) + text
