"""Heat maps of tensors or layers over steps: columns of steps, cells of one byte, maps in a budget.

A map has a row for each tensor (or layer) and a column for each bucket of recorded steps. A cell is
one byte on a scale of 252 levels; four more codes stand for what is no level.
"""

import base64
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.run import Downsampled, Run
from gradwatch.run.downsample import bucket_edges
from gradwatch.stats import Kind, Stat, State
from gradwatch.views.model.titles import GRAD_RMS, HEAT_CHOICE, BucketValue, Shown, shown

CELLS = 1_100_000
"""All maps together; a byte each, they deflate to less, and base64 adds a third: 2 MB hold it."""
LEAST_COLUMNS = 60
STATES_UP_TO = 5_000_000
"""Beyond so many values the state bytes are not loaded: gaps are then only empty."""
LEAST_SPAN = 1e4
"""A log scale has at least four decades, so that a steady run looks steady."""


class Code(IntEnum):
    """The bytes of a cell; those from LOWEST to HIGHEST are levels of its scale.

    Where cells are merged the highest byte wins, so the order says what must not be hidden. Only
    NONFINITE is a mark: a layer that has it is named by a finding `nonfinite`. ZERO and NO_GRADIENT
    say what was measured on those steps (a frozen weight has no gradient and is sound).
    """

    EMPTY = 0  # not measured
    ZERO = 1  # exactly zero, which has no logarithm
    LOWEST = 2
    HIGHEST = 253
    NO_GRADIENT = 254
    NONFINITE = 255


LEVELS = Code.HIGHEST - Code.LOWEST


# -- maps ------------------------------------------------------------------------------------------


