"""One layer among the others: rank, ratio, neighbours in magnitude."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.result import Result, missing

SIMILAR = math.log(1.2)


@dataclass(frozen=True)
class ComparativeAnalysis(Result):
    relative_performance: float | None
    """The layer's mean norm over the average of the others': a magnitude, not a merit."""
    rank_among_layers: int | None
    similar_layers: tuple[str, ...]
    performance_gap: float | None
    optimization_potential: float | None
    """Decades between this layer's RMS and the median layer's, halved, at most 1."""


def compare(
    names: tuple[str, ...], means: NDArray[np.float64], rms: NDArray[np.float64]
) -> list[ComparativeAnalysis]:
    """All layers at once: one sort and one total instead of a pass over the others for each."""
    known = np.isfinite(means)
    total, size = float(means[known].sum()), int(known.sum())
    order = np.sort(means[known])
    logs = np.full(len(means), -np.inf)
    np.log(means, out=logs, where=known & (means > 0))
    by_log = sorted(np.flatnonzero(known).tolist(), key=lambda i: (logs[i], i))
    sorted_logs = logs[by_log]
    positive = rms[np.isfinite(rms) & (rms > 0)]
    middle = float(np.median(positive)) if len(positive) else float("nan")
    return [
        _one(i, names, means, total, size, order, by_log, sorted_logs, rms[i], middle)
        if known[i]
        else _unknown()
        for i in range(len(names))
    ]


def _one(
    i: int,
    names: tuple[str, ...],
    means: NDArray[np.float64],
    total: float,
    size: int,
    order: NDArray[np.float64],
    by_log: list[int],
    sorted_logs: NDArray[np.float64],
    rms: float,
    middle: float,
) -> ComparativeAnalysis:
    mean = float(means[i])
    rank = 1 + size - int(np.searchsorted(order, mean, side="right"))
    if size < 2:
        alone = missing("there is no other layer to compare with")
        return ComparativeAnalysis(1.0, 1, (), 0.0, alone)
    others = (total - mean) / (size - 1)
    return ComparativeAnalysis(
        mean / others if others > 0 else 1.0,
        rank,
        _similar(i, names, mean, by_log, sorted_logs),
        abs(mean - others),
        _distance(rms, middle),
    )


def _similar(
    i: int, names: tuple[str, ...], mean: float, by_log: list[int], sorted_logs: NDArray[np.float64]
) -> tuple[str, ...]:
    at = math.log(mean) if mean > 0 else -math.inf
    low = int(np.searchsorted(sorted_logs, at - SIMILAR - 1e-12))
    high = int(np.searchsorted(sorted_logs, at + SIMILAR + 1e-12, side="right"))
    return tuple(names[j] for j in sorted(by_log[low:high]) if j != i)


def _distance(rms: float, middle: float) -> float | None:
    if not (rms > 0 and middle > 0):
        return missing("the layer's gradient is zero")  # type: ignore[no-any-return]
    return min(abs(math.log10(rms / middle)) / 2, 1.0)


def _unknown() -> ComparativeAnalysis:
    gone = missing("no finite sample")
    return ComparativeAnalysis(gone, gone, (), gone, gone)
