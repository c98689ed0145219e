"""Exploding gradients among tensors handed in, by a limit the user gives.

A layer's severity says how far it sticks out, either of the other layers (their median norm) or of
the limit, with the same cut-offs; it does not depend on the order of the layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import frexp, inf, isfinite, isinf, isnan, log10
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis import Rules
from gradwatch.analysis.elements import Given, named, singles, tensors_by_name
from gradwatch.checks.tensors import last_rows
from gradwatch.errors import Exit, GradwatchError
from gradwatch.kernel import MOMENTS, measure_arrays
from gradwatch.original import weights as original
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.run import Run, choice, number
from gradwatch.stats import Stat

BEYOND = "it is larger than the largest number"


class ExplosionSeverity(StrEnum):
    """How far gradients are above the limit."""

    NONE = "None"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class ExplosionKind(StrEnum):
    """In which way a gradient exploded."""

    LARGE = "large"
    INFINITE = "infinite"
    NAN = "nan"


class Mitigation(AdviceCode):
    """What to do."""

    FIND_NON_FINITE = "find-non-finite", "First find the layer and step where NaN or Inf began."
    LOWER_LEARNING_RATE = (
        "lower-learning-rate",
        "Many layers are above the limit: lower the learning rate.",
    )
    CLIP = "clip", "Clip the gradient's global norm."
    NORMALISE = "normalise", "Add normalisation before the layers that stick out."


_ACTION = {
    ExplosionSeverity.CRITICAL: "Stop: cut the learning rate tenfold and clip the global norm.",
    ExplosionSeverity.HIGH: "Lower the learning rate and clip the global norm.",
    ExplosionSeverity.MEDIUM: "Clip the global norm.",
    ExplosionSeverity.LOW: "Watch this layer: it is just above the limit.",
}
_FIND = "Find the step and the operation that made NaN or Inf, going backwards from this layer."
_CUTS = (
    (100.0, ExplosionSeverity.CRITICAL),
    (50.0, ExplosionSeverity.HIGH),
    (10.0, ExplosionSeverity.MEDIUM),
)
_OVERALL = (
    (0.5, 10.0, ExplosionSeverity.CRITICAL),
    (0.3, 5.0, ExplosionSeverity.HIGH),
    (0.1, 2.0, ExplosionSeverity.MEDIUM),
)


class ExplodingLayer(Result):
    """One layer above the limit."""

    name: str
    layer_index: int
    kind: ExplosionKind
    gradient_norm: float | None
    """Of the finite elements."""
    severity: ExplosionSeverity
    ratio_to_others: float | None
    """Over the median norm of the other layers."""
    decades_above_threshold: float | None
    recommended_action: str


class GradientExplosionAnalysis(Result):
    """The result of `detect_gradient_explosion`."""

    exploding_layers: dict[str, ExplodingLayer]
    max_gradient_norm: float | None
    mean_gradient_norm: float | None
    std_gradient_norm: float | None
    explosion_ratio: float | None
    global_norm: float | None
    clip_coefficient: float | None
    """What clipping the global norm at the threshold would multiply every gradient with."""
    overall_severity: ExplosionSeverity
    mitigation_recommendations: tuple[Mitigation, ...]


@overload
def detect_gradient_explosion(
    gradients: Given | Run, threshold: float, *, rules: Literal["gradwatch"] = ...
) -> GradientExplosionAnalysis: ...
@overload
def detect_gradient_explosion(
    gradients: Given | Run, threshold: float, *, rules: Rules | str
) -> Result: ...
def detect_gradient_explosion(
    gradients: Given | Run, threshold: float, *, rules: Rules | str = Rules.GRADWATCH
) -> Result:
    """Layers whose gradient norm is above `threshold`, or not finite.

    Gradients are arrays by name or in a list (None: no gradient), or those of a run, the last
    recorded of each parameter.
    """
    if choice(Rules, rules, "rules") is Rules.ORIGINAL:
        if isinstance(gradients, Run):
            raise GradwatchError(
                "The original's explosion needs the arrays themselves.", Exit.USAGE
            )
        tensors = list(singles(_with_empty(gradients)).values())
        return original.detect_gradient_explosion(tensors, number(threshold, "threshold"))
    limit = number(threshold, "threshold", above=0)
    norms = _of_run(gradients) if isinstance(gradients, Run) else _of_arrays(gradients)
    if not norms.names:
        gone = missing("there are no gradients")
        none = ExplosionSeverity.NONE
        return GradientExplosionAnalysis({}, gone, gone, gone, gone, gone, gone, none, ())
    exploding = _exploding(norms, limit)
    ratio = len(exploding) / len(norms.names)
    clean = norms.values[norms.clean]
    top, mean, std, total = _summary(clean)
    if len(clean) < len(norms.names):
        total = missing("a layer is not finite")
    return GradientExplosionAnalysis(
        exploding_layers=exploding,
        max_gradient_norm=top,
        mean_gradient_norm=mean,
        std_gradient_norm=std,
        explosion_ratio=ratio,
        global_norm=total,
        clip_coefficient=min(1.0, limit / (total + 1e-6)) if isinstance(total, float) else total,
        overall_severity=_overall(exploding, ratio, float(clean.max(initial=0.0)) / limit),
        mitigation_recommendations=_mitigation(exploding, ratio),
    )


# -- norms -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Norms:
    """One entry for each layer that has a gradient."""

    names: list[str]
    indices: NDArray[np.intp]
    """Where the layer stands among those handed in, empty ones included."""
    values: NDArray[np.float64]
    """Of the finite elements; NaN where there is none, infinite where the norm is no number."""
    nan: NDArray[np.bool_]
    clean: NDArray[np.bool_]
    """No element is NaN or infinite."""


def _of_arrays(gradients: Given) -> _Norms:
    arrays = named(_with_empty(gradients))
    records = measure_arrays(list(arrays.values())) if arrays else np.empty(0, MOMENTS)
    present = np.flatnonzero(records["count"])
    names, records = np.array([*arrays], object)[present].tolist(), records[present]
    nan, infinite = records["nan"] > 0, (records["pos_inf"] > 0) | (records["neg_inf"] > 0)
    return _Norms(names, present, records["norm"].astype(np.float64), nan, ~(nan | infinite))


def _with_empty(gradients: Given) -> dict[str, Any]:
    """An empty array for every None, which stands for "no gradient"."""
    given = tensors_by_name(gradients).items()
    return {name: () if item is None else item for name, item in given}


def _of_run(run: Run) -> _Norms:
    columns, rows = last_rows(run, Stat.GRAD_NORM)
    nan, infinite = (
        np.nan_to_num(run.at(stat, rows, columns)) > 0 for stat in (Stat.GRAD_NAN, Stat.GRAD_INF)
    )
    norms = run.at(Stat.GRAD_NORM, rows, columns)
    return _Norms([run.names[at] for at in columns], columns, norms, nan, ~(nan | infinite))


def _summary(norms: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Largest, mean, standard deviation, norm of all together; missing with the reason."""
    if not len(norms) or not np.isfinite(norms).all():
        gone = missing(BEYOND if len(norms) else "no layer is finite")
        return gone, gone, gone, gone
    top = float(norms.max())
    unit = 2.0 ** min(frexp(top)[1], 1000)  # exact, and squares of what is left stay in the range
    parts = norms / unit
    mean, total = float(parts.mean()), float(np.sqrt((parts * parts).sum()))
    std = float(parts.std()) * unit
    return top, mean * unit, std, total * unit if isfinite(total * unit) else missing(BEYOND)