def choice(run: Run, wanted: Sequence[str] | None, columns: int) -> tuple[list[Shown], int]:
    """Which statistics are shown and in how many columns, so that the cells stay in the budget."""
    names = HEAT_CHOICE if wanted is None else wanted
    stats = [item for item in map(shown, names) if item.stat in run.recorded]
    while stats:
        rows = sum(len(run.by_kind[item.kind]) for item in stats)
        if rows * columns <= CELLS or wanted is not None:
            return stats, columns
        if columns > LEAST_COLUMNS:
            columns = max(LEAST_COLUMNS, CELLS // rows)
        elif len(stats) > 2:
            stats.pop()
        else:
            return stats, max(1, min(columns, CELLS // rows))
    return stats, columns


def heat(columns: "Columns", stats: Sequence[Shown]) -> dict[str, Any]:
    """`maps[name]`: title, unit, scale, `of` (tensors or layers), packed rows × columns.

    A map that is sampled more rarely leaves out the columns in which it has nothing: `columns` says
    which it has, and a view may draw each as far as the next.
    """
    maps = {}
    left_out = []
    for item in stats if len(columns) else ():
        try:
            maps[item.name] = _map(columns, item)
        except GradwatchError:  # too large to be loaded whole, and not stored in coarser levels
            left_out.append(item.name)
    return {
        "first": columns.first.tolist(),
        "last": columns.last.tolist(),
        "maps": {name: drawn for name, drawn in maps.items() if drawn["columns"]},
        "left_out": left_out,
    }


def _map(columns: "Columns", what: Shown) -> dict[str, Any]:
    run = columns.run
    values = columns.values(what)
    scale = LevelScale.around(values, what.log, what.unit)
    nonfinite = columns.nonfinite(what.kind, what.stat)
    codes = coded(values, scale, nonfinite, columns.without_gradient(what, values))
    filled = np.flatnonzero((codes != Code.EMPTY).any(axis=1))
    if what.kind is Kind.LAYER and not (codes < Code.NO_GRADIENT)[codes != Code.EMPTY].any():
        filled = filled[:0]  # only marks that other maps of activations show as well
    sizes_known = any(subject.count for subject in run.parameters)
    title = what.title
    if what.name == GRAD_RMS and not sizes_known:
        title = "gradient norm (sizes unknown)"
    tensors = what.kind is Kind.PARAMETER
    return {
        "title": title,
        "unit": what.unit,
        "of": "tensors" if tensors else "layers",
        # rows of tensors are those of the model's table; others are named
        "rows": len(run.parameters) if tensors else [item.name for item in run.by_kind[what.kind]],
        "columns": filled.tolist(),
        "scale": asdict(scale),
        "cells": packed(np.ascontiguousarray(codes[filled].T)),
    }


def codes_of(heat: Mapping[str, Any], name: str) -> "tuple[NDArray[np.uint8], LevelScale]":
    """A map's bytes [row, column] and its scale, back from the section `heat` of a model."""
    drawn = heat["maps"][name]
    rows = drawn["rows"] if isinstance(drawn["rows"], int) else len(drawn["rows"])
    return unpacked(drawn["cells"], rows, len(drawn["columns"])), LevelScale(**drawn["scale"])


def row_of(drawn: Mapping[str, Any], layer: Mapping[str, Any]) -> int | None:
    """Which row of a map stands for a layer (of the model's table); None where it has none."""
    if drawn["of"] == "tensors":
        main: int | None = layer["main"]
        return main
    rows: list[str] = drawn["rows"]
    return rows.index(layer["name"]) if layer["name"] in rows else None


# -- columns ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Buckets of recorded steps that all maps share: first and last step of each (inclusive)."""

    run: Run
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    _downsampled: dict[Stat, Downsampled] = field(default_factory=dict, compare=False)
    """Each statistic is downsampled once, however many parts of the model show it."""

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, run: Run, first: int | None, last: int | None, points: int) -> "Columns":
        """At most `points` buckets of equally many recorded steps."""
        steps = run.steps
        if not len(steps):
            return cls(run, steps, steps)
        first = int(steps[0]) if first is None else first
        last = int(steps[-1]) if last is None else last
        starts, ends = bucket_edges(steps, first, last, points)
        return cls(run, steps[starts], steps[ends - 1])

    def values(self, what: Shown) -> NDArray[np.float64]:
        """[column, subject of its kind] of one shown statistic."""
        buckets = self._buckets(what.stat)
        values = buckets.high if what.value is BucketValue.HIGHEST else buckets.last
        if what.name != GRAD_RMS:
            return values
        # a run made from norms does not know the counts: then the norm itself is shown
        sizes = np.array([math.sqrt(subject.count or 1) for subject in self.run.parameters])
        per_element: NDArray[np.float64] = values / sizes
        return per_element

    def nonfinite(self, kind: Kind, stat: Stat) -> NDArray[np.bool_]:
        """Where any element was NaN or Inf, as the check `nonfinite` counts it."""
        family = stat.partition("_")[0]
        counters = {
            "grad": (Stat.GRAD_NAN, Stat.GRAD_INF),
            "weight": (Stat.WEIGHT_NAN, Stat.WEIGHT_INF),
            "act": (Stat.ACT_NONFINITE, Stat.PROBE_NONFINITE),
        }.get(family, ())
        hit = np.zeros((len(self), len(self.run.by_kind[kind])), bool)
        for counter in counters:
            if counter in self.run.recorded:
                hit |= self._buckets(counter).high > 0
        if hit.any() and family in {"grad", "act"}:
            self._without_what_is_meant(hit, family)
        return hit

    def _without_what_is_meant(self, hit: NDArray[np.bool_], family: str) -> None:
        """Take out overflow on steps that a scaler skipped, and outputs that are masks."""
        from gradwatch.checks import (
            context,
            limits,
        )  # only here: loading every check takes its time

        ctx = context.context(self.run)
        large = len(self.run.steps) * hit.shape[1] > STATES_UP_TO
        if family == "act":
            hit &= large or not limits.outputs_are_masks(ctx)
        elif ctx.skipped.any():
            begin, end, starts = self._places()
            if large:  # buckets do not tell steps apart: columns with such a step are left out
                hit &= ~np.logical_or.reduceat(ctx.skipped[begin:end], starts)[:, None]
            else:
                counted = limits.nonfinite_gradients(ctx)[begin:end]
                hit &= np.logical_or.reduceat(counted, starts, axis=0)

    def _places(self) -> tuple[int, int, NDArray[np.intp]]:
        """First row, row after the last, and the row of each column's first step from there."""
        begin = int(np.searchsorted(self.run.steps, self.first[0]))
        end = int(np.searchsorted(self.run.steps, self.last[-1], side="right"))
        return begin, end, np.searchsorted(self.run.steps, self.first) - begin

    def without_gradient(self, what: Shown, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Where a bucket has no value because there was no gradient."""
        gaps = np.isnan(values)
        large = len(self.run.steps) * values.shape[1] > STATES_UP_TO
        if what.kind is not Kind.PARAMETER or large or not gaps.any():
            return np.zeros(values.shape, bool)
        begin, end, starts = self._places()
        rows = self.run.sampled(what.stat)
        rows = rows[slice(*np.searchsorted(rows, [begin, end]))]
        none = self.run.states_at(what.stat, rows) == State.NO_GRADIENT
        absent = np.zeros(values.shape, bool)
        if none.any():
            at = np.searchsorted(starts, rows - begin, side="right") - 1
            np.logical_or.at(absent, at, none)
        return gaps & absent

    def _buckets(self, stat: Stat) -> Downsampled:
        if stat not in self._downsampled:
            window = self.run.window(int(self.first[0]), int(self.last[-1]), points=len(self))
            self._downsampled[stat] = window.stat(stat)
        return self._downsampled[stat]


# -- cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelScale:
    """Where the levels of a map lie: `low` … `high`, logarithmically or evenly."""

    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, values: NDArray[np.float64], log: bool, unit: str = "") -> "LevelScale":
        """The scale that holds all finite values; fractions always go from 0 to 1."""
        if unit == "fraction":
            return cls(0.0, 1.0, False)
        usable = values[np.isfinite(values) & (values > 0)] if log else values[np.isfinite(values)]
        if not usable.size:
            return cls(1e-8, 1.0, True) if log else cls(0.0, 1.0, False)
        low, high = float(usable.min()), float(usable.max())
        if log and high < low * LEAST_SPAN:  # nearly equal values belong in the middle
            middle = math.sqrt(low) * math.sqrt(high)  # the product itself could underflow
            half, ends = math.sqrt(LEAST_SPAN), sys.float_info
            return cls(max(middle / half, ends.min), min(middle * half, ends.max), True)
        if log:
            return cls(low, high, True)
        return cls(low, high if high > low else low + 1.0, False)

    def level(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 … 1 for low … high; NaN stays NaN."""
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (np.log(values) - math.log(self.low)) / math.log(self.high / self.low)

    def value(self, level: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `level`."""
        if not self.log:
            return self.low + level * (self.high - self.low)
        values: NDArray[np.float64] = np.exp(
            math.log(self.low) + level * math.log(self.high / self.low)
        )
        return values


def coded(
    values: NDArray[np.float64],
    scale: LevelScale,
    nonfinite: NDArray[np.bool_],
    no_gradient: NDArray[np.bool_],
) -> NDArray[np.uint8]:
    """One byte per value; a bucket with any non-finite element says so before everything else."""
    codes = np.full(values.shape, Code.EMPTY, np.uint8)
    codes[no_gradient] = Code.NO_GRADIENT
    measured = np.isfinite(values)
    level = np.clip(scale.level(np.where(measured, values, np.nan)), 0, 1)
    there = np.isfinite(level)
    codes[there] = np.rint(level[there] * LEVELS).astype(np.uint8) + Code.LOWEST
    if scale.log:
        codes[measured & (values <= 0)] = Code.ZERO
    codes[nonfinite] = Code.NONFINITE
    return codes


def decoded(codes: NDArray[np.uint8], scale: LevelScale) -> NDArray[np.float64]:
    """Back to numbers: within half a level; NaN for empty, no gradient and non-finite."""
    values = scale.value((codes.astype(np.float64) - Code.LOWEST) / LEVELS)
    values[(codes == Code.EMPTY) | (codes >= Code.NO_GRADIENT)] = np.nan
    if scale.log:
        values[codes == Code.ZERO] = 0.0
    return values


def packed(codes: NDArray[np.uint8]) -> str:
    """Deflated (raw) and in base64. Rows follow each other, so that neighbours in time compress."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(deflate.compress(codes.tobytes()) + deflate.flush()).decode()


def unpacked(text: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """The inverse of `packed`."""
    raw = zlib.decompress(base64.b64decode(text), -15)
    return np.frombuffer(raw, np.uint8).reshape(rows, columns)
