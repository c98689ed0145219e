"""`analyze_drift`: how far weights moved between two states."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import Rules
from gradwatch.analysis.elements import ELEMENTS, Given, named
from gradwatch.checkpoints.compare import Drift
from gradwatch.checks.tensors import last_rows
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import weights as original
from gradwatch.result import Result, missing
from gradwatch.run import Run, choice
from gradwatch.run.given import as_real
from gradwatch.stats import Stat
from gradwatch.stats.drift import DriftSums
from gradwatch.stats.medians import median

CHUNK = 1 << 16
UNMEASURED = "the change of some tensor could not be measured"
NOT_FINITE = "NaN or Inf among the elements"
FURTHEST = 1e300
"""Larger changes count as this one where they are added up."""

Weights = Given | Run


class WeightDriftSeverity(StrEnum):
    """How far the weights moved on average, by limits of 1, 5 and 10 %."""

    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    UNKNOWN = "Unknown"


_LIMITS = (
    (0.1, WeightDriftSeverity.HIGH),
    (0.05, WeightDriftSeverity.MEDIUM),
    (0.01, WeightDriftSeverity.LOW),
)


class LayerDrift(Result):
    """How one tensor moved."""

    count: int
    relative_change: float | None
    """‖after − before‖ / ‖before‖."""
    cosine: float | None
    """Between before and after."""
    changed_fraction: float | None
    """Share of elements that are not equal any more."""
    sign_flip_fraction: float | None
    """Share of elements that went from one side of zero to the other."""
    sparsity_change: float | None
    """Share of exact zeros after, minus before."""
    nonfinite_before: int
    nonfinite_after: int


class WeightDriftAnalysis(Result):
    """The result of `analyze_drift`."""

    layers: dict[str, LayerDrift]
    mean_drift: float | None
    """Relative change, weighted by the number of elements; tensors that were zero have none."""
    max_drift: float | None
    severity: WeightDriftSeverity
    affected_layers: tuple[str, ...]
    """Moved further than the others (median + 3 robust deviations), by more than a tenth, or away
    from zero."""
    unmoved_layers: tuple[str, ...]
    """Not one element changed."""
    nonfinite_layers: tuple[str, ...]
    added_layers: tuple[str, ...]
    removed_layers: tuple[str, ...]


@overload
def analyze_drift(
    before: Weights, after: Weights, *, rules: Literal["gradwatch"] = ...
) -> WeightDriftAnalysis: ...
@overload
def analyze_drift(before: Weights, after: Weights, *, rules: Rules | str) -> Result: ...
def analyze_drift(
    before: Weights, after: Weights, *, rules: Rules | str = Rules.GRADWATCH
) -> Result:
    """Compare tensors of the same names in two states: initial, previous, best, as you like.

    A state is arrays by name or in a list, or a run (its last recorded weights), from which only
    what does not need the elements can be said. A complex number counts as two elements.
    """
    originally = choice(Rules, rules, "rules") is Rules.ORIGINAL
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    if isinstance(before, Run) and isinstance(after, Run):
        if originally:
            raise GradwatchError("The original's drift needs the arrays themselves.", Exit.USAGE)
        old, new = _last_weights(before), _last_weights(after)
        layers = {name: _between_runs(old[name], new[name]) for name in new if name in old}
    elif isinstance(before, Run) or isinstance(after, Run):
        raise GradwatchError(
            "Expected two runs or two sets of arrays, got one of each.", Exit.USAGE
        )
    else:
        old, new = named(before), named(after)
        if originally:
            return original.analyze_drift(old, new)
        layers = {name: _between_arrays(name, old[name], new[name]) for name in new if name in old}
    if not layers:
        raise GradwatchError(
            f"Expected tensors with the same names, got {sorted(old)[:3]} before and "
            f"{sorted(new)[:3]} after.",
            Exit.USAGE,
        )
    return summary(
        layers,
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
    )


def of_checkpoints(drift: Drift) -> WeightDriftAnalysis:
    """The same of two checkpoints that were compared in place."""
    layers = {tensor.name: _described(tensor.sums) for tensor in drift.tensors}
    return summary(layers, added=drift.added, removed=drift.missing)


def summary(
    layers: dict[str, LayerDrift], *, added: tuple[str, ...], removed: tuple[str, ...]
) -> WeightDriftAnalysis:
    """All tensors together: how far on average and at most, which of them, which not at all."""
    moved = {n: d.relative_change for n, d in layers.items() if d.relative_change is not None}
    sizes = {n: layers[n].count for n in moved if layers[n].count}
    mean = None
    if sizes and all(d.changed_fraction is not None for d in layers.values()):
        total = sum(sizes.values())
        mean = sum(moved[n] * (count / total) for n, count in sizes.items())
    nonfinite = tuple(n for n, d in layers.items() if d.nonfinite_before or d.nonfinite_after)
    return WeightDriftAnalysis(
        layers=layers,
        mean_drift=missing(UNMEASURED) if mean is None else mean,
        max_drift=missing(UNMEASURED) if mean is None else max(moved.values()),
        severity=_severity(mean, nonfinite),
        affected_layers=_affected(layers, moved),
        unmoved_layers=tuple(n for n, d in layers.items() if d.count and d.changed_fraction == 0),
        nonfinite_layers=nonfinite,
        added_layers=added,
        removed_layers=removed,
    )


def _between_arrays(name: str, before: NDArray[Any], after: NDArray[Any]) -> LayerDrift:
    if before.shape != after.shape:
        raise GradwatchError(
            f"Expected {name!r} to keep its shape, got {before.shape} before and {after.shape} "
            "after.",
            Exit.USAGE,
        )
    if "c" in (before.dtype.kind, after.dtype.kind):
        before, after = (array.astype(np.complex128, copy=False) for array in (before, after))
    a, b = as_real(before), as_real(after)
    sums, scale = DriftSums(), max(_largest(a), _largest(b)) or 1.0
    for begin in range(0, a.size, CHUNK):
        x, y = (values[begin : begin + CHUNK].astype(np.float64) for values in (a, b))
        sums.add(x, y, scale=scale)
    return _described(sums)


def _described(sums: DriftSums) -> LayerDrift:
    count, change = max(sums.count, 1), sums.relative_change
    # One root of the product, which scaled sums allow: 1 exactly for a tensor that did not move.
    length = math.sqrt(sums.before * sums.after)
    cosine = max(-1.0, min(1.0, sums.product / length)) if length else math.nan
    small = "the tensor was too small before to divide by"
    was = "the tensor was zero before" if sums.zeros_before == sums.count else small
    from_zero = NOT_FINITE if sums.nonfinite else was
    no_direction = NOT_FINITE if sums.nonfinite else "a zero tensor has no direction"
    return LayerDrift(
        count=sums.count,
        relative_change=missing(from_zero) if sums.nonfinite or math.isinf(change) else change,
        cosine=missing(no_direction) if sums.nonfinite or math.isnan(cosine) else cosine,
        changed_fraction=sums.changed / count,
        sign_flip_fraction=sums.flipped / count,
        sparsity_change=(sums.zeros_after - sums.zeros_before) / count,
        nonfinite_before=sums.nonfinite_before,
        nonfinite_after=sums.nonfinite_after,
    )


def _largest(values: NDArray[Any]) -> float:
    """Largest finite absolute value, so that squares neither overflow nor vanish."""
    largest = 0.0
    for begin in range(0, values.size, CHUNK):
        part = np.abs(values[begin : begin + CHUNK].astype(np.float64))
        largest = max(largest, float(np.max(part, initial=0.0, where=np.isfinite(part))))
    return largest


@dataclass(frozen=True)
class _LastWeight:
    """What a run says of a parameter's last recorded weight."""

    count: int
    zeros: float
    """Share of exact zeros."""
    nonfinite: int
    bits: int | None
    """Hash of the bits; None where it was not recorded."""


