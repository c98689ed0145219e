"""The frames of an animation: recorded gradients as a run, as tables, as a drawing in text."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.context import context
from gradwatch.checks.limits import Trouble, exploding_cells, vanishing_cells
from gradwatch.diagnosis.verdict import verdicts
from gradwatch.finding import Severity
from gradwatch.kernel import MOMENTS
from gradwatch.result import missing
from gradwatch.run import MemorySource, Run, Subject
from gradwatch.run.subject import with_known_shapes
from gradwatch.stats import HAS_VALUE, Stat, State

FLOOR_DECADES = 12.0
"""Over the run, intensity covers at most so many decades below the largest norm."""
GLYPHS = "· ░▒▓█!"
"""No gradient, zero, four shades of what is more, NaN or Inf."""
TICK = 10
"""Columns between two step numbers above the drawing."""
MEASURED = ("count", "norm", "mean", "std", "abs_mean", "abs_max", "min", "max", "nan", "zero_rows")
"""Of a record, what a run has under the same name."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Recorded:
    """What one call of `record_step` leaves; a layer without elements had no gradient."""

    step: int
    names: tuple[str, ...]
    records: NDArray[np.void]


def run_of(kept: Sequence[Recorded], layers: Mapping[str, Subject]) -> Run:
    """A run of the retained frames, as if a watcher had recorded these gradients."""
    present = set().union(*(frame.names for frame in kept))
    subjects = [layer for name, layer in layers.items() if name in present]
    place = {layer.name: column for column, layer in enumerate(subjects)}
    records = np.zeros((len(kept), len(subjects)), MOMENTS)
    states = np.full(records.shape, State.NOT_SAMPLED, np.uint8)
    columns, last = np.empty(0, np.intp), None
    for row, frame in enumerate(kept):
        if frame.names != last:
            last, columns = frame.names, np.array([place[n] for n in frame.names], np.intp)
        records[row, columns] = frame.records
        has = frame.records["count"] > 0
        states[row, columns] = np.where(has, State.MEASURED, State.NO_GRADIENT)
    measured = states == State.MEASURED
    series = {Stat(f"grad_{name}"): records[name].astype(float) for name in MEASURED}
    series[Stat.GRAD_INF] = (records["pos_inf"] + records["neg_inf"]).astype(float)
    values = {stat: np.where(measured, numbers, np.nan) for stat, numbers in series.items()}
    steps = np.array([frame.step for frame in kept], np.int64)
    known = with_known_shapes(subjects)
    return Run(MemorySource(steps, known, values, dict.fromkeys(values, states)))


