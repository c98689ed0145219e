"""Drift of one tensor from its elements, chunk by chunk."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.drift.results import LayerDrift
from gradwatch.errors import Exit, GradwatchError
from gradwatch.result import missing

CHUNK = 1 << 16
_NOT_FINITE = "NaN or Inf among the elements"


def from_elements(name: str, before: Any, after: Any) -> LayerDrift:
    a, b = np.asarray(before), np.asarray(after)
    if a.shape != b.shape:
        raise GradwatchError(
            f"Expected {name!r} to keep its shape, got {a.shape} before and {b.shape} after.",
            Exit.USAGE,
        )
    a, b = a.reshape(-1), b.reshape(-1)
    sums, counts = np.zeros(4), np.zeros(6, np.int64)
    scale = _scale(a, b)
    for begin in range(0, a.size, CHUNK):
        x, y = (v[begin : begin + CHUNK].astype(np.float64) for v in (a, b))
        counts += _counted(x, y)
        both = np.isfinite(x) & np.isfinite(y)
        x, y = x[both] / scale, y[both] / scale
        apart = y - x
        sums += [apart @ apart, x @ x, y @ y, x @ y]
    return _drift(a.size, sums, counts)


def _scale(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Largest finite absolute value, so that squares neither overflow nor vanish."""
    largest = 0.0
    for values in (a, b):
        for begin in range(0, values.size, CHUNK):
            part = np.abs(values[begin : begin + CHUNK].astype(np.float64))
            largest = max(largest, float(np.max(part, initial=0.0, where=np.isfinite(part))))
    return largest or 1.0


def _counted(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Changed, flipped, zeros before and after, non-finite before and after."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.array(
        [
            np.count_nonzero(~same),
            np.count_nonzero(((x < 0) & (y > 0)) | ((x > 0) & (y < 0))),
            np.count_nonzero(x == 0),
            np.count_nonzero(y == 0),
            np.count_nonzero(~np.isfinite(x)),
            np.count_nonzero(~np.isfinite(y)),
        ]
    )


def _drift(size: int, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> LayerDrift:
    apart, before, after, product = (float(value) for value in sums)
    changed, flipped, zeros_before, zeros_after, bad_before, bad_after = counts.tolist()
    whole = not (bad_before or bad_after)
    why = "the tensor was zero before" if whole else _NOT_FINITE
    unmoved = whole and not changed
    length = (before * after) ** 0.5
    count = max(size, 1)
    return LayerDrift(
        count=size,
        relative_change=(apart / before) ** 0.5
        if whole and before
        else (0.0 if unmoved else missing(why)),
        cosine=max(-1.0, min(1.0, product / length))
        if whole and length
        else missing("a zero tensor has no direction" if whole else _NOT_FINITE),
        changed_fraction=changed / count,
        sign_flip_fraction=flipped / count,
        sparsity_change=(zeros_after - zeros_before) / count,
        nonfinite_before=bad_before,
        nonfinite_after=bad_after,
    )
