"""Text for people: names made harmless, numbers made short."""

import math
import unicodedata
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
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-2 <= size < 1e4:
        return f"{value:.3g}" if size < 999.5 else f"{value:.0f}"  # never "1e+03"
    return f"{value:.1e}"