class FrameTable:
    """The statistics and verdicts of some rows of a run, [frame, layer], each made on first use."""

    def __init__(self, run: Run, rows: NDArray[np.intp]) -> None:
        self.run, self.names, self.steps = run, run.names, run.steps[rows]
        self._rows = rows

    def _series(self, stat: Stat) -> Floats:
        return self.run.at(stat, self._rows)

    def _count(self, stat: Stat) -> NDArray[np.int64]:
        return np.nan_to_num(self._series(stat)).astype(np.int64)

    mean = cached_property(lambda self: self._series(Stat.GRAD_ABS_MEAN))
    """Mean |g|; NaN where only the norm is known."""
    top = cached_property(lambda self: self._series(Stat.GRAD_ABS_MAX))
    """Largest |g|."""
    norm = cached_property(lambda self: self._series(Stat.GRAD_NORM))
    """Norm of the finite elements."""
    nan = cached_property(lambda self: self._count(Stat.GRAD_NAN))
    """How many elements are NaN."""
    inf = cached_property(lambda self: self._count(Stat.GRAD_INF))
    """How many elements are infinite."""

    @cached_property
    def seen(self) -> Mask:
        """Where the layer was recorded, be it without a gradient."""
        states = self.run.states_at(Stat.GRAD_NORM, self._rows)
        return np.asarray(HAS_VALUE[states] | (states == State.NO_GRADIENT), bool)

    finite = cached_property(lambda self: np.isfinite(self.norm) & self.seen)
    """Where at least one element is finite."""
    bad = cached_property(lambda self: (self.nan + self.inf > 0) & self.seen)
    """Where at least one element is not."""

    def told(self, values: NDArray[Any], unknown: Mask | None = None) -> NDArray[np.object_]:
        """As Python's own values, with a reason where there is none."""
        cells = values.astype(object)
        if unknown is not None:
            cells[unknown] = missing("only the norm was recorded")
        cells[~self.finite] = missing("no gradient")
        cells[~self.finite & self.bad] = missing("no element is finite")
        return cells

    @cached_property
    def shares(self) -> Floats:
        """Norms over the largest of their frame."""
        norms = np.where(self.finite, self.norm, 0.0)
        largest = norms.max(axis=1, keepdims=True, initial=0.0)
        return norms / np.where(largest > 0, largest, 1.0)

    @cached_property
    def places(self) -> Floats:
        """Places of the norms between the smallest and largest, on a log scale; 0 for zero."""
        positive = self.finite & (self.norm > 0)
        places = np.zeros(self.norm.shape)
        if positive.any():
            logs = np.log10(self.norm[positive])
            high = logs.max()
            low = max(logs.min(), high - FLOOR_DECADES)
            places[positive] = np.clip((logs - low) / (high - low), 0, 1) if high > low else 1.0
        return places

    # -- what the findings say -----------------------------------------------------------------

    def with_trouble(self, trouble: Trouble) -> tuple[str, ...]:
        """The layers that have it at warning or above, in the order of the run."""
        having = {
            name
            for name, said in verdicts(self.run).by_tensor.items()
            if any(v.trouble is trouble and v.severity >= Severity.WARNING for v in said)
        }
        return tuple(name for name in self.names if name in having)

    def beyond(self, trouble: Trouble) -> Mask:
        """Where a layer that is judged to vanish or explode was beyond its limit."""
        cells = vanishing_cells if trouble is Trouble.VANISHING else exploding_cells
        return cells(context(self.run))[self._rows]


# -- drawn as text: one row per layer, one column per frame (or per group of frames) ---------------


def drawn(table: FrameTable, shades: Floats, columns: int) -> str:
    """Every line ends with a newline; a title, the step ticks, a rule, then the layers."""
    if not len(table.steps):
        return "(no frames were recorded)\n"
    size = -(-len(table.steps) // columns)
    starts = np.arange(0, len(table.steps), size)
    # Of a group of frames the strongest is shown; what is not finite is never hidden.
    levels = np.maximum.reduceat(_levels(table, shades), starts, axis=0)
    rows = np.array(list(GLYPHS))[levels.T]
    present = np.asarray(table.seen.any(axis=0))
    labels = [
        _printable(name) for name, shown in zip(table.names, present.tolist(), strict=True) if shown
    ]
    width = max(_width(label) for label in [*labels, "layer"])
    lines = [
        "Gradient flow: steps to the right, layers down; ! is NaN or Inf, · is no gradient.",
        f"{_right('layer', width)}  {_ticks(table.steps[starts].tolist())}",
        "─" * (width + 2 + len(starts)),
        *(
            f"{_right(label, width)}  {''.join(cells)}"
            for label, cells in zip(labels, rows[present].tolist(), strict=True)
        ),
    ]
    return "\n".join(lines) + "\n"


def _levels(table: FrameTable, shades: Floats) -> NDArray[np.int64]:
    """Places in GLYPHS: only zero is blank, whatever is more has at least the lightest shade."""
    # Boundaries at 1/8, 3/8, 5/8, 7/8, each on the darker side.
    shade = np.clip(np.floor(4.0 * shades + 0.5), 1, 4).astype(np.int64)
    levels = np.where(table.finite, np.where(table.norm > 0, 1 + shade, 1), 0)
    return np.where(table.bad, len(GLYPHS) - 1, levels)


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
