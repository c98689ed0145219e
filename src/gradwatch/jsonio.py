"""JSON that every strict parser takes, and that brings NaN and the infinities back.

JSON has no word for them, so they are the texts "NaN", "Infinity" and "-Infinity"; a text that
happens to be one of these gets a backslash in front, and loses it again in `loads`. This is the one
spelling of every file and of every `--json`; null always means that there is no value.
"""

import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DEEPEST = 64


def dumps(value: Any, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """Strict JSON of plain values, enums and arrays; anything else becomes its text."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(
            value, indent=indent, separators=separators, ensure_ascii=ascii_only, allow_nan=False
        )
        if not any(f'{word}"' in text for word in _WORDS):
            return text  # nothing to spell: by far the most common case, and ten times faster
    except (TypeError, ValueError, RecursionError):
        pass
    tree = spelled(value)
    return json.dumps(
        tree, indent=indent, separators=separators, ensure_ascii=ascii_only, allow_nan=False
    )


def loads(text: str | bytes) -> Any:
    """What `dumps` was given, as plain values."""
    return unspelled(json.loads(text))


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
