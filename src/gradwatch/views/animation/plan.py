"""Where things stand in the picture: ranks run like lines of text, so that deep networks fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 960
LEFT, TOP = 24, 94
LOSS_HEIGHT = 110
FOOT = 34
MOST_HEIGHT = 2160


@dataclass(frozen=True, slots=True)
class Box:
    """A node's rectangle and the line it stands in."""

    x: int
    y: int
    width: int
    height: int
    line: int


@dataclass(frozen=True)
class Plan:
    """The picture's size and the place of every part; sizes are multiples of 16 (for video)."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    loss: tuple[int, int, int, int]
    """Left, top, right, bottom of the curve under the network."""


def plan(flow: dict[str, Any], with_loss: bool) -> Plan:
    """Wrap the ranks into as many lines as they need; many nodes make smaller boxes."""
    nodes = flow["nodes"]
    ranks = 1 + max((node["rank"] for node in nodes), default=0)
    box_width, box_height, gap = (112, 40, 26) if ranks <= 32 else (88, 34, 20)
    per_line = max(1, min(ranks, (WIDTH - 2 * LEFT + gap) // (box_width + gap)))
    if per_line > 1 and ranks > per_line:  # full lines fill the picture
        gap = (WIDTH - 2 * LEFT - 12 - per_line * box_width) // (per_line - 1)
    lanes = [1] * -(-ranks // per_line)
    for node in nodes:
        line = node["rank"] // per_line
        lanes[line] = max(lanes[line], node["lane"] + 1)
    tops = [TOP]
    for count in lanes:
        tops.append(tops[-1] + count * (box_height + 12) + 26)
    boxes = tuple(
        Box(
            LEFT + node["rank"] % per_line * (box_width + gap),
            tops[node["rank"] // per_line] + node["lane"] * (box_height + 12),
            box_width,
            box_height,
            node["rank"] // per_line,
        )
        for node in nodes
    )
    bottom = tops[-1]
    loss = (LEFT + 44, bottom + 8, WIDTH - LEFT, bottom + 8 + LOSS_HEIGHT)
    height = (loss[3] if with_loss else bottom) + FOOT
    return Plan(WIDTH, min(-(-height // 16) * 16, MOST_HEIGHT), boxes, loss)


def way(boxes: Sequence[Box], source: int, target: int, skips: bool) -> list[tuple[int, int]]:
    """The corners of an edge: straight on, over what it skips, or round to the next line."""
    a, b = boxes[source], boxes[target]
    start = (a.x + a.width, a.y + a.height // 2)
    end = (b.x, b.y + b.height // 2)
    if a.line != b.line:
        middle = b.y - 14
        return [
            start,
            (start[0] + 9, start[1]),
            (start[0] + 9, middle),
            (end[0] - 10, middle),
            (end[0] - 10, end[1]),
            end,
        ]
    if skips:
        top = min(a.y, b.y) - 13
        first, last = a.x + a.width * 3 // 4, b.x + b.width // 4
        return [(first, a.y), (first + 8, top), (last - 8, top), (last, b.y)]
    middle = (start[0] + end[0]) // 2
    return [start, (middle, start[1]), (middle, end[1]), end]
