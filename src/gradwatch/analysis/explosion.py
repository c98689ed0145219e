"""Exploding gradients among tensors handed in, by a limit the user gives.

A layer's severity says how far it sticks out, either of the other layers (their median norm) or of
the limit, with the same cut-offs; it does not depend on the order of the layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, log10, sqrt
from typing import Literal, overload

import numpy as np

from gradwatch.analysis import Rules
from gradwatch.analysis.elements import Given, MeasuredTensor, from_arrays, named
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import weights as original
from gradwatch.result import AdviceCode, Result, missing
from gradwatch.stats.medians import median


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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
    gradients: Given, threshold: float, *, rules: Literal["gradwatch"] = ...
) -> GradientExplosionAnalysis: ...
@overload
def detect_gradient_explosion(
    gradients: Given, threshold: float, *, rules: Rules | str
) -> Result: ...
def detect_gradient_explosion(
    gradients: Given, threshold: float, *, rules: Rules | str = Rules.GRADWATCH
) -> Result:
    """Layers whose gradient norm is above `threshold`, or not finite."""
    if Rules(rules) is Rules.ORIGINAL:
        singles = [np.asarray(array, np.float32) for array in named(gradients).values()]
        return original.detect_gradient_explosion(singles, threshold)
    if not (isfinite(threshold) and threshold > 0):
        raise GradwatchError(
            f"Expected a finite threshold above 0, got {threshold}. Give the largest norm that is "
            "still healthy.",
            Exit.USAGE,
        )
    tensors = [tensor for tensor in from_arrays(gradients) if tensor.count]
    if not tensors:
        gone = missing("there are no gradients")
        none = ExplosionSeverity.NONE
        return GradientExplosionAnalysis({}, gone, gone, gone, gone, gone, gone, none, ())
    norms = [float(t.record["norm"]) if t.finite else 0.0 for t in tensors]
    clean = [norm for norm, tensor in zip(norms, tensors, strict=True) if not tensor.nonfinite]
    exploding = _exploding(tensors, norms, threshold)
    ratio = len(exploding) / len(tensors)
    top = mean = std = missing("no layer is finite")
    if clean:
        top, mean = max(clean), sum(clean) / len(clean)
        std = sqrt(sum((norm - mean) ** 2 for norm in clean) / len(clean))
    total = clip = missing("a layer is not finite")
    if len(clean) == len(tensors):
        scale = top or 1.0  # squares stay in the range
        total = scale * sqrt(sum((norm / scale) ** 2 for norm in clean))
        clip = min(1.0, threshold / (total + 1e-6))
    return GradientExplosionAnalysis(
        exploding_layers=exploding,
        max_gradient_norm=top,
        mean_gradient_norm=mean,
        std_gradient_norm=std,
        explosion_ratio=ratio,
        global_norm=total,
        clip_coefficient=clip,
        overall_severity=_overall(exploding, ratio, max(clean, default=0.0) / threshold),
        mitigation_recommendations=_mitigation(exploding, ratio),
    )


def _exploding(
    tensors: list[MeasuredTensor], norms: list[float], threshold: float
) -> dict[str, ExplodingLayer]:
    clean = {i: norms[i] for i, tensor in enumerate(tensors) if not tensor.nonfinite}
    exploding = {}
    for index, (tensor, norm) in enumerate(zip(tensors, norms, strict=True)):
        if not tensor.nonfinite and norm <= threshold:
            continue
        others = [value for i, value in clean.items() if i != index]
        usual = median(np.array(others))
        ratio = norm / usual if usual > 0 else None
        severity, action = ExplosionSeverity.CRITICAL, _FIND
        if not tensor.nonfinite:
            times = max(ratio or 0.0, norm / threshold)
            severity = next(
                (level for above, level in _CUTS if times > above), ExplosionSeverity.LOW
            )
            action = _ACTION[severity]
        exploding[tensor.name] = ExplodingLayer(
            name=tensor.name,
            layer_index=index,
            kind=_kind(tensor),
            gradient_norm=norm if tensor.finite else missing("no element is finite"),
            severity=severity,
            ratio_to_others=missing("there is no other layer with a gradient")
            if ratio is None
            else ratio,
            decades_above_threshold=log10(norm / threshold)
            if norm > threshold
            else missing("the finite elements are below the threshold"),
            recommended_action=action,
        )
    return exploding


def _kind(tensor: MeasuredTensor) -> ExplosionKind:
    if int(tensor.record["nan"]):
        return ExplosionKind.NAN
    return ExplosionKind.INFINITE if tensor.nonfinite else ExplosionKind.LARGE


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
