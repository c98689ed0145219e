"""Weight distributions over time: a few histograms per tensor, as heights of 0 … 255."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.run import Histogram, Run
from gradwatch.stats import Family
from gradwatch.views.model.rows import Layer

MOST_TENSORS = 24
MOMENTS = 8


def ridges(run: Run, layers: Sequence[Layer], worst: Sequence[int]) -> list[dict[str, Any]]:
    """The main tensors of the worst layers, each at up to `MOMENTS` steps."""
    found: list[dict[str, Any]] = []
    for index in worst:
        main = layers[index].main
        if main is None:
            continue
        ridge = _ridge(run, run.parameters[main].name)
        if ridge:
            found.append(ridge)
        if len(found) == MOST_TENSORS:
            break
    return found


def _ridge(run: Run, name: str) -> dict[str, Any] | None:
    table = run.histograms(Family.WEIGHT, name)
    if not table:
        return None
    steps = sorted(table)
    even = np.linspace(steps[0], steps[-1], MOMENTS)
    nearest = np.abs(np.array(steps)[:, None] - even).argmin(axis=0)
    picked = sorted({steps[i] for i in nearest})
    parts = [table[step] for step in picked]
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
