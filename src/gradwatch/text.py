"""Text for people: names made harmless, numbers and lists made short."""

import math
import unicodedata
from collections.abc import Sequence
from html import escape

_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def plain(name: str) -> str:
    """A name with nothing in it that a terminal could obey: odd characters become escapes."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _ODD else char
        for char in name
    )


def shortened(name: str, width: int) -> str:
    """A name in at most `width` characters, cut in the middle, where names differ least."""
    name = plain(name)
    if len(name) <= width:
        return name
    if width < 4:
        return name[:width]
    tail = (width - 1) * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def markup(text: str, width: int) -> str:
    """A text inside HTML: nothing in it is markup, invisible or endless."""
    return escape(shortened(text, width))


def number(value: float) -> str:
    """Three significant digits, in at most eight characters."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return f"{value:g}"  # nan, inf, -inf
    size = abs(value)
    if 1e-2 <= size < 1e4:
        return f"{value:.3g}" if size < 999.5 else f"{value:.0f}"  # never "1e+03"
    return f"{value:.1e}"


def percent(fraction: float) -> str:
    """A fraction as whole per cent; the ends only when really reached."""
    value = 100 * fraction
    if 0 < value < 1:
        return "under 1 %"
    if 99 < value < 100:
        return "over 99 %"
    return f"{value:.0f} %"


def named(layer: str) -> str:
    """A layer as a sentence calls it; parameters of the model itself belong to one without name."""
    return layer or "the model itself"


def several(layers: Sequence[str], shown: int = 2) -> str:
    """`a`, `a and b`, `a, b and 3 more`."""
    names = [named(layer) for layer in layers]
    if len(names) <= 1:
        return names[0] if names else "the whole run"
    if len(names) <= shown:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def listed(numbers: Sequence[int], shown: int = 4) -> str:
    """`3, 17, 40 …`"""
    words = ", ".join(str(number) for number in numbers[:shown])
    return f"{words} …" if len(numbers) > shown else words
