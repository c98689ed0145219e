"""`analyze_drift`: how far weights moved between two states."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import Rules
from gradwatch.analysis.elements import ELEMENTS, last_rows
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import weights as original
from gradwatch.result import Result, missing
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.drift import DriftSums
from gradwatch.stats.medians import median

CHUNK = 1 << 16
UNMEASURED = "the change of some tensor could not be measured"
NOT_FINITE = "NaN or Inf among the elements"

Weights = Mapping[str, Any] | Run


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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    A state is arrays by name, or a run (its last recorded weights), from which only what does not
    need the elements can be said.
    """
    if Rules(rules) is Rules.ORIGINAL:
        if isinstance(before, Run) or isinstance(after, Run):
            raise GradwatchError("The original's drift needs the arrays themselves.", Exit.USAGE)
        return original.analyze_drift(before, after)
    old, new = _names(before), _names(after)
    common = [name for name in new if name in old]
    if not common:
        raise GradwatchError(
            f"Expected tensors with the same names, got {sorted(old)[:3]} before and "
            f"{sorted(new)[:3]} after.",
            Exit.USAGE,
        )
    layers = _layers(common, before, after)
    moved = {n: d.relative_change for n, d in layers.items() if d.relative_change is not None}
    sizes = {n: layers[n].count for n in moved if layers[n].count}
    mean = None
    if sizes and all(d.changed_fraction is not None for d in layers.values()):
        mean = sum(moved[n] * count for n, count in sizes.items()) / sum(sizes.values())
    nonfinite = tuple(n for n, d in layers.items() if d.nonfinite_before or d.nonfinite_after)
    return WeightDriftAnalysis(
        layers=layers,
        mean_drift=missing(UNMEASURED) if mean is None else mean,
        max_drift=missing(UNMEASURED) if mean is None else max(moved.values()),
        severity=_severity(mean, nonfinite),
        affected_layers=_affected(layers, moved),
        unmoved_layers=tuple(n for n, d in layers.items() if d.count and d.changed_fraction == 0),
        nonfinite_layers=nonfinite,
        added_layers=tuple(name for name in new if name not in old),
        removed_layers=tuple(name for name in old if name not in new),
    )


def _names(weights: Weights) -> dict[str, None]:
    if isinstance(weights, Run):
        return {weights.names[column]: None for column in last_rows(weights, Stat.WEIGHT_MEAN)}
    return dict.fromkeys(weights)


def _layers(names: list[str], before: Weights, after: Weights) -> dict[str, LayerDrift]:
    if isinstance(before, Run) and isinstance(after, Run):
        return _between_runs(names, before, after)
    if isinstance(before, Run) or isinstance(after, Run):
        raise GradwatchError(
            "Expected two runs or two sets of arrays, got one of each.", Exit.USAGE
        )
    return {name: _between_arrays(name, before[name], after[name]) for name in names}


def _between_arrays(name: str, before: Any, after: Any) -> LayerDrift:
    a, b = np.asarray(before), np.asarray(after)
    if a.shape != b.shape:
        raise GradwatchError(
            f"Expected {name!r} to keep its shape, got {a.shape} before and {b.shape} after.",
            Exit.USAGE,
        )
    a, b = a.reshape(-1), b.reshape(-1)
    sums, scale = DriftSums(), max(_largest(a), _largest(b)) or 1.0
    for begin in range(0, a.size, CHUNK):
        x, y = (values[begin : begin + CHUNK].astype(np.float64) for values in (a, b))
        sums.add(x, y, scale=scale)
    count, change = max(sums.count, 1), sums.relative_change
    # One root of the product, which scaled sums allow: 1 exactly for a tensor that did not move.
    length = math.sqrt(sums.before * sums.after)
    cosine = max(-1.0, min(1.0, sums.product / length)) if length else math.nan
    from_zero = NOT_FINITE if sums.nonfinite else "the tensor was zero before"
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


def _between_runs(names: list[str], before: Run, after: Run) -> dict[str, LayerDrift]:
    """Whether anything moved, zeros, NaN: what hashes and statistics show without elements."""
    old, new = last_rows(before, Stat.WEIGHT_MEAN), last_rows(after, Stat.WEIGHT_MEAN)
    layers = {}
    for name in names:
        columns = before.index(name), after.index(name)
        bits_before, zeros_before, bad_before = _recorded(before, old[columns[0]], columns[0])
        bits_after, zeros_after, bad_after = _recorded(after, new[columns[1]], columns[1])
        unmoved = bits_before is not None and bits_before == bits_after
        layers[name] = LayerDrift(
            count=int(after.series[Stat.WEIGHT_COUNT][new[columns[1]], columns[1]]),
            relative_change=0.0 if unmoved else missing(ELEMENTS),
            cosine=1.0 if unmoved else missing(ELEMENTS),
            changed_fraction=0.0 if unmoved else missing(ELEMENTS),
            sign_flip_fraction=0.0 if unmoved else missing(ELEMENTS),
            sparsity_change=zeros_after - zeros_before,
            nonfinite_before=bad_before,
            nonfinite_after=bad_after,
        )
    return layers


def _recorded(run: Run, row: int, column: int) -> tuple[int | None, float, int]:
    """Hash of the bits (None where it was not recorded), share of zeros, count of NaN and Inf."""
    zeros, nan, inf = (
        float(run.series[stat][row, column])
        for stat in (Stat.WEIGHT_ZERO_FRACTION, Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
    )
    hashed = Stat.WEIGHT_HASH in run.recorded
    bits = int(run.integers(Stat.WEIGHT_HASH)[row, column]) if hashed else None
    return bits, zeros, int(nan + inf)


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
    drifts = np.array(list(moved.values()) or [0.0])
    centre = median(drifts)
    spread = 1.4826 * median(np.abs(drifts - centre))
    # Where all moved alike the spread is 0 and rounding would count: allow a hundredth.
    limit = min(centre + 3.0 * max(spread, 0.01 * centre), _LIMITS[0][0])
    return tuple(n for n in layers if n in from_zero or moved.get(n, 0.0) > limit)