# -- layers ----------------------------------------------------------------------------------------


def _exploding(norms: _Norms, limit: float) -> dict[str, ExplodingLayer]:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratios = norms.values / _median_of_others(norms)
        times = np.fmax(np.where(np.isnan(ratios), 0.0, ratios), norms.values / limit)
    exploding = {}
    for at in np.flatnonzero(~norms.clean | (norms.values > limit)).tolist():
        name, norm, ratio = norms.names[at], float(norms.values[at]), float(ratios[at])
        severity, action = ExplosionSeverity.CRITICAL, _FIND
        if norms.clean[at]:
            severity = next(
                (level for above, level in _CUTS if times[at] > above), ExplosionSeverity.LOW
            )
            action = _ACTION[severity]
        exploding[name] = ExplodingLayer(
            name=name,
            layer_index=int(norms.indices[at]),
            kind=_kind(norms, at),
            gradient_norm=norm if isfinite(norm) else missing(_why_no_norm(norm)),
            severity=severity,
            ratio_to_others=ratio if isfinite(ratio) else missing(_why_no_ratio(norm, ratio)),
            decades_above_threshold=_decades(norm, limit),
            recommended_action=action,
        )
    return exploding


def _median_of_others(norms: _Norms) -> NDArray[np.float64]:
    """For each layer, the median of the other finite norms; NaN where that is not above 0."""
    finite = norms.clean & np.isfinite(norms.values)
    order = np.argsort(np.where(finite, norms.values, np.inf), kind="stable")
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    ordered = norms.values[order][: finite.sum()]
    others = len(ordered) - finite  # how many they are
    medians = np.full(len(order), np.nan)
    some = np.flatnonzero(others > 0)
    # The k-th of the others is the k-th of all, or the one after it from the layer's own place on.
    low, high = (others[some] - 1) // 2, others[some] // 2
    low, high = (k + (finite[some] & (k >= place[some])) for k in (low, high))
    medians[some] = ordered[low] / 2 + ordered[high] / 2
    return np.where(medians > 0, medians, np.nan)


