"""`analyze_weights`: one pass for the moments of all tensors, one for histograms and outliers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np

from gradwatch.analysis.rules import Rules
from gradwatch.analysis.weights import grid as grids
from gradwatch.analysis.weights.grid import Grid
from gradwatch.analysis.weights.health import distribution_health, issues, score
from gradwatch.analysis.weights.report import detection, first_nonfinite, statistics
from gradwatch.analysis.weights.results import (
    DistributionHealth,
    LayerWeightAnalysis,
    WeightDistributionAnalysis,
    WeightStatistics,
)
from gradwatch.analysis.weights.scan import Far, scan
from gradwatch.analysis.weights.spread import Spread, spread
from gradwatch.analysis.weights.tensors import Given, Tensor, from_arrays, from_run, named
from gradwatch.analysis.weights.words import DistributionHealthStatus
from gradwatch.kernel import merge
from gradwatch.original import weights as original
from gradwatch.result import Result, missing
from gradwatch.run import Run

ELEMENTS = "needs the elements; a run keeps only their statistics"
EMPTY = "the tensor is empty"
NOTHING = "there is no element to judge"


@overload
def analyze_weights(
    tensors_or_run: Given | Run, *, rules: Literal["gradwatch"] = ..., listed: int = ...
) -> WeightDistributionAnalysis: ...
@overload
def analyze_weights(
    tensors_or_run: Given | Run, *, rules: Rules | str, listed: int = ...
) -> Result: ...
def analyze_weights(
    tensors_or_run: Given | Run, *, rules: Rules | str = Rules.GRADWATCH, listed: int = 100
) -> Result:
    """Judge weights handed in by name (or as a list), or the last ones recorded in a run.

    `listed` outliers are named, the furthest; their total is always said. From a run, what needs
    the elements themselves (entropy, outliers) is None and says so. `rules="original"` is the
    original program's own analysis, in 32 bits (from a run: of the recorded statistics).
    """
    if Rules(rules) is Rules.ORIGINAL:
        return _original(tensors_or_run)
    from_elements = not isinstance(tensors_or_run, Run)
    tensors = (
        from_run(tensors_or_run) if isinstance(tensors_or_run, Run) else from_arrays(tensors_or_run)
    )
    seen = _look(tensors, listed) if from_elements else {}
    overall = _overall(tensors, seen, from_elements)
    return WeightDistributionAnalysis(
        layer_analyses={
            tensor.name: _layer(index, tensor, seen.get(tensor.name), from_elements)
            for index, tensor in enumerate(tensors)
        },
        overall_statistics=overall,
        distribution_health=(
            distribution_health(overall)
            if overall.count
            else DistributionHealth(missing(NOTHING), DistributionHealthStatus.UNKNOWN)
        ),
        outlier_detection=(
            detection(tensors, {name: look.far for name, look in seen.items()}, listed)
            if from_elements
            else missing(ELEMENTS)
        ),
    )


@dataclass(frozen=True)
class Look:
    """What the second pass found in one tensor."""

    grid: Grid
    common: Grid
    far: Far


def _look(tensors: Sequence[Tensor], kept: int) -> dict[str, Look]:
    full = [tensor for tensor in tensors if tensor.finite]
    spreads = {tensor.name: spread(tensor) for tensor in full}
    common = _common_exponent(full, spreads)
    seen = {}
    for tensor in full:
        low, high = float(tensor.record["min"]), float(tensor.record["max"])
        own = grids.exponent(spreads[tensor.name].quartiles, tensor.finite, low, high)
        fine, far = scan(tensor, spreads[tensor.name], min(own, common), kept)
        seen[tensor.name] = Look(fine.coarser(own), fine.coarser(common), far)
    return seen


def _common_exponent(full: Sequence[Tensor], spreads: dict[str, Spread]) -> int:
    """Cell width for all tensors together, by the quartiles of their pooled quantiles."""
    if not full:
        return 0
    atoms = np.concatenate([spreads[tensor.name].atoms for tensor in full])
    counts = [tensor.finite for tensor in full]
    weights = np.repeat(np.array(counts, float), [len(spreads[t.name].atoms) for t in full])
    order = np.argsort(atoms, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (atoms[order][np.searchsorted(reached, share)] for share in (0.25, 0.75))
    least = min(float(tensor.record["min"]) for tensor in full)
    most = max(float(tensor.record["max"]) for tensor in full)
    return grids.exponent(float(high - low), sum(counts), least, most)


def _overall(
    tensors: Sequence[Tensor], seen: dict[str, Look], from_elements: bool
) -> WeightStatistics:
    """All tensors as if they were one: moments merged by count, histograms cell by cell."""
    if not any(int(tensor.record["count"]) for tensor in tensors):
        return _nothing(NOTHING)
    record = merge(np.array([tensor.record for tensor in tensors]))
    if not seen:
        return statistics(record, None, NOTHING if from_elements else ELEMENTS)
    parts = [look.common for look in seen.values()]
    first = min(part.first for part in parts)
    last = max(part.first + len(part.counts) for part in parts)
    pooled = Grid(parts[0].exponent, first, np.zeros(last - first, np.int64))
    for part in parts:
        pooled.merge(part)
    return statistics(record, pooled, "")


def _layer(
    index: int, tensor: Tensor, look: Look | None, from_elements: bool
) -> LayerWeightAnalysis:
    found = statistics(
        tensor.record, look.grid if look else None, NOTHING if from_elements else ELEMENTS
    )
    judged = issues(found)
    return LayerWeightAnalysis(
        name=tensor.name,
        layer_index=index,
        shape=tensor.shape,
        dtype=tensor.dtype,
        statistics=found if found.count else _nothing(EMPTY),
        zero_rows=(
            int(tensor.record["zero_rows"])
            if len(tensor.shape) >= 2
            else missing("only tensors of two or more dimensions have rows")
        ),
        first_nonfinite=_first(tensor) if tensor.nonfinite else None,
        health_score=score(judged) if found.count else missing(EMPTY),
        issues=judged,
        recommendations=tuple(issue.advice for issue in judged),
    )


def _first(tensor: Tensor) -> int:
    found: int = missing(ELEMENTS) if tensor.values is None else first_nonfinite(tensor.values)
    return found


def _nothing(why: str) -> WeightStatistics:
    blank = missing(why)
    return WeightStatistics(
        count=0,
        mean=blank,
        std_dev=blank,
        skewness=blank,
        kurtosis=blank,
        entropy=blank,
        normalized_entropy=blank,
        min=blank,
        max=blank,
        zero_fraction=blank,
        norm=blank,
        nan_count=0,
        inf_count=0,
    )


def _original(tensors_or_run: Given | Run) -> Result:
    if not isinstance(tensors_or_run, Run):
        arrays = named(tensors_or_run).values()
        return original.analyze_weight_distribution([np.asarray(a, np.float32) for a in arrays])
    return original.judge([_recorded(t) for t in from_run(tensors_or_run)], missing(ELEMENTS))


def _recorded(tensor: Tensor) -> original.WeightStatistics:
    """The original's fields from a record; its NaN where there are non-finite elements."""
    found = statistics(tensor.record, None, ELEMENTS)
    spoilt = np.nan if tensor.nonfinite else 0.0  # extremes skip NaN there, sums do not
    std = (found.std_dev or 0.0) + spoilt
    return original.WeightStatistics(
        mean=(found.mean or 0.0) + spoilt,
        std_dev=std,
        skewness=(found.skewness or 0.0) + spoilt,
        kurtosis=(found.kurtosis or 0.0) + spoilt,
        entropy=original.entropy(std),
        min=found.min or 0.0,
        max=found.max or 0.0,
        zero_fraction=found.zero_fraction or 0.0,
    )
