"""Text for people: names made harmless, numbers and lists made short."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from html import escape

_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that nobody sees: what Unicode lets a program leave out (its property
Default_Ignorable_Code_Point) and is not odd by its category, and the empty Braille pattern."""


def plain(name: str) -> str:
    """A name with nothing in it that a terminal could obey: odd characters become escapes."""
    if name.isascii() and name.isprintable():
        return name
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in _ODD or _INVISIBLE.match(char)
        else char
        for char in name
    )


def shortened(name: str, width: int) -> str:
    """A name in at most `width` characters: its last parts, two or more of them whole if they fit.

    `bert.embeddings.token_type_embeddings` in 35 is `…embeddings.token_type_embeddings`.
    """
    name = plain(name)
    if len(name) <= width:
        return name
    end = name[len(name) - max(width, 1) :]  # what is left out ends in its first character
    parts = end.partition(".")[2]
    return f"…{parts if '.' in parts else end[1:]}"[:width]


def cut(text: str, width: int) -> str:
    """A sentence in at most `width` characters; what is too much of it is left out at the end."""
    text = plain(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def markup(text: str, width: int) -> str:
    """A name or a sentence inside HTML: nothing in it is markup, invisible or endless."""
    return escape(cut(text, width) if " " in text else shortened(text, width))


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


def many(count: int, word: str) -> str:
    """`1 step`, `12 000 steps`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}".replace(",", " ")


def nearest(word: str, known: Iterable[str]) -> str:
    """`a, b or c`: the three names most like a word; those that contain it before the others."""

    def unlikeness(name: str) -> tuple[bool, float]:
        return word not in name, -SequenceMatcher(None, word, name).ratio()

    *first, last = sorted(known, key=unlikeness)[:3]
    return f"{', '.join(map(plain, first))} or {plain(last)}" if first else plain(last)


def listed(numbers: Sequence[int], shown: int = 4) -> str:
    """`3, 17, 40 …`"""
    words = ", ".join(str(number) for number in numbers[:shown])
    return f"{words} …" if len(numbers) > shown else words
