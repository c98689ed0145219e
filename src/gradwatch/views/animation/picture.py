"""One frame as an image: the network, its legend, the loss with a moving cursor.

Ranks of nodes run like lines of text, so that deep networks fit. GIFs get a fixed palette and a
table from colours to it, which is much faster than quantising every frame.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gradwatch.text import named, number, plain, shortened
from gradwatch.views.animation.frames import (
    FlowFrame,
    FlowFrames,
    Mark,
    level,
    words_of,
)
from gradwatch.views.colours import BAD, ZERO, Colour, Scheme, colour, ink_on, ramp
from gradwatch.views.model import ViewModel
from gradwatch.views.model.heat import Code, LevelScale

WIDTH = 960
LEFT, TOP = 24, 94
LOSS_HEIGHT = 110
FOOT = 34
MOST_HEIGHT = 2160
BITS = 5
"""Of each colour channel, in the table from colours to a palette."""

PAPER: Colour = (16, 21, 27)
INK: Colour = (232, 237, 242)
SOFT: Colour = (150, 162, 174)
EDGE: Colour = (93, 107, 121)
SKIP: Colour = (88, 140, 160)
FAR: Colour = (58, 84, 98)
GRID: Colour = (42, 52, 64)
NO_WEIGHTS: Colour = (38, 48, 59)
NO_GRADIENT: Colour = (128, 128, 128)
LINE: Colour = (200, 210, 220)


# -- places ----------------------------------------------------------------------------------------


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


def _corners(boxes: Sequence[Box], source: int, target: int, skips: bool) -> list[tuple[int, int]]:
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


# -- frames ----------------------------------------------------------------------------------------


class Painter:
    """Draws the frames of one run; what never moves is drawn once."""

    def __init__(self, model: ViewModel, frames: FlowFrames, scheme: Scheme) -> None:
        self.model = model
        self.frames = frames
        self.scheme = scheme
        self.loss = next((curve for curve in model.scalars if curve["name"] == "loss"), None)
        self.plan = plan(model.flow, self.loss is not None)
        self.still = self._still()

    def draw(self, frame: FlowFrame) -> Image.Image:
        """One frame, in colours of the screen."""
        image = self.still.copy()
        draw = ImageDraw.Draw(image)
        draw.text((LEFT, 44), frame.when, INK, _font(20))
        self._edges(draw, frame)
        nodes = zip(self.model.flow["nodes"], self.plan.boxes, strict=True)
        for index, (node, box) in enumerate(nodes):
            self._node(draw, box, node, frame.codes[index], frame.marks[index])
        if self.loss is not None:
            self._cursor(draw, frame.step)
        return image

    def _still(self) -> Image.Image:
        image = Image.new("RGB", (self.plan.width, self.plan.height), PAPER)
        draw = ImageDraw.Draw(image)
        draw.text((LEFT, 14), shortened(self.model.run["name"], 30), INK, _font(18))
        draw.text((LEFT + 330, 18), _headline(self.model), SOFT, _font(14))
        _legend(draw, self.frames, self.scheme)
        if self.loss is not None:
            _curve(draw, self.loss, self.plan, self.model.window)
        return image

    def _edges(self, draw: ImageDraw.ImageDraw, frame: FlowFrame) -> None:
        nodes = self.model.flow["nodes"]
        for (source, target), flow in zip(self.model.flow["edges"], frame.flows, strict=True):
            skips = nodes[target]["rank"] - nodes[source]["rank"] > 1
            points = _corners(self.plan.boxes, source, target, skips)
            if skips and self.plan.boxes[source].line != self.plan.boxes[target].line:
                draw.line(points, FAR, 1)  # there are many of these, and they cross everything
            else:
                draw.line(points, SKIP if skips else EDGE, max(1, round(7 * flow)), joint="curve")

    def _node(
        self,
        draw: ImageDraw.ImageDraw,
        box: Box,
        node: dict[str, Any],
        code: int,
        marks: frozenset[Mark],
    ) -> None:
        fill, ink, text = _look(code, self.frames.scale, self.scheme)
        corners = (box.x, box.y, box.x + box.width, box.y + box.height)
        outline = BAD[self.scheme] if marks else EDGE
        draw.rounded_rectangle(corners, 6, fill, outline, 3 if marks else 1)
        for y, words in ((4, node["name"]), (box.height - 17, text or node["kind"])):
            draw.text((box.x + 6, box.y + y), _fitted(words, box.width - 10), ink, _font(12))
        for place, mark in enumerate(sorted(marks)):
            _sign(draw, mark, box.x + box.width - 13 - 16 * place, box.y + box.height - 11, ink)

    def _cursor(self, draw: ImageDraw.ImageDraw, step: int) -> None:
        assert self.loss is not None
        left, top, right, bottom = self.plan.loss
        first, last = self.model.window
        x = left + (step - first) / max(last - first, 1) * (right - left)
        draw.line([(x, top), (x, bottom)], INK, 2)
        gaps = sorted(b - a for a, b in pairwise(self.loss["x"]))
        near = step - 2 * (gaps[len(gaps) // 2] if gaps else 1)
        pairs = zip(self.loss["x"], self.loss["last"], strict=True)
        past = [value for at, value in pairs if near < at <= step]
        text = f"loss {number(past[-1])}" if past else "no finite loss"
        draw.text((right - 110, top + 3), text, INK, _font(14))


def _headline(model: ViewModel) -> str:
    """What is wrong first, or that nothing is."""
    if model.health["state"] != "sick":
        return f"{model.health['state']}: {model.health['line']}"[:88]
    worst = model.findings[0]
    where = f" in {shortened(named(worst['layers'][0]), 24)}" if worst["layers"] else ""
    return f"sick: {plain(worst['check'])}{where}, since step {worst['first_step']}"


def _look(code: int, scale: LevelScale, scheme: Scheme) -> tuple[Colour, Colour, str]:
    """Fill, ink and the words of a byte."""
    at = level(code)
    words = words_of(code, scale)
    if code == Code.NO_GRADIENT:
        return NO_GRADIENT, (0, 0, 0), words
    if code == Code.EMPTY:
        return NO_WEIGHTS, INK, words
    fill = BAD[scheme] if code == Code.NONFINITE else ZERO if at is None else colour(scheme, at)
    return fill, ink_on(fill), words


def _legend(draw: ImageDraw.ImageDraw, frames: FlowFrames, scheme: Scheme) -> None:
    """The ramp with its ends, and a sample of each mark."""
    x, y = LEFT + 292, 50
    low = f"{frames.title} {number(frames.scale.low)}"
    draw.text((x - 8 - draw.textlength(low, _font(13)), y), low, SOFT, _font(13))
    for index in range(160):
        draw.line([(x + index, y + 2), (x + index, y + 13)], colour(scheme, index / 159))
    draw.text((x + 168, y), f"{number(frames.scale.high)} (log)", SOFT, _font(13))
    x += 256
    for mark in Mark:
        _sign(draw, mark, x, y + 8, INK)
        draw.text((x + 11, y), str(mark), SOFT, _font(13))
        x += 86 if mark is not Mark.DEAD else 0


def _curve(
    draw: ImageDraw.ImageDraw, loss: dict[str, Any], plan: Plan, window: Sequence[int]
) -> None:
    left, top, right, bottom = plan.loss
    draw.rectangle((left, top, right, bottom), outline=GRID)
    values = [(s, v) for s, v in zip(loss["x"], loss["last"], strict=True) if v is not None]
    if not values:
        return
    shape = math.log if loss["log"] else float
    low, high = min(v for _, v in values), max(v for _, v in values)
    base, span = shape(low), (shape(high) - shape(low)) or 1.0
    steps = max(window[1] - window[0], 1)
    points = [
        (
            left + (step - window[0]) / steps * (right - left),
            bottom - 4 - (shape(value) - base) / span * (bottom - top - 8),
        )
        for step, value in values
    ]
    draw.line(points, LINE, 2, joint="curve")
    for y, value in ((top, high), (bottom - 14, low)):
        text = number(value)
        draw.text((left - 6 - draw.textlength(text, _font(12)), y), text, SOFT, _font(12))
    draw.text(
        (left, bottom + 5),
        f"loss{' (log)' if loss['log'] else ''}, step {window[0]}",
        SOFT,
        _font(12),
    )
    end = str(window[1])
    draw.text((right - draw.textlength(end, _font(12)), bottom + 5), end, SOFT, _font(12))


def _sign(draw: ImageDraw.ImageDraw, mark: Mark, x: int, y: int, ink: Colour) -> None:
    """The shape of a mark around a centre."""
    if mark is Mark.NONFINITE:
        draw.line([(x, y - 7), (x, y + 2)], ink, 3)
        draw.ellipse((x - 2, y + 4, x + 2, y + 8), ink)
    elif mark is Mark.EXPLODING:
        draw.polygon([(x - 7, y + 6), (x + 7, y + 6), (x, y - 6)], ink)
    elif mark is Mark.VANISHING:
        draw.polygon([(x - 6, y - 5), (x + 6, y - 5), (x, y + 6)], outline=ink, width=2)
    else:
        draw.line([(x - 5, y - 5), (x + 5, y + 5)], ink, 3)
        draw.line([(x - 5, y + 5), (x + 5, y - 5)], ink, 3)


@cache
def _fitted(text: str, pixels: int) -> str:
    """A name cut in the middle until it fits into so many pixels."""
    letters = min(len(plain(text)), 60)
    while letters > 4 and _font(12).getlength(shortened(text, letters)) > pixels:
        letters -= 1
    return shortened(text, letters)


_FONTS: dict[int, Any] = {}


def _font(size: int) -> Any:
    """Pillow's own font: the same picture on every machine."""
    if size not in _FONTS:
        _FONTS[size] = ImageFont.load_default(size)
    return _FONTS[size]


