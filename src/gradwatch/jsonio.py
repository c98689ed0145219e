"""JSON that every strict parser takes, and that brings NaN and the infinities back.

JSON has no word for them, so they are the texts "NaN", "Infinity" and "-Infinity"; a text that
happens to be one of these gets a backslash in front, and loses it again in `loads`. This is the one
spelling of every file and of every `--json`; null always means that there is no value.
"""

import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from functools import partial
from types import NoneType
from typing import Any

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEEPEST = 64
_KNOWN = (dict, list, tuple, str, int, float, NoneType)
"""What JSON has a form for."""
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*":?|NaN|-?Infinity')
"""What can hold a word: texts (names of fields with their colon, which stay) and bare words."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, as names can hold it in Python: no UTF-8 file can."""


def dumps(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Strict JSON of plain values, enums, arrays and results; else a value becomes its text."""
    write = partial(
        json.dumps,
        indent=indent,
        separators=(",", ":") if indent is None else None,
        ensure_ascii=ascii_only,
        check_circular=False,
    )
    try:
        text = write(value, default=_plain)
        # Most texts hold none of the words; spelling them in the text is faster than in the tree.
        if "NaN" in text or "Infinity" in text:
            text = _TOKENS.sub(_strict, text)
    except (TypeError, ValueError, RecursionError):
        text = write(spelled(value))
    return text if text.isascii() else _SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):x}", text)


def loads(text: str | bytes) -> Any:
    """What `dumps` was given, as plain values."""
    tree = json.loads(text)
    if isinstance(text, str) and 'NaN"' not in text and 'Infinity"' not in text:
        return tree
    return unspelled(tree)


def _strict(token: re.Match[str]) -> str:
    """A bare word of Python's JSON gets quotes, a text that is such a word a backslash."""
    text = token[0]
    if text[0] != '"':
        return f'"{text}"'
    return f'"\\\\{text[1:]}' if text[1:-1].lstrip("\\") in _WORDS else text


def spelled(value: Any, depth: int = 0) -> Any:
    """The same as a tree that JSON can hold: non-finite floats as words.

    What is nested deeper than any result of ours (a list that holds itself) ends in an ellipsis.
    """
    if depth > _DEEPEST:
        return "…"
    if not isinstance(value, _KNOWN):
        value = _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _WORDS else value
    if isinstance(value, dict):
        return {str(_plain(key)): spelled(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item, depth + 1) for item in value]
    return value


def _plain(value: Any) -> Any:
    """What JSON does not know, in what it does."""
    if isinstance(value, Enum):
        return value.value
    if hasattr(type(value), "tolist"):  # of numpy, without which `doctor` must work
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=lambda item: (str(type(item)), item))
    if isinstance(value, _KNOWN):
        return value
    return value.to_dict() if hasattr(type(value), "to_dict") else str(value)


def unspelled(tree: Any) -> Any:
    """The words of `spelled` turned back into floats."""
    if isinstance(tree, str):
        if tree in _WORDS:
            return _WORDS[tree]
        return tree[1:] if tree.lstrip("\\") in _WORDS else tree
    if isinstance(tree, dict):
        return {key: unspelled(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [unspelled(item) for item in tree]
    return tree
