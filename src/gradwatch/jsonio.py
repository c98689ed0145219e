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
from typing import Any

import numpy as np

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEEPEST = 64
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*":?|NaN|-?Infinity')
"""What can hold a word: texts (names of fields with their colon, which stay) and bare words."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, as names can hold it in Python: no UTF-8 file can."""


def dumps(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Strict JSON of plain values, enums and arrays; anything else becomes its text."""
    separators = (",", ":") if indent is None else None
    write = partial(
        json.dumps,
        indent=indent,
        separators=separators,
        ensure_ascii=ascii_only,
        check_circular=False,
    )
    try:
        text = write(value)
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
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, Enum):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return "\\" + value if value.lstrip("\\") in _WORDS else value
    if isinstance(value, Mapping):
        return {_key(key): spelled(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((spelled(item, depth + 1) for item in value), key=lambda x: (str(type(x)), x))
    return value if value is None or isinstance(value, bool | int | float) else str(value)


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


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, Enum) else key)
