"""`GradientFlowAnimator`: record gradients step by step, write them out four ways."""

import csv
import io
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gradwatch.analysis.animator.drawing import Scale, ascii_art
from gradwatch.analysis.animator.frames import (
    GradientFrame,
    LayerGradientInfo,
    Limits,
    Recorded,
    Sample,
    frames,
)
from gradwatch.analysis.animator.summary import GradientFlowSummary, Recording, summarise
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import write_text
from gradwatch.kernel import measure_arrays
from gradwatch.original.animation import OriginalAnimator
from gradwatch.result import dumps
from gradwatch.run import Run
from gradwatch.stats import Stat

FORMAT = 1


class GradientFlowAnimator:
    """Keeps statistics, never gradients; with `max_frames` the oldest frame leaves in O(1).

    `rules="original"` gives the original's own recorder, with the same methods.
    """

    def __new__(
        cls,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
        *,
        rules: Rules | str = Rules.GRADWATCH,
    ) -> Any:
        if Rules(rules) is Rules.ORIGINAL:
            return OriginalAnimator(max_frames, vanishing_threshold, exploding_threshold)
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
        self.limits = Limits(vanishing_threshold, exploding_threshold)
        self.recorded = 0
        self._order: dict[str, None] = {}
        self._kept: deque[Recorded] = deque(maxlen=max_frames or None)

    def record_step(self, step: int, gradients: Mapping[str, ArrayLike]) -> None:
        """One pass over the gradients; steps must increase."""
        names = list(gradients)
        records = measure_arrays([np.asarray(gradients[name]) for name in names]) if names else ()
        samples = {
            name: Sample(
                mean_abs=float(np.nan_to_num(record["abs_mean"])),
                max_abs=float(np.nan_to_num(record["abs_max"])),
                norm=float(np.nan_to_num(record["norm"])),
                count=int(record["count"]),
                nan=int(record["nan"]),
                inf=int(record["pos_inf"]) + int(record["neg_inf"]),
            )
            for name, record in zip(names, records, strict=True)
        }
        self._keep(step, samples)

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
        return frames(list(self._kept), list(self._order), self.limits)

    def summary(self) -> GradientFlowSummary:
        return summarise(self.frames, list(self._order), self.recorded, self.limits)

    def recording(self) -> Recording:
        """Frames and summary as one result."""
        return Recording(FORMAT, tuple(self.frames), self.summary())

    def to_ascii(self, *, scale: Scale | str = Scale.RUN, columns: int = 100) -> str:
        """`scale="run"` shows decay over time, "frame" each step by itself."""
        shown = self.frames
        present = {layer.name for frame in shown for layer in frame.layers}
        names = [name for name in self._order if name in present]
        return ascii_art(shown, names, Scale(scale), columns)

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
                    [frame.step, *(int(v) if v is True or v is False else v for v in values)]
                )
        return write_text(path, text.getvalue(), overwrite=overwrite)

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
        columns = _columns(run)
        measured = run.measured(Stat.GRAD_NORM)
        for row, step in enumerate(run.steps.tolist()):
            seen = np.flatnonzero(measured[row]).tolist()
            if seen:
                rows = [column[row] for column in columns]
                samples = {run.names[at]: Sample(*(values[at] for values in rows)) for at in seen}
                animator._keep(step, samples)
        return animator


def _columns(run: Run) -> list[list[list[Any]]]:
    """The fields of `Sample`, [step][parameter]; norms alone tell neither sizes nor means."""
    mean, top, norm, count, nan, inf = (
        run.series[Stat(f"grad_{name}")]
        for name in ("abs_mean", "abs_max", "norm", "count", "nan", "inf")
    )
    bad = np.nan_to_num(nan) + np.nan_to_num(inf)
    counts = np.where(count > 0, count, bad + np.isfinite(norm)).astype(np.int64)
    known = [values.astype(object) for values in (mean, top)]
    for objects, values in zip(known, (mean, top), strict=True):
        objects[np.isnan(values)] = None
    whole = [np.nan_to_num(values).astype(np.int64) for values in (nan, inf)]
    return [values.tolist() for values in (*known, np.nan_to_num(norm), counts, *whole)]