def _decades(norm: float, limit: float) -> float:
    if isfinite(norm) and norm > limit:
        return log10(norm) - log10(limit)
    below = "the finite elements are below the threshold"
    gone: float = missing(below if isfinite(norm) else _why_no_norm(norm))
    return gone


def _why_no_norm(norm: float) -> str:
    return BEYOND if isinf(norm) else "no element is finite"


def _why_no_ratio(norm: float, ratio: float) -> str:
    if isnan(norm):
        return _why_no_norm(norm)
    return BEYOND if isinf(ratio) else "there is no other layer with a gradient"


def _kind(norms: _Norms, at: int) -> ExplosionKind:
    if norms.nan[at]:
        return ExplosionKind.NAN
    return ExplosionKind.LARGE if norms.clean[at] else ExplosionKind.INFINITE


def _overall(
    exploding: Mapping[str, ExplodingLayer], ratio: float, times: float
) -> ExplosionSeverity:
    if not exploding:
        return ExplosionSeverity.NONE
    if any(layer.kind is not ExplosionKind.LARGE for layer in exploding.values()):
        times = inf
    levels = (level for share, above, level in _OVERALL if ratio > share or times > above)
    return next(levels, ExplosionSeverity.LOW)


def _mitigation(exploding: Mapping[str, ExplodingLayer], ratio: float) -> tuple[Mitigation, ...]:
    """Each with its cause; nothing where nothing exploded."""
    if not exploding:
        return ()
    layers = exploding.values()
    wanted = {
        Mitigation.FIND_NON_FINITE: any(i.kind is not ExplosionKind.LARGE for i in layers),
        Mitigation.LOWER_LEARNING_RATE: ratio > 0.3,
        Mitigation.CLIP: any(i.kind is ExplosionKind.LARGE for i in layers),
        Mitigation.NORMALISE: any((i.ratio_to_others or 0.0) > 10.0 for i in layers),
    }
    return tuple(code for code, present in wanted.items() if present)