# -- palette of a GIF ------------------------------------------------------------------------------


@cache
def palette(scheme: Scheme) -> tuple[Colour, ...]:
    """96 steps of the ramp, 96 of grey-blue between paper and ink, and what is special."""
    levels = [ramp(scheme)[round(i / 95 * 255)] for i in range(96)]
    greys: list[Colour] = []
    for index in range(96):
        at = index / 95
        red, green, blue = (round(part + (255 - part) * at) for part in PAPER)
        greys.append((red, green, blue))
    return (*levels, *greys, BAD[scheme], (0, 0, 0), (255, 255, 255), PAPER)


@cache
def _table(scheme: Scheme) -> NDArray[np.uint8]:
    """Nearest entry of the palette for each of 2^15 coarse colours."""
    step = 1 << (8 - BITS)
    axis = np.arange(0, 256, step) + step // 2
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    entries = np.array(palette(scheme), float)
    best = np.empty(len(grid), np.uint8)
    for begin in range(0, len(grid), 4096):
        part = grid[begin : begin + 4096]
        best[begin : begin + 4096] = ((part[:, None] - entries) ** 2).sum(-1).argmin(1)
    return best


def indexed(image: Image.Image, scheme: Scheme) -> Image.Image:
    """The image with the fixed palette."""
    shift = 8 - BITS
    pixels = np.asarray(image).astype(np.int32) >> shift
    at = (pixels[..., 0] << (2 * BITS)) | (pixels[..., 1] << BITS) | pixels[..., 2]
    reduced = Image.fromarray(_table(scheme)[at])
    reduced.putpalette([part for entry in palette(scheme) for part in entry])
    return reduced
