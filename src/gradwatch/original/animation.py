"""The original's gradient flow animation: frames, CSV, JSON, ASCII and a summary."""

import json
import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.files import write_text
from gradwatch.original import arithmetic
from gradwatch.result import Result

GradientHealth = Literal["Healthy", "MinorIssues", "ProblemsDetected", "Critical"]

COLUMNS = "step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding"
GLYPHS = " ░▒▓█"
ADVICE: dict[GradientHealth, str] = {
    "Critical": "Stop and find the cause before training on.",
    "ProblemsDetected": "Review the depth of the network and the schedule.",
    "MinorIssues": "Small problems: keep an eye on them.",
    "Healthy": "Nothing to do.",
}


class LayerGradientInfo(Result):
    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float


class GradientFrame(Result):
    step: int
    layers: tuple[LayerGradientInfo, ...]


class GradientFlowSummary(Result):
    total_steps: int
    layers_with_vanishing_grads: tuple[str, ...]
    layers_with_exploding_grads: tuple[str, ...]
    overall_health: GradientHealth
    recommendations: tuple[str, ...]


class GradientFlowAnimator:
    """The original's animator, with the original's methods; `max_frames` 0 keeps all frames."""

    def __init__(
        self,
        max_frames: int = 0,
        vanishing_threshold: float = 1e-7,
        exploding_threshold: float = 1e3,
    ) -> None:
        self.vanishing_threshold = vanishing_threshold
        self.exploding_threshold = exploding_threshold
        self._frames: deque[GradientFrame] = deque(maxlen=max_frames or None)

    def with_vanishing_threshold(self, threshold: float) -> Self:
        """From now on a layer vanishes whose mean |g| is below this."""
        self.vanishing_threshold = threshold
        return self

    def with_exploding_threshold(self, threshold: float) -> Self:
        """From now on a layer explodes whose largest |g| is above this."""
        self.exploding_threshold = threshold
        return self

    def frames(self) -> list[GradientFrame]:
        """The frames still held, oldest first."""
        return list(self._frames)

    def record_step(self, step: int, gradients: Mapping[str, ArrayLike]) -> None:
        """Layers are sorted by name; intensity is the share of the frame's largest norm."""
        flat = {name: np.asarray(gradients[name], np.float64).ravel() for name in sorted(gradients)}
        norms = {name: _norm(values) for name, values in flat.items()}
        largest = reduce(arithmetic.greatest, norms.values(), 0.0)
        layers = (self._layer(name, flat[name], norms[name], largest) for name in flat)
        self._frames.append(GradientFrame(step, tuple(layers)))

    def _layer(
        self, name: str, values: NDArray[np.float64], norm: float, largest: float
    ) -> LayerGradientInfo:
        sizes = np.abs(values)
        mean = float(arithmetic.array_total(sizes)) / len(values) if len(values) else 0.0
        top = float(np.fmax.reduce(sizes, initial=0.0))
        return LayerGradientInfo(
            name=name,
            mean_abs_grad=mean,
            max_abs_grad=top,
            grad_norm=norm,
            is_vanishing=mean < self.vanishing_threshold,
            is_exploding=top > self.exploding_threshold,
            flow_intensity=norm / largest if largest > 0 else 0.0,
        )

    def export_json(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """A list of the frames; non-finite numbers are lost: null."""
        frames = [
            {"step": frame.step, "layers": [_nulled(layer) for layer in frame.layers]}
            for frame in self._frames
        ]
        text = json.dumps(frames, indent=2, ensure_ascii=False)
        return write_text(path, text, overwrite=overwrite)

    def export_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """A row for each frame and layer; names are not quoted."""
        rows = [COLUMNS]
        for frame in self._frames:
            for layer in frame.layers:
                sizes = map(_scientific, (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm))
                flags = f"{layer.is_vanishing:d},{layer.is_exploding:d}"
                rows.append(f"{frame.step},{layer.name},{','.join(sizes)},{flags}")
        return write_text(path, "\n".join(rows) + "\n", overwrite=overwrite)

    def to_ascii_animation(self) -> str:
        """The width counts bytes, the padding characters, as in the original."""
        if not self._frames:
            return "(no gradient frames)\n"
        names = sorted({layer.name for frame in self._frames for layer in frame.layers})
        shades = [{i.name: i.flow_intensity for i in frame.layers} for frame in self._frames]
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

    def summary_report(self) -> GradientFlowSummary:
        """Of the frames still held."""
        layers = [layer for frame in self._frames for layer in frame.layers]
        vanishing = sorted({layer.name for layer in layers if layer.is_vanishing})
        exploding = sorted({layer.name for layer in layers if layer.is_exploding})
        flagged = sum(any(i.is_vanishing or i.is_exploding for i in f.layers) for f in self._frames)
        health = _health(vanishing, exploding, flagged / max(1, len(self._frames)))
        return GradientFlowSummary(
            total_steps=(self._frames[-1].step + 1) % 2**64 if self._frames else 0,
            layers_with_vanishing_grads=tuple(vanishing),
            layers_with_exploding_grads=tuple(exploding),
            overall_health=health,
            recommendations=_advice(vanishing, exploding, health),
        )


@np.errstate(over="ignore", invalid="ignore")
def _norm(values: NDArray[np.float64]) -> float:
    return math.sqrt(arithmetic.array_total(values * values))


def _nulled(layer: LayerGradientInfo) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(layer).items()
    }


def _scientific(value: float) -> str:
    """Eight decimals and the shortest exponent: `3.50000000e-1`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    digits, exponent = f"{value:.8e}".split("e")
    return f"{digits}e{int(exponent)}"


def _glyph(intensity: float) -> str:
    """Half away from zero; NaN becomes the blank."""
    return GLYPHS[min(4, arithmetic.truncated(4.0 * intensity + 0.5))]


def _health(vanishing: Sequence[str], exploding: Sequence[str], ratio: float) -> GradientHealth:
    if exploding and ratio > 0.5:
        return "Critical"
    if exploding or ratio > 0.3:
        return "ProblemsDetected"
    return "MinorIssues" if vanishing or ratio > 0.1 else "Healthy"


def _advice(
    vanishing: Sequence[str], exploding: Sequence[str], health: GradientHealth
) -> tuple[str, ...]:
    advice = []
    if vanishing:
        advice += [
            f"Gradients vanish in: {', '.join(vanishing)}. "
            "Try residual paths, normalisation or a larger learning rate.",
            "Look at the initialisation (Xavier, Kaiming).",
        ]
    if exploding:
        advice += [
            f"Gradients explode in: {', '.join(exploding)}. Clip their norm.",
            "Try a smaller learning rate or a more forgiving optimizer.",
        ]
    return (*advice, ADVICE[health])
