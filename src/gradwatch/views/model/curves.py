"""Curves over steps: scalars, learning rates, evidence, update ratios, weight histograms."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.errors import GradwatchError
from gradwatch.finding import Evidence
from gradwatch.run import Downsampled, Histogram, Run
from gradwatch.stats import Family, Kind, Stat
from gradwatch.views.model.heat import Columns
from gradwatch.views.model.titles import numbers, rounded, shown

POINTS = 400
CHART_POINTS = 160
BAND = (1e-5, 1e-1)
"""Update ratios outside it are what `update-ratio-too-small` and `-too-large` may mention."""
INTERNAL = frozenset({"stale", "skipped", "backwards", "loss_nonfinite", "step_seconds"})
MOST_SCALARS = 40
LOG_ABOVE = 100
"""Positive values that span more than two decades are shown on a log scale."""
MOST_HISTOGRAMS = 24
"""Tensors with histograms on the page."""
HISTOGRAM_STEPS = 8
"""Steps at which each of them is shown."""


def scalars(run: Run, first: int, last: int) -> list[dict[str, Any]]:
    """Every logged scalar: losses first, then the user's own, then ours."""
    names = sorted(
        run.scalars, key=lambda name: (name != "loss", name != "val_loss", name in INTERNAL)
    )
    window = run.window(first, last, points=POINTS)
    curves = []
    for name in names[:MOST_SCALARS]:
        curve = _curve(window.scalar(name), 0)
        if curve["x"]:
            curves.append({"name": name, "title": name.replace("_", " "), **curve})
    return curves


def learning_rates(run: Run, first: int, last: int) -> list[dict[str, Any]]:
    """One curve per optimizer group."""
    if Stat.LR not in run.recorded:
        return []
    buckets = run.window(first, last, points=POINTS).stat(Stat.LR)
    groups = run.by_kind[Kind.GROUP]
    return [
        {
            "name": group.name,
            "title": f"learning rate {group.name}".strip(),
            **_curve(buckets, index),
        }
        for index, group in enumerate(groups[:12])
    ]


def evidence_chart(run: Run, item: Evidence, first: int, last: int) -> dict[str, Any] | None:
    """The series an evidence points at, with the moment and the limit marked; None if not there."""
    window = run.window(first, last, points=CHART_POINTS)
    if item.subject is None:
        if item.stat not in run.scalars:
            return None
        title, unit, curve = item.stat.replace("_", " "), "", _curve(window.scalar(item.stat), 0)
    else:
        if item.stat not in map(str, run.recorded):
            return None
        what = shown(item.stat)
        names = [subject.name for subject in run.by_kind[what.kind]]
        if item.subject not in names:
            return None
        title, unit = what.title, what.unit
        curve = _curve(window.stat(what.stat), names.index(item.subject))
    if not curve["x"]:
        return None
    if item.limit and item.limit > 0 and min(curve["low"]) > 0:
        far = max(*curve["high"], item.limit) / min(*curve["low"], item.limit)
        curve["log"] = bool(far > LOG_ABOVE)
    return {
        "title": title,
        "unit": unit,
        "subject": item.subject,
        "step": item.step,
        "measured": rounded(item.measured),
        "limit": rounded(item.limit),
        **curve,
    }


def update_spread(columns: Columns) -> dict[str, Any] | None:
    """Lowest, tenth, median, ninetieth and highest update ratio over the weights, per column."""
    run = columns.run
    if Stat.UPDATE_RATIO not in run.recorded or not len(columns):
        return None
    keep = [i for i, s in enumerate(run.parameters) if len(s.shape) >= 2 or not s.shape]
    try:
        values = columns.values(shown(Stat.UPDATE_RATIO))[:, keep]
    except GradwatchError:
        return None
    rows = np.isfinite(values).any(axis=1) if keep else np.zeros(len(columns), bool)
    if not rows.any():
        return None
    there = values[rows]
    quantile = np.nanquantile if np.isnan(there).any() else np.quantile  # far quicker
    levels = quantile(there, (0, 0.1, 0.5, 0.9, 1), axis=1)
    names = ("lowest", "tenth", "median", "ninetieth", "highest")
    return {
        "x": columns.last[rows].tolist(),
        "band": list(BAND),
        **{name: numbers(level) for name, level in zip(names, levels, strict=True)},
    }


