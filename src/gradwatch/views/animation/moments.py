"""What the flow network says at each moment: bytes of nodes, widths of edges, marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.views.model.cells import LEVELS, Code, Scale
from gradwatch.views.model.heat import codes_of, row_of
from gradwatch.views.model.titles import GRAD_RMS


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
class Moment:
    """One frame's content."""

    step: int
    codes: tuple[int, ...]
    flows: tuple[float, ...]
    """0 … 1 for every edge."""
    marks: tuple[frozenset[Mark], ...]


@dataclass(frozen=True)
class Film:
    """All moments of a run and the scale their bytes are on."""

    moments: tuple[Moment, ...]
    scale: Scale
    title: str


def film(model: dict[str, Any]) -> Film:
    """The moments of the gradient map, one per column; a node shows its highest layer."""
    codes, scale = codes_of(model, GRAD_RMS)
    found = model["heat"]["maps"][GRAD_RMS]
    nodes, edges = model["flow"]["nodes"], model["flow"]["edges"]
    rows = [
        [row for layer in node["layers"] if (row := row_of(model, GRAD_RMS, layer)) is not None]
        for node in nodes
    ]
    table = np.stack([codes[r].max(axis=0) if r else np.zeros(codes.shape[1]) for r in rows])
    intervals = _intervals(model)
    moments = []
    for column, at in enumerate(found["columns"]):
        step = model["heat"]["first"][at]
        now = table[:, column].astype(int)
        marks = tuple(_marks(intervals[i], step, int(now[i])) for i in range(len(nodes)))
        moments.append(Moment(step, tuple(now.tolist()), _flows(now, edges), marks))
    return Film(tuple(moments), scale, found["title"])


def level(code: int) -> float | None:
    """0 … 1, or None for a byte that is no level."""
    return (code - Code.LOWEST) / LEVELS if Code.LOWEST <= code <= Code.HIGHEST else None


def _flows(codes: NDArray[np.int64], edges: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """The lesser end of each edge; a node without weights passes on what comes back to it."""
    passed = codes.tolist()
    for source, target in sorted(edges, key=lambda edge: -edge[0]):
        if codes[source] == Code.EMPTY and source < target:
            passed[source] = max(passed[source], passed[target])
    out = []
    for source, target in edges:
        ends = [found for end in (source, target) if (found := level(passed[end])) is not None]
        out.append(min(ends, default=0.0))
    return tuple(out)


def _intervals(model: dict[str, Any]) -> list[list[tuple[Mark, int, int]]]:
    """Per node: marks with the steps they hold, from the findings."""
    by_layer: dict[str, list[tuple[Mark, int, int]]] = {}
    for finding in model["findings"]:
        mark = _BY_CHECK.get(finding["check"])
        for name in finding["layers"] if mark else ():
            assert mark is not None
            by_layer.setdefault(name, []).append(
                (mark, finding["first_step"], finding["last_step"])
            )
    return [
        [item for i in node["layers"] for item in by_layer.get(model["layers"][i]["name"], ())]
        for node in model["flow"]["nodes"]
    ]


def _marks(intervals: Sequence[tuple[Mark, int, int]], step: int, code: int) -> frozenset[Mark]:
    found = {mark for mark, first, last in intervals if first <= step <= last}
    if code == Code.NONFINITE:
        found.add(Mark.NONFINITE)
    return frozenset(found)
