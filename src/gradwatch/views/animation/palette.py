"""Frames of a GIF: a fixed palette and a table from colours to it, much faster than quantising."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gradwatch.views.animation.picture import PAPER
from gradwatch.views.animation.schemes import BAD, Colour, Scheme, ramp

BITS = 5


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
    known = np.array(palette(scheme), float)
    best = np.empty(len(grid), np.uint8)
    for begin in range(0, len(grid), 4096):
        part = grid[begin : begin + 4096]
        best[begin : begin + 4096] = ((part[:, None] - known) ** 2).sum(-1).argmin(1)
    return best


def indexed(image: Image.Image, scheme: Scheme) -> Image.Image:
    """The image with the fixed palette."""
    shift = 8 - BITS
    pixels = np.asarray(image).astype(np.int32) >> shift
    at = (pixels[..., 0] << (2 * BITS)) | (pixels[..., 1] << BITS) | pixels[..., 2]
    made = Image.fromarray(_table(scheme)[at])
    made.putpalette([part for entry in palette(scheme) for part in entry])
    return made