def _last_weights(run: Run) -> dict[str, _LastWeight]:
    columns, rows = last_rows(run, Stat.WEIGHT_MEAN)
    count, zeros, nan, inf = (
        np.nan_to_num(run.at(stat, rows, columns))
        for stat in (Stat.WEIGHT_COUNT, Stat.WEIGHT_ZERO_FRACTION, Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
    )
    hashed = Stat.WEIGHT_HASH in run.recorded
    bits = run.integers(Stat.WEIGHT_HASH)[rows, columns].tolist() if hashed else [None] * len(rows)
    return {
        run.names[column]: _LastWeight(int(n), float(share), int(bad), hash_of_bits)
        for column, n, share, bad, hash_of_bits in zip(
            columns, count, zeros, nan + inf, bits, strict=True
        )
    }


def _between_runs(before: _LastWeight, after: _LastWeight) -> LayerDrift:
    """Whether anything moved, zeros, NaN: what hashes and statistics show without elements."""
    unmoved = before.bits is not None and before.bits == after.bits
    return LayerDrift(
        count=after.count,
        relative_change=0.0 if unmoved else missing(ELEMENTS),
        cosine=1.0 if unmoved else missing(ELEMENTS),
        changed_fraction=0.0 if unmoved else missing(ELEMENTS),
        sign_flip_fraction=0.0 if unmoved else missing(ELEMENTS),
        sparsity_change=after.zeros - before.zeros,
        nonfinite_before=before.nonfinite,
        nonfinite_after=after.nonfinite,
    )


def _severity(mean: float | None, nonfinite: tuple[str, ...]) -> WeightDriftSeverity:
    """Weights that became NaN have drifted as far as weights can."""
    if nonfinite:
        return WeightDriftSeverity.HIGH
    if mean is None:
        return WeightDriftSeverity.UNKNOWN
    return next((level for above, level in _LIMITS if mean > above), WeightDriftSeverity.MINIMAL)


def _affected(layers: Mapping[str, LayerDrift], moved: Mapping[str, float]) -> tuple[str, ...]:
    """A tensor that left zero has no relative change, but it moved."""
    from_zero = {n for n, d in layers.items() if n not in moved and d.changed_fraction}
    drifts = np.minimum(np.array(list(moved.values()) or [0.0]), FURTHEST)
    centre = median(drifts)
    spread = 1.4826 * median(np.abs(drifts - centre))
    # Where all moved alike the spread is 0 and rounding would count: allow a hundredth.
    limit = min(centre + 3.0 * max(spread, 0.01 * centre), _LIMITS[0][0])
    return tuple(n for n in layers if n in from_zero or moved.get(n, 0.0) > limit)