def _curve(buckets: Downsampled, column: int) -> dict[str, Any]:
    """Only buckets with a value; `log` where the values are positive and span over two decades."""
    low, high, last = (table[:, column] for table in (buckets.low, buckets.high, buckets.last))
    there = np.isfinite(last)
    low, high, last = low[there], high[there], last[there]
    positive = bool(there.any()) and float(low.min()) > 0
    log = positive and float(high.max()) / float(low.min()) > LOG_ABOVE
    return {
        "x": buckets.last_steps[there].tolist(),
        "low": numbers(low),
        "high": numbers(high),
        "last": numbers(last),
        "log": log,
    }


def weight_histograms(run: Run, tensors: Sequence[int]) -> list[dict[str, Any]]:
    """The section `ridges`: how the weights of these tensors are distributed, at a few steps."""
    drawn: list[dict[str, Any]] = []
    for tensor in tensors:
        histograms = _histograms_of(run, run.parameters[tensor].name)
        if histograms:
            drawn.append(histograms)
        if len(drawn) == MOST_HISTOGRAMS:
            break
    return drawn


def _histograms_of(run: Run, name: str) -> dict[str, Any] | None:
    table = run.histograms(Family.WEIGHT, name)
    if not table:
        return None
    steps = sorted(table)
    even = np.linspace(steps[0], steps[-1], HISTOGRAM_STEPS)
    nearest = np.abs(np.array(steps)[:, None] - even).argmin(axis=0)
    found = {step: table.get(step) for step in sorted({steps[i] for i in nearest})}
    sound = {step: part for step, part in found.items() if part is not None}  # others are damaged
    picked, parts = list(sound), list(sound.values())
    spans = [_span(part) for part in parts]
    low = min((span[0] for span in spans if span), default=0)
    high = max((span[1] for span in spans if span), default=0)
    return {
        "name": name,
        "first_exponent": low,
        "last_exponent": high,
        "steps": [int(step) for step in picked],
        "heights": [_heights(part, low, high) for part in parts],
        "zeros": [int(part.zeros) for part in parts],
        "nonfinite": [int(part.nan + part.positive_inf + part.negative_inf) for part in parts],
        "counts": [int(part.count) for part in parts],
    }


def _span(part: Histogram) -> tuple[int, int] | None:
    """Lowest and highest exponent that has an element, without the lowest thousandth."""
    both = part.negative.astype(float) + part.positive.astype(float)
    if not both.sum():
        return None
    total = np.cumsum(both) / both.sum()
    low = int(np.searchsorted(total, 1e-3))
    high = int(np.flatnonzero(both)[-1])
    return part.first_exponent + low, part.first_exponent + high


def _heights(part: Histogram, low: int, high: int) -> list[int]:
    """Negative bins from large to small, then positive ones from small to large; largest is 255."""
    exponents = np.arange(low, high + 1) - part.first_exponent
    inside = (exponents >= 0) & (exponents < len(part.positive))
    at = np.clip(exponents, 0, max(len(part.positive) - 1, 0))
    if not len(part.positive):
        return [0] * (2 * len(exponents))
    negative = np.where(inside, part.negative[at], 0).astype(float)
    positive = np.where(inside, part.positive[at], 0).astype(float)
    both = np.concatenate([negative[::-1], positive])
    top = both.max()
    heights: list[int] = (
        np.rint(both / top * 255).astype(int) if top else both.astype(int)
    ).tolist()
    return heights
