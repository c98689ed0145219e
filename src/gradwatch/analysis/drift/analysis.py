"""`analyze_drift`: how far weights moved between two states."""

from collections.abc import Mapping
from statistics import median
from typing import Any, Literal, overload

from gradwatch.analysis.drift.arrays import from_elements
from gradwatch.analysis.drift.results import LayerDrift, WeightDriftAnalysis, WeightDriftSeverity
from gradwatch.analysis.drift.runs import from_statistics, last_rows
from gradwatch.analysis.rules import Rules
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import weights as original
from gradwatch.result import Result, missing
from gradwatch.run import Run

_LIMITS = (
    (0.1, WeightDriftSeverity.HIGH),
    (0.05, WeightDriftSeverity.MEDIUM),
    (0.01, WeightDriftSeverity.LOW),
)

UNMEASURED = "the change of some tensor could not be measured"

State = Mapping[str, Any] | Run


@overload
def analyze_drift(
    before: State, after: State, *, rules: Literal["gradwatch"] = ...
) -> WeightDriftAnalysis: ...
@overload
def analyze_drift(before: State, after: State, *, rules: Rules | str) -> Result: ...
def analyze_drift(before: State, after: State, *, rules: Rules | str = Rules.GRADWATCH) -> Result:
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
    bad = tuple(n for n, d in layers.items() if d.nonfinite_before or d.nonfinite_after)
    measured = {n: drift for n, drift in moved.items() if layers[n].count}
    whole = bool(measured) and all(d.changed_fraction is not None for d in layers.values())
    mean = _mean(layers, measured) if whole else None
    return WeightDriftAnalysis(
        layers=layers,
        mean_drift=missing(UNMEASURED) if mean is None else mean,
        max_drift=max(moved.values()) if whole else missing(UNMEASURED),
        severity=_severity(mean, bad),
        affected_layers=_affected(layers, moved),
        unmoved_layers=tuple(n for n, d in layers.items() if d.count and d.changed_fraction == 0),
        nonfinite_layers=bad,
        added_layers=tuple(name for name in new if name not in old),
        removed_layers=tuple(name for name in old if name not in new),
    )


def _names(state: State) -> list[str]:
    return list(last_rows(state)) if isinstance(state, Run) else list(state)


def _layers(common: list[str], before: State, after: State) -> dict[str, LayerDrift]:
    if isinstance(before, Run) and isinstance(after, Run):
        old, new = last_rows(before), last_rows(after)
        return {
            name: from_statistics(name, (before, old[name]), (after, new[name])) for name in common
        }
    if isinstance(before, Run) or isinstance(after, Run):
        raise GradwatchError(
            "Expected two runs or two sets of arrays, got one of each.", Exit.USAGE
        )
    return {name: from_elements(name, before[name], after[name]) for name in common}


def _mean(layers: Mapping[str, LayerDrift], moved: Mapping[str, float]) -> float:
    elements = sum(layers[name].count for name in moved)
    return sum(drift * layers[name].count for name, drift in moved.items()) / elements


def _severity(mean: float | None, bad: tuple[str, ...]) -> WeightDriftSeverity:
    """Weights that became NaN have drifted as far as weights can."""
    if bad:
        return WeightDriftSeverity.HIGH
    if mean is None:
        return WeightDriftSeverity.UNKNOWN
    return next((level for above, level in _LIMITS if mean > above), WeightDriftSeverity.MINIMAL)


def _affected(layers: Mapping[str, LayerDrift], moved: Mapping[str, float]) -> tuple[str, ...]:
    """A tensor that left zero has no relative change, but it moved."""
    from_zero = {n for n, d in layers.items() if n not in moved and d.changed_fraction}
    centre = median(moved.values()) if moved else 0.0
    apart = [abs(drift - centre) for drift in moved.values()]
    spread = 1.4826 * median(apart) if apart else 0.0
    # (a hundredth of the centre keeps rounding from counting where all moved alike)
    limit = min(centre + 3.0 * max(spread, 0.01 * centre), _LIMITS[0][0])
    return tuple(n for n in layers if n in from_zero or moved.get(n, 0.0) > limit)
