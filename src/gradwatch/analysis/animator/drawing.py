"""The animation as text: one row per layer, one column per frame (or per group of frames)."""

import unicodedata
from collections.abc import Sequence
from enum import StrEnum

from gradwatch.analysis.animator.frames import GradientFrame, LayerGradientInfo

GLYPHS = " ░▒▓█"
NOT_FINITE, ABSENT = "!", "·"
TICK = 10


class Scale(StrEnum):
    """What a glyph shows."""

    RUN = "run"
    FRAME = "frame"


def ascii_art(
    frames: Sequence[GradientFrame], names: Sequence[str], scale: Scale, columns: int
) -> str:
    """Every line ends with a newline; a title, the step ticks, a rule, then the layers."""
    if not frames:
        return "(no frames were recorded)\n"
    groups = _groups(frames, columns)
    shown = [printable(name) for name in names]
    width = max(width_of(name) for name in [*shown, "layer"])
    lines = [
        "Gradient flow: steps to the right, layers down; ! is NaN or Inf, · is no gradient.",
        f"{_right('layer', width)}  {_ticks([group[0].step for group in groups])}",
        "─" * (width + 2 + len(groups)),
    ]
    tables = [[{i.name: i for i in frame.layers} for frame in group] for group in groups]
    for name, label in zip(names, shown, strict=True):
        cells = "".join(_cell([t.get(name) for t in table], scale) for table in tables)
        lines.append(f"{_right(label, width)}  {cells}")
    return "\n".join(lines) + "\n"


def _groups(frames: Sequence[GradientFrame], columns: int) -> list[Sequence[GradientFrame]]:
    size = -(-len(frames) // max(columns, 1))
    return [frames[at : at + size] for at in range(0, len(frames), size)]


def _cell(layers: Sequence[LayerGradientInfo | None], scale: Scale) -> str:
    """The strongest of a group of frames; what is not finite is never hidden."""
    present = [layer for layer in layers if layer is not None and _has_gradient(layer)]
    if not present:
        return ABSENT
    if any(layer.is_nonfinite for layer in present):
        return NOT_FINITE
    shades = (i.run_intensity if scale is Scale.RUN else i.flow_intensity for i in present)
    return glyph(max(shade or 0.0 for shade in shades))


def _has_gradient(layer: LayerGradientInfo) -> bool:
    return layer.grad_norm is not None or layer.is_nonfinite


def glyph(intensity: float) -> str:
    """Boundaries at 1/8, 3/8, 5/8, 7/8, each on the darker side."""
    return GLYPHS[min(4, int(4.0 * intensity + 0.5))]


def _ticks(steps: Sequence[int]) -> str:
    """The step number above every tenth column, where it fits."""
    line = ""
    for at in range(0, len(steps), TICK):
        if len(line) <= at:
            line = line.ljust(at) + f"{steps[at]} "
    return line.rstrip()


def printable(name: str) -> str:
    """Control characters never reach a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def width_of(text: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _right(text: str, width: int) -> str:
    return " " * (width - width_of(text)) + text
