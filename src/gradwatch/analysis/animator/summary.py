"""What the recorded frames say together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gradwatch.analysis.animator.frames import GradientFrame, LayerGradientInfo, Limits
from gradwatch.result import Result, missing


class GradientHealth(StrEnum):
    UNKNOWN = "Unknown"
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class FlowAdvice(StrEnum):
    """What to try; the sentence is looked up from the code."""

    FIND_NON_FINITE = "find-non-finite"
    CLIP = "clip"
    LOWER_LEARNING_RATE = "lower-learning-rate"
    INITIALISATION = "initialisation"
    RESIDUAL_OR_NORMALISATION = "residual-or-normalisation"
    CHECK_PRECISION = "check-precision"

    @property
    def text(self) -> str:
        return _TEXT[self]


_TEXT = {
    FlowAdvice.FIND_NON_FINITE: "First find the layer and step where NaN or Inf began.",
    FlowAdvice.CLIP: "Clip the gradient's global norm.",
    FlowAdvice.LOWER_LEARNING_RATE: "Lower the learning rate, or warm it up.",
    FlowAdvice.INITIALISATION: "Check the initialisation against the activation (Xavier, Kaiming).",
    FlowAdvice.RESIDUAL_OR_NORMALISATION: "Add residual paths or normalisation layers.",
    FlowAdvice.CHECK_PRECISION: "In half precision: check the loss scale.",
}


@dataclass(frozen=True)
class GradientFlowSummary(Result):
    total_steps: int
    """Frames recorded, those that have left the window included."""
    frames_retained: int
    first_step: int | None
    last_step: int | None
    layers_with_vanishing_grads: tuple[str, ...]
    layers_with_exploding_grads: tuple[str, ...]
    layers_with_nonfinite_grads: tuple[str, ...]
    overall_health: GradientHealth
    recommendations: tuple[FlowAdvice, ...]
    vanishing_threshold: float
    exploding_threshold: float


@dataclass(frozen=True)
class Recording(Result):
    """What `export_json` writes."""

    format: int
    frames: tuple[GradientFrame, ...]
    summary: GradientFlowSummary


def summarise(
    frames: Sequence[GradientFrame], order: Sequence[str], recorded: int, limits: Limits
) -> GradientFlowSummary:
    """Layers are listed if flagged in any retained frame; health looks at the last quarter."""
    everything = [layer for frame in frames for layer in frame.layers]
    vanishing = _named(order, (layer for layer in everything if layer.is_vanishing))
    exploding = _named(order, (layer for layer in everything if layer.is_exploding))
    nonfinite = _named(order, (layer for layer in everything if layer.is_nonfinite))
    health = _health(frames, bool(vanishing or exploding), bool(nonfinite))
    return GradientFlowSummary(
        total_steps=recorded,
        frames_retained=len(frames),
        first_step=frames[0].step if frames else missing("no frames were recorded"),
        last_step=frames[-1].step if frames else missing("no frames were recorded"),
        layers_with_vanishing_grads=vanishing,
        layers_with_exploding_grads=exploding,
        layers_with_nonfinite_grads=nonfinite,
        overall_health=health,
        recommendations=_advice(bool(vanishing), bool(exploding), bool(nonfinite)),
        vanishing_threshold=limits.vanishing_threshold,
        exploding_threshold=limits.exploding_threshold,
    )


def _named(order: Sequence[str], layers: Iterable[LayerGradientInfo]) -> tuple[str, ...]:
    flagged = {layer.name for layer in layers}
    return tuple(name for name in order if name in flagged)


def _health(frames: Sequence[GradientFrame], flagged: bool, nonfinite: bool) -> GradientHealth:
    """NaN is never healthy; an old spike is a minor issue; a dead majority is critical."""
    judged = [layer for frame in frames for layer in frame.layers if layer.is_vanishing is not None]
    if not judged and not nonfinite:
        return GradientHealth.UNKNOWN
    recent = frames[-max(1, len(frames) // 4) :]
    rows = [layer for frame in recent for layer in frame.layers]
    seen = Counter(row.name for row in rows)
    vanishing = _persistent(seen, Counter(row.name for row in rows if row.is_vanishing))
    exploding = _persistent(seen, Counter(row.name for row in rows if row.is_exploding))
    if nonfinite or exploding or len(vanishing) * 2 > len(seen):
        return GradientHealth.CRITICAL
    if vanishing or any(row.is_exploding for row in rows):
        return GradientHealth.PROBLEMS_DETECTED
    return GradientHealth.MINOR_ISSUES if flagged else GradientHealth.HEALTHY


def _persistent(seen: Counter[str], flagged: Counter[str]) -> set[str]:
    """Layers flagged in more than half of their recent frames."""
    return {name for name, count in seen.items() if flagged[name] * 2 > count}


def _advice(vanishing: bool, exploding: bool, nonfinite: bool) -> tuple[FlowAdvice, ...]:
    wanted = {
        FlowAdvice.FIND_NON_FINITE: nonfinite,
        FlowAdvice.CLIP: exploding,
        FlowAdvice.LOWER_LEARNING_RATE: exploding,
        FlowAdvice.INITIALISATION: vanishing,
        FlowAdvice.RESIDUAL_OR_NORMALISATION: vanishing,
        FlowAdvice.CHECK_PRECISION: vanishing,
    }
    return tuple(code for code, present in wanted.items() if present)
