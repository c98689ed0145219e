"""Exploding gradients among tensors handed in, by a limit the user gives.

A layer's severity says how far it sticks out, either of the other layers (their median norm) or of
the limit, with the same cut-offs; it does not depend on the order of the layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, log10, sqrt
from statistics import median
from typing import Literal, overload

import numpy as np

from gradwatch.analysis.rules import Rules
from gradwatch.analysis.weights.tensors import Given, Tensor, from_arrays, named
from gradwatch.errors import Exit, GradwatchError
from gradwatch.original import weights as original
from gradwatch.result import Result, missing


class ExplosionSeverity(StrEnum):
    NONE = "None"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class ExplosionKind(StrEnum):
    LARGE = "large"
    INFINITE = "infinite"
    NAN = "nan"


class Mitigation(StrEnum):
    """What to do; the sentence is looked up from the code."""

    FIND_NON_FINITE = "find-non-finite"
    LOWER_LEARNING_RATE = "lower-learning-rate"
    CLIP = "clip"
    NORMALISE = "normalise"

    @property
    def text(self) -> str:
        return _TEXT[self]


_TEXT = {
    Mitigation.FIND_NON_FINITE: "First find the layer and step where NaN or Inf began.",
    Mitigation.LOWER_LEARNING_RATE: "Many layers are above the limit: lower the learning rate.",
    Mitigation.CLIP: "Clip the gradient's global norm.",
    Mitigation.NORMALISE: "Add normalisation before the layers that stick out.",
}
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
    tensors = [tensor for tensor in from_arrays(gradients) if int(tensor.record["count"])]
    if not tensors:
        return _nothing()
    norms = {t.name: float(t.record["norm"]) if t.finite else 0.0 for t in tensors}
    clean = [norms[t.name] for t in tensors if not t.nonfinite]
    exploding = _exploding(tensors, norms, threshold)
    top, ratio = max(clean, default=0.0), len(exploding) / len(tensors)
    mean = sum(clean) / len(clean) if clean else missing("no layer is finite")
    return GradientExplosionAnalysis(
        exploding_layers=exploding,
        max_gradient_norm=top if clean else missing("no layer is finite"),
        mean_gradient_norm=mean,
        std_gradient_norm=(
            sqrt(sum((norm - mean) ** 2 for norm in clean) / len(clean))
            if clean
            else missing("no layer is finite")
        ),
        explosion_ratio=ratio,
        **_global(clean, len(tensors), threshold),
        overall_severity=_overall(exploding, ratio, top / threshold),
        mitigation_recommendations=_mitigation(exploding, ratio),
    )


def _exploding(
    tensors: list[Tensor], norms: Mapping[str, float], threshold: float
) -> dict[str, ExplodingLayer]:
    clean = {t.name: norms[t.name] for t in tensors if not t.nonfinite}
    found = {}
    for index, tensor in enumerate(tensors):
        norm = norms[tensor.name]
        if not tensor.nonfinite and norm <= threshold:
            continue
        others = [value for name, value in clean.items() if name != tensor.name]
        reference = median(others) if others else 0.0
        ratio = norm / reference if reference > 0 else None
        severity = (
            ExplosionSeverity.CRITICAL
            if tensor.nonfinite
            else _severity(max(ratio or 0.0, norm / threshold))
        )
        found[tensor.name] = ExplodingLayer(
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
            recommended_action=_FIND if tensor.nonfinite else _ACTION[severity],
        )
    return found


def _kind(tensor: Tensor) -> ExplosionKind:
    if int(tensor.record["nan"]):
        return ExplosionKind.NAN
    return ExplosionKind.INFINITE if tensor.nonfinite else ExplosionKind.LARGE


def _severity(ratio: float) -> ExplosionSeverity:
    return next((level for above, level in _CUTS if ratio > above), ExplosionSeverity.LOW)


def _global(clean: list[float], layers: int, threshold: float) -> dict[str, float]:
    if len(clean) < layers:
        why = missing("a layer is not finite")
        return {"global_norm": why, "clip_coefficient": why}
    scale = max(clean) or 1.0
    total = scale * sqrt(sum((norm / scale) ** 2 for norm in clean))
    return {"global_norm": total, "clip_coefficient": min(1.0, threshold / (total + 1e-6))}


def _overall(
    exploding: Mapping[str, ExplodingLayer], ratio: float, times: float
) -> ExplosionSeverity:
    if not exploding:
        return ExplosionSeverity.NONE
    if any(layer.kind is not ExplosionKind.LARGE for layer in exploding.values()):
        times = inf
    found = (level for share, above, level in _OVERALL if ratio > share or times > above)
    return next(found, ExplosionSeverity.LOW)


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


def _nothing() -> GradientExplosionAnalysis:
    why = missing("there are no gradients")
    return GradientExplosionAnalysis({}, why, why, why, why, why, why, ExplosionSeverity.NONE, ())
