"""Gradient explosion over a list of 32-bit tensors, in 32 bits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.original.levels import Level
from gradwatch.analysis.original.singles import divided, moments, norm
from gradwatch.analysis.result import Result

ACTIONS = (
    (100.0, "Urgent: cut the learning rate tenfold and clip gradients."),
    (10.0, "Lower the learning rate and clip gradients."),
    (5.0, "Consider clipping or a lower learning rate."),
)
KEEP_WATCHING = "Keep watching these gradients."
MANY = ("Many layers explode.", "Cut the learning rate strongly.")
EXTREME = ("Gradients are extremely large.", "Clip gradients below 1.0.")
ALWAYS = ("Keep watching gradient norms.", "Consider normalisation layers.")


@dataclass(frozen=True)
class ExplodingLayer(Result):
    layer_index: int
    gradient_norm: float
    severity: Level
    recommended_action: str


@dataclass(frozen=True)
class GradientExplosionAnalysis(Result):
    exploding_layers: tuple[ExplodingLayer, ...]
    max_gradient_norm: float
    mean_gradient_norm: float
    std_gradient_norm: float
    explosion_ratio: float
    overall_severity: Level
    mitigation_recommendations: tuple[str, ...]


@np.errstate(all="ignore")
def detect_gradient_explosion(
    gradients: Sequence[NDArray[np.float32]], threshold: float
) -> GradientExplosionAnalysis:
    """Severity of a layer looks only at the layers before it, as the original does."""
    limit = np.float32(threshold)
    norms: list[np.float32] = []
    exploding = []
    largest = np.float32(0.0)
    for index, gradient in enumerate(gradients):
        length = norm(gradient)
        norms.append(length)
        largest = np.fmax(largest, length) + np.float32(0.0)  # +0 wins over −0
        if length > limit:
            severity = _severity(length, norms)
            exploding.append(ExplodingLayer(index, float(length), severity, _action(length)))
    mean, std = moments(np.array(norms, np.float32))
    ratio = divided(np.float32(len(exploding)), np.float32(len(norms)))
    return GradientExplosionAnalysis(
        exploding_layers=tuple(exploding),
        max_gradient_norm=float(largest),
        mean_gradient_norm=float(mean),
        std_gradient_norm=float(std),
        explosion_ratio=float(ratio),
        overall_severity=_overall(ratio, largest, limit),
        mitigation_recommendations=_mitigation(ratio, largest),
    )


def _severity(length: np.float32, seen: list[np.float32]) -> Level:
    mean, _ = moments(np.array(seen, np.float32))
    ratio = divided(length, mean + np.float32(1e-8))
    if ratio > 100:
        return Level.CRITICAL
    if ratio > 50:
        return Level.HIGH
    return Level.MEDIUM if ratio > 10 else Level.LOW


def _action(length: np.float32) -> str:
    return next((text for above, text in ACTIONS if length > above), KEEP_WATCHING)


def _overall(ratio: np.float32, largest: np.float32, limit: np.float32) -> Level:
    levels = (
        (Level.CRITICAL, np.float32(0.5), np.float32(10)),
        (Level.HIGH, np.float32(0.3), np.float32(5)),
        (Level.MEDIUM, np.float32(0.1), np.float32(2)),
    )
    for level, share, times in levels:
        if ratio > share or largest > limit * times:
            return level
    return Level.LOW


def _mitigation(ratio: np.float32, largest: np.float32) -> tuple[str, ...]:
    many = MANY if ratio > np.float32(0.3) else ()
    extreme = EXTREME if largest > 100 else ()
    return (*many, *extreme, *ALWAYS)
