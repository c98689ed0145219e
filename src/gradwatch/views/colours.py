"""The colours of maps, flows and moving pictures: four schemes, under our names and the original's.

The page's script has the same stops in `frontend/src/colour.js`.
"""

from enum import StrEnum
from functools import cache

from gradwatch.analysis.flow import PALETTES, ColorScheme
from gradwatch.errors import Exit, GradwatchError

Colour = tuple[int, int, int]


class Scheme(StrEnum):
    """What the colours are made for."""

    VIRIDIS = "viridis"
    CIVIDIS = "cividis"  # for colour-blind eyes
    CONTRAST = "contrast"  # for projectors and weak eyes
    MONO = "mono"  # for paper

    @classmethod
    def named(cls, name: str) -> "Scheme":
        """By our name or the original's, in whatever case."""
        for scheme, original in ORIGINAL_NAMES.items():
            if name.lower() in (scheme.lower(), original.lower()):
                return scheme
        known = ", ".join([*ORIGINAL_NAMES, *ORIGINAL_NAMES.values()])
        raise GradwatchError(
            f"There is no colour scheme named {name!r}. Try one of {known}.", Exit.USAGE
        )


ORIGINAL_NAMES = {
    Scheme.VIRIDIS: ColorScheme.DEFAULT,
    Scheme.CIVIDIS: ColorScheme.COLOR_BLIND,
    Scheme.CONTRAST: ColorScheme.HIGH_CONTRAST,
    Scheme.MONO: ColorScheme.MONOCHROME,
}
HELP = (
    "viridis (or Default), cividis (ColorBlind), contrast (HighContrast, for projectors), "
    "mono (Monochrome, for paper)."
)
BAD: dict[Scheme, Colour] = {
    Scheme.VIRIDIS: (229, 56, 59),
    Scheme.CIVIDIS: (213, 94, 0),
    Scheme.CONTRAST: (0, 220, 255),
    Scheme.MONO: (255, 255, 255),
}
"""Non-finite: a colour that is nowhere in the ramp (and always with its mark)."""
ZERO: Colour = (70, 70, 90)
"""Exactly zero: not the lowest level, which is a gradient that is still there."""


@cache
def ramp(scheme: Scheme) -> tuple[Colour, ...]:
    """256 colours from low to high."""
    palette = PALETTES[ORIGINAL_NAMES[scheme]]
    stops = [tuple(bytes.fromhex(stop.removeprefix("#"))) for stop in palette]
    out = []
    for index in range(256):
        at = index / 255 * (len(stops) - 1)
        low = min(int(at), len(stops) - 2)
        pairs = zip(stops[low], stops[low + 1], strict=True)
        red, green, blue = (round(a + (b - a) * (at - low)) for a, b in pairs)
        out.append((red, green, blue))
    return tuple(out)


def colour(scheme: Scheme, level: float) -> Colour:
    """The colour of a level from 0 to 1."""
    return ramp(scheme)[max(0, min(255, round(level * 255)))]


DARK_BELOW = 0.179
"""Black is read better above this luminance, white below it: either way at least 4.5 : 1."""


def ink_on(background: Colour) -> Colour:
    """Black or white, whichever can be read."""
    return (0, 0, 0) if luminance(background) > DARK_BELOW else (255, 255, 255)


def luminance(colour: Colour) -> float:
    """How light a colour is to the eye, 0 … 1 (WCAG's relative luminance)."""
    red, green, blue = (
        part / 3294.6 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
