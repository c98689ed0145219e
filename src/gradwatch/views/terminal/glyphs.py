"""Characters and colours of levels. Every colour has a character that says the same without it."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from gradwatch.text import shortened
from gradwatch.views.model.cells import LEVELS, Code

BLOCKS = " ░▒▓█"
BARS = "▁▂▃▄▅▆▇█"
OTHER = {
    Code.EMPTY: ("·", "dim"),
    Code.ZERO: ("0", "bright_black"),
    Code.NO_GRADIENT: ("–", "bright_black"),
    Code.NONFINITE: ("!", "bold white on red"),
}
MEANINGS = {
    Code.EMPTY: "not measured",
    Code.ZERO: "exactly zero",
    Code.NO_GRADIENT: "no gradient",
    Code.NONFINITE: "NaN or Inf",
}
RAMP = ("#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
"""From low to high: dark to light and blue to yellow, so that colour-blind eyes read it too."""


def cell(code: int) -> tuple[str, str]:
    """Character and style of one byte of a map."""
    for special, drawn in OTHER.items():
        if code == special:
            return drawn
    level = (code - Code.LOWEST) / LEVELS
    block = BLOCKS[min(int(level * len(BLOCKS)), len(BLOCKS) - 1)]
    return block, RAMP[min(int(level * len(RAMP)), len(RAMP) - 1)]


def row(codes: NDArray[np.uint8]) -> Text:
    """One row of a map."""
    text = Text()
    drawn = [cell(int(code)) for code in codes]
    for style, run in groupby(drawn, key=lambda pair: pair[1]):
        text.append("".join(character for character, _ in run), style)
    return text


def squeezed(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """[row, column] in at most `width` columns; of those that fall together the highest byte stays.

    The order of the bytes makes that right: non-finite over everything, a level over a gap.
    """
    count = codes.shape[1]
    if count <= width:
        return codes
    starts = np.unique(np.linspace(0, count, width, endpoint=False).astype(int))
    found: NDArray[np.uint8] = np.maximum.reduceat(codes, starts, axis=1)
    return found


def on_one_axis(
    steps: Sequence[int], values: Sequence[float | None], window: Sequence[int], width: int
) -> list[float | None]:
    """The curve on the steps of `window`, so that lines under one another tell the same time.

    A column shows the highest value in it, one between two points the earlier of them.
    """
    first, last = window
    count = max(1, min(width, last - first + 1))
    columns: list[float | None] = [None] * count
    seen: dict[int, float | None] = {}
    for step, value in zip(steps, values, strict=True):
        column = min((step - first) * count // (last - first + 1), count - 1)
        other = seen.get(column)
        seen[column] = value if other is None or (value is not None and value > other) else other
    held: float | None = None
    for column in range(min(seen, default=0), max(seen, default=-1) + 1):
        held = seen.get(column, held)
        columns[column] = held
    return columns


def sparkline(values: Sequence[float | None], width: int, log: bool) -> str:
    """A curve in one line; gaps stay gaps, and a bucket shows its highest value."""
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.where(numbers > 0, np.log(numbers), np.nan)
    if len(numbers) > width:
        starts = np.unique(np.linspace(0, len(numbers), width, endpoint=False).astype(int))
        numbers = np.fmax.reduceat(numbers, starts)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return ""
    low, span = float(finite.min()), float(finite.max() - finite.min())
    return "".join(
        " " if not np.isfinite(value) else BARS[int((value - low) / span * 7) if span else 0]
        for value in numbers
    )


def label(name: str, width: int) -> str:
    """A name in exactly `width` cells of the terminal, cut in the middle."""
    short = shortened(name or "(model)", width)
    while cell_len(short) > width and len(short) > 1:
        short = shortened(name, len(short) - 1)
    return set_cell_size(short, width)
