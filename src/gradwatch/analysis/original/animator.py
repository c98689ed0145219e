"""The original's animation recorder: frames, CSV, JSON, ASCII and a summary."""

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gradwatch.analysis.original import floats
from gradwatch.analysis.original.levels import GradientHealth
from gradwatch.analysis.result import Result
from gradwatch.files import write_text

COLUMNS = "step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding"
GLYPHS = " ░▒▓█"
ADVICE = {
    GradientHealth.CRITICAL: "Stop and find the cause before training on.",
    GradientHealth.PROBLEMS_DETECTED: "Review the depth of the network and the schedule.",
    GradientHealth.MINOR_ISSUES: "Small problems: keep an eye on them.",
    GradientHealth.HEALTHY: "Nothing to do.",
}


@dataclass(frozen=True)
class LayerGradientInfo(Result):
    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float


@dataclass(frozen=True)
class GradientFrame(Result):
    step: int
    layers: tuple[LayerGradientInfo, ...]


@dataclass(frozen=True)
class GradientFlowSummary(Result):
    total_steps: int
    layers_with_vanishing_grads: tuple[str, ...]
    layers_with_exploding_grads: tuple[str, ...]
    overall_health: GradientHealth
    recommendations: tuple[str, ...]


class OriginalAnimator:
    """`max_frames` 0 keeps all; nothing is checked."""

    def __init__(
        self,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
    ) -> None:
        self.max_frames = max_frames
        self.vanishing_threshold = vanishing_threshold
        self.exploding_threshold = exploding_threshold
        self.frames: deque[GradientFrame] = deque(maxlen=max_frames or None)

    def record_step(self, step: int, gradients: Mapping[str, ArrayLike]) -> None:
        """Layers are sorted by name; intensity is the share of the frame's largest norm."""
        flat = {name: np.asarray(gradients[name], np.float64).ravel() for name in sorted(gradients)}
        norms = {name: _norm(values) for name, values in flat.items()}
        largest = reduce(floats.greatest, norms.values(), 0.0)
        self.frames.append(
            GradientFrame(
                step,
                tuple(self._layer(name, flat[name], norms[name], largest) for name in flat),
            )
        )

    def _layer(
        self, name: str, values: np.ndarray[Any, Any], norm: float, largest: float
    ) -> LayerGradientInfo:
        absolute = np.abs(values)
        mean = _total(absolute) / len(values) if len(values) else 0.0
        top = float(np.fmax.reduce(absolute, initial=0.0))
        share = floats.divide(norm, largest) if largest > 0 else 0.0
        return LayerGradientInfo(
            name=name,
            mean_abs_grad=mean,
            max_abs_grad=top,
            grad_norm=norm,
            is_vanishing=mean < self.vanishing_threshold,
            is_exploding=top > self.exploding_threshold,
            flow_intensity=share if share != share else min(max(share, 0.0), 1.0),
        )

    def to_csv(self) -> str:
        """Names are not quoted."""
        rows = [COLUMNS]
        for frame in self.frames:
            for layer in frame.layers:
                numbers = (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm)
                text = ",".join(map(floats.scientific, numbers))
                flags = f"{layer.is_vanishing:d},{layer.is_exploding:d}"
                rows.append(f"{frame.step},{layer.name},{text},{flags}")
        return "\n".join(rows) + "\n"

    def to_json(self) -> str:
        """Non-finite numbers are lost: null."""
        tree = [_nulled(frame.to_dict()) for frame in self.frames]
        return json.dumps(tree, indent=2, ensure_ascii=False)

    def export_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        return write_text(path, self.to_csv(), overwrite=overwrite)

    def export_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        return write_text(path, self.to_json(), overwrite=overwrite)

    def to_ascii(self) -> str:
        """The width counts bytes, the padding characters, as in the original."""
        if not self.frames:
            return "(no frames)\n"
        names = sorted({layer.name for frame in self.frames for layer in frame.layers})
        shades = [{i.name: i.flow_intensity for i in frame.layers} for frame in self.frames]
        width = max((len(name.encode()) for name in names), default=0)
        ticks = "".join(str(at % 10) for at in range(len(shades)))
        lines = [
            "Gradient flow (steps to the right, layers down)",
            f"{'layer':>{width}}  {ticks}",
            "─" * (width + 2 + len(shades)),
        ]
        for name in names:
            cells = "".join(_glyph(shade.get(name, 0.0)) for shade in shades)
            lines.append(f"{name:>{width}}  {cells}")
        return "\n".join(lines) + "\n"

    def summary(self) -> GradientFlowSummary:
        """Of the frames still held."""
        layers = [layer for frame in self.frames for layer in frame.layers]
        vanishing = sorted({layer.name for layer in layers if layer.is_vanishing})
        exploding = sorted({layer.name for layer in layers if layer.is_exploding})
        flagged = sum(any(i.is_vanishing or i.is_exploding for i in f.layers) for f in self.frames)
        health = _health(vanishing, exploding, flagged / max(1, len(self.frames)))
        return GradientFlowSummary(
            total_steps=(self.frames[-1].step + 1) % 2**64 if self.frames else 0,
            layers_with_vanishing_grads=tuple(vanishing),
            layers_with_exploding_grads=tuple(exploding),
            overall_health=health,
            recommendations=_advice(vanishing, exploding, health),
        )


def _total(values: np.ndarray[Any, Any]) -> float:
    """Left to right; −0 when empty."""
    return float(np.add.accumulate(values)[-1]) if len(values) else -0.0


def _norm(values: np.ndarray[Any, Any]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return floats.root(_total(values * values))


def _nulled(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _nulled(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_nulled(item) for item in tree]
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree


def _glyph(intensity: float) -> str:
    """Half away from zero; NaN becomes the blank."""
    return GLYPHS[min(4, floats.truncated(4.0 * intensity + 0.5))]


def _health(vanishing: Sequence[str], exploding: Sequence[str], ratio: float) -> GradientHealth:
    if exploding and ratio > 0.5:
        return GradientHealth.CRITICAL
    if exploding or ratio > 0.3:
        return GradientHealth.PROBLEMS_DETECTED
    return GradientHealth.MINOR_ISSUES if vanishing or ratio > 0.1 else GradientHealth.HEALTHY


def _advice(
    vanishing: Sequence[str], exploding: Sequence[str], health: GradientHealth
) -> tuple[str, ...]:
    given = []
    if vanishing:
        given += [
            f"Gradients vanish in: {', '.join(vanishing)}. "
            "Try residual paths, normalisation or a larger learning rate.",
            "Look at the initialisation (Xavier, Kaiming).",
        ]
    if exploding:
        given += [
            f"Gradients explode in: {', '.join(exploding)}. Clip their norm.",
            "Try a smaller learning rate or a more forgiving optimizer.",
        ]
    return (*given, ADVICE[health])
