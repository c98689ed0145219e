"""Colour schemes, the same as the page's: each grows lighter from low to high."""

from enum import StrEnum
from functools import cache

Colour = tuple[int, int, int]


class Scheme(StrEnum):
    """What the colours are made for."""

    VIRIDIS = "viridis"
    CIVIDIS = "cividis"  # for colour-blind eyes
    CONTRAST = "contrast"  # for projectors and weak eyes
    MONO = "mono"  # for paper


_STOPS = {
    Scheme.VIRIDIS: "440154 472d7b 3b528b 2c728e 21918c 28ae80 5ec962 addc30 fde725",
    Scheme.CIVIDIS: "00204c 1b3a6d 414d6b 61636d 7c7b78 9b9476 bcae6c dfc95b ffea46",
    Scheme.CONTRAST: "000000 3b0070 7a00a8 c4006c f03a1a ff8400 ffc300 fff17a ffffff",
    Scheme.MONO: "0d0d0d 2a2a2a 484848 656565 838383 a1a1a1 bfbfbf dddddd fafafa",
}
BAD: dict[Scheme, Colour] = {
    Scheme.VIRIDIS: (229, 56, 59),
    Scheme.CIVIDIS: (213, 94, 0),
    Scheme.CONTRAST: (0, 220, 255),
    Scheme.MONO: (255, 255, 255),
}
"""Non-finite: a colour that is nowhere in the ramp (and always with its mark)."""


@cache
def ramp(scheme: Scheme) -> tuple[Colour, ...]:
    """256 colours from low to high."""
    stops = [tuple(bytes.fromhex(stop)) for stop in _STOPS[scheme].split()]
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
