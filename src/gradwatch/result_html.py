"""Any result of an analysis as a small piece of HTML for notebooks: static, no script.

Single values are listed, collections become tables of their first rows, parts are folded. What is
not shown is counted, so that nothing looks complete that is not; `to_dict()` has everything.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from gradwatch.text import markup, number

MOST_ROWS = 12
MOST_COLUMNS = 8
MOST_LISTED = 4
LEAVES = 2
"""Of a part inside a row, the first values that get a column."""
DEPTH = 2
WIDTH = 60


def as_html(result: Any) -> str:
    """Title, then everything inside."""
    return f"<div><b>{_title(type(result).__name__)}</b>{_inside(result, DEPTH)}</div>"


def _inside(result: Any, depth: int) -> str:
    """Single values first, then tables and parts, folded except the first of them."""
    fields = list(_fields(result))
    facts = "".join(
        f'<tr><th style="text-align:left">{_words(name)}</th>{_cell(result, name, value)}</tr>'
        for name, value in fields
        if _simple(value)
    )
    parts = [(name, value) for name, value in fields if not _simple(value)]
    if depth > 0:
        tail = "".join(
            _folded(name, value, depth, opened=depth == DEPTH and at == 0)
            for at, (name, value) in enumerate(parts)
        )
    else:
        tail = f"<p>{len(parts)} parts more: to_dict() has them</p>" if parts else ""
    return (f"<table>{facts}</table>" if facts else "") + tail


def _folded(name: str, value: Any, depth: int, opened: bool) -> str:
    if dataclasses.is_dataclass(value):
        title, inside = _words(name), _inside(value, depth - 1)
    else:
        items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
        title = f"{_words(name)} ({len(items)})"
        inside = _table(items, isinstance(value, Mapping))
    if not inside:
        return ""
    return f"<details{' open' if opened else ''}><summary>{title}</summary>{inside}</details>"


def _table(items: list[tuple[Any, Any]], named: bool) -> str:
    """One row per item: its single values, and the first ones of its parts."""
    if not items:
        return ""
    key, first = items[0]
    columns = [
        path
        for path in _columns(first)
        if not (named and len(path) == 1 and getattr(first, path[0], None) == key)
    ][:MOST_COLUMNS]  # without the name that stands before the row anyway
    heads = "".join(f"<th>{_words(path[-1])}</th>" for path in columns)
    rows = "".join(
        "<tr>"
        + (f"<th>{markup(str(_plain(key)), WIDTH)}</th>" if named else "")
        + "".join(_at(item, path) for path in columns)
        + "</tr>"
        for key, item in items[:MOST_ROWS]
    )
    more = len(items) - MOST_ROWS
    tail = f"<p>… and {more} more: to_dict() has them</p>" if more > 0 else ""
    return f"<table><tr>{'<th></th>' if named else ''}{heads}</tr>{rows}</table>{tail}"


def _columns(item: Any) -> Iterator[tuple[str, ...]]:
    if not dataclasses.is_dataclass(item):
        yield ("value",)
        return
    fields = list(_fields(item))
    yield from ((name,) for name, value in fields if _simple(value))
    for name, value in fields:
        if dataclasses.is_dataclass(value):
            leaves = [leaf for leaf, found in _fields(value) if _simple(found)]
            yield from ((name, leaf) for leaf in leaves[:LEAVES])


def _at(item: Any, path: tuple[str, ...]) -> str:
    if not dataclasses.is_dataclass(item):
        return f"<td>{_said(item)}</td>"
    for name in path[:-1]:
        item = getattr(item, name, None)
    return _cell(item, path[-1], getattr(item, path[-1], None))


def _cell(owner: Any, name: str, value: Any) -> str:
    """A value; where there is none, the reason is told when one points at it."""
    reason = getattr(owner, "missing", {}).get(name) if value is None else None
    told = f' title="{markup(reason, 200)}"' if reason else ""
    return f'<td style="text-align:left"{told}>{_said(value)}</td>'


def _fields(result: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(result):
        yield field.name, getattr(result, field.name)


def _simple(value: Any) -> bool:
    """One cell holds it: a value, or a collection of few such."""
    if dataclasses.is_dataclass(value):
        return False
    if isinstance(value, Mapping):
        return len(value) <= MOST_LISTED and all(_single(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return all(_single(item) for item in value)
    return True


def _single(value: Any) -> bool:
    return not (
        dataclasses.is_dataclass(value)
        or isinstance(value, Mapping | list | tuple | set | frozenset | np.ndarray)
    )


def _said(value: Any) -> str:
    value = _plain(value)
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{markup(str(_plain(key)), WIDTH)}: {_said(item)}" for key, item in value.items()
        )
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        items = sorted(value) if isinstance(value, set | frozenset) else list(value)
        if not items:
            return "none"
        more = f" … ({len(items)})" if len(items) > MOST_LISTED else ""
        return ", ".join(_said(item) for item in items[:MOST_LISTED]) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else markup(str(value), WIDTH)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def _words(name: str) -> str:
    return markup(name.replace("_", " "), WIDTH)


def _title(name: str) -> str:
    return markup(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize(), WIDTH)
