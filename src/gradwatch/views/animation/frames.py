"""What the frames of a moving picture show: the bytes, flows and marks of every node; as text.

Drawing them is another matter (`picture.py`), which needs Pillow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.finding import Severity
from gradwatch.text import number, plain, shortened
from gradwatch.views.model import ViewModel
from gradwatch.views.model.heat import LEVELS, Code, LevelScale, codes_of, row_of
from gradwatch.views.model.titles import GRAD_RMS

BAR = 40
WORDS: dict[int, str] = {
    Code.NONFINITE: "nan/inf",
    Code.NO_GRADIENT: "no gradient",
    Code.ZERO: "0",
}
"""The label of a node whose byte is no level."""


class Mark(StrEnum):
    """Signs over a node; each has a shape of its own."""

    NONFINITE = "non-finite"
    EXPLODING = "exploding"
    VANISHING = "vanishing"
    DEAD = "dead"


_BY_CHECK = {
    "nonfinite": Mark.NONFINITE,
    "exploding-gradient": Mark.EXPLODING,
    "vanishing-gradient": Mark.VANISHING,
    "dead-units": Mark.DEAD,
    "no-gradient": Mark.DEAD,
}


@dataclass(frozen=True, slots=True)
class FlowFrame:
    """What one frame shows: the gradient of every node, the flow through every edge."""

    step: int
    """The first one; a frame shows the highest gradients up to `last`."""
    last: int
    codes: tuple[int, ...]
    flows: tuple[float, ...]
    """0 … 1 for every edge."""
    marks: tuple[frozenset[Mark], ...]

    @property
    def when(self) -> str:
        """The steps it shows, in words."""
        return f"step {self.step}" if self.step == self.last else f"steps {self.step}–{self.last}"


@dataclass(frozen=True)
class FlowFrames:
    """All frames of a run and the scale their bytes are on."""

    frames: tuple[FlowFrame, ...]
    scale: LevelScale
    title: str


def flow_frames(model: ViewModel) -> FlowFrames:
    """A frame for each column of the gradient map; a node shows its highest layer."""
    codes, scale = codes_of(model.heat, GRAD_RMS)
    gradients = model.heat["maps"][GRAD_RMS]
    nodes, edges = model.flow["nodes"], model.flow["edges"]
    rows = [
        [row for i in node["layers"] if (row := row_of(gradients, model.layers[i])) is not None]
        for node in nodes
    ]
    table = np.stack([codes[r].max(axis=0) if r else np.zeros(codes.shape[1]) for r in rows])
    intervals = _intervals(model)
    frames = []
    for column, at in enumerate(gradients["columns"]):
        span = model.heat["first"][at], model.heat["last"][at]
        now = table[:, column].astype(int)
        marks = tuple(_marks(intervals[i], span, int(now[i])) for i in range(len(nodes)))
        frames.append(FlowFrame(*span, tuple(now.tolist()), _flows(now, edges), marks))
    return FlowFrames(tuple(frames), scale, gradients["title"])


def level(code: int) -> float | None:
    """0 … 1, or None for a byte that is no level."""
    return (code - Code.LOWEST) / LEVELS if Code.LOWEST <= code <= Code.HIGHEST else None


def words_of(code: int, scale: LevelScale) -> str:
    """The gradient a byte stands for, in a few characters."""
    at = level(code)
    if at is None:
        return WORDS.get(code, "")
    return number(float(scale.low * (scale.high / scale.low) ** at))


def _flows(codes: NDArray[np.int64], edges: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The lesser end of each edge; a node without weights passes on what comes back to it."""
    passed = codes.tolist()
    for source, target in sorted(edges, key=lambda edge: -edge[0]):
        if codes[source] == Code.EMPTY and source < target:
            passed[source] = max(passed[source], passed[target])
    out = []
    for source, target in edges:
        ends = [level(passed[source]), level(passed[target])]
        out.append(min((end for end in ends if end is not None), default=0.0))
    return tuple(out)


def _intervals(model: ViewModel) -> list[list[tuple[Mark, int, int]]]:
    """Per node: marks with the steps they hold, from findings above an information."""
    by_layer: dict[str, list[tuple[Mark, int, int]]] = {}
    for finding in (item for root in model.findings for item in (root, *root["consequences"])):
        mark = _BY_CHECK.get(finding["check"])
        if mark is not None and finding["severity"] != Severity.INFO.word:
            interval = mark, finding["first_step"], finding["last_step"]
            for name in finding["layers"]:
                by_layer.setdefault(name, []).append(interval)
    return [
        [item for i in node["layers"] for item in by_layer.get(model.layers[i]["name"], ())]
        for node in model.flow["nodes"]
    ]


def _marks(
    intervals: Sequence[tuple[Mark, int, int]], span: tuple[int, int], code: int
) -> frozenset[Mark]:
    marks = {mark for mark, first, last in intervals if first <= span[1] and span[0] <= last}
    if code == Code.NONFINITE:
        marks.add(Mark.NONFINITE)
    return frozenset(marks)


def as_text(model: ViewModel, frames: FlowFrames) -> Iterator[str]:
    """Heading, then each frame as a bar per node."""
    low, high = number(frames.scale.low), number(frames.scale.high)
    yield f"{plain(model.run['name'])}: {model.health['state']}, {model.health['line']}\n"
    yield f"{frames.title}, log scale: shortest bar {low}, full bar {high}\n"
    for frame in frames.frames:
        yield f"\n=== {frame.when} ===\n"
        for node, code, marks in zip(model.flow["nodes"], frame.codes, frame.marks, strict=True):
            at = level(code)
            full = 0 if at is None else max(1, round(at * BAR))  # the lowest is there; zero is not
            bar = "!" * BAR if code == Code.NONFINITE else "█" * full
            name, words = shortened(node["name"], 24), words_of(code, frames.scale)
            line = f"{name:<24} |{bar:<{BAR}}| {words:<9} {', '.join(sorted(marks))}"
            yield line.rstrip() + "\n"
