"""Results shown to a person: HTML for notebooks, a few lines of text elsewhere.

The HTML is static, small, without script, every name escaped. `as_html` shows any result of an
analysis: single values are listed, collections become tables of their first rows, parts are folded.
What is not shown is counted, so that nothing looks complete that is not; `to_dict()` has
everything. Runs, findings and diagnoses use the same pieces. `as_outline` (what `print` shows) and
`as_line` say the same in text.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from html import escape
from typing import Any

import numpy as np

from gradwatch.text import markup, number, plain, shortened

MOST_ROWS = 12
MOST_COLUMNS = 8
MOST_LISTED = 4
LEAVES = 2
"""Of a part inside a row, the first values that get a column."""
DEPTH = 2
WIDTH = 60
LINE = 160
"""Characters of `as_line`, about."""

CHART_WIDTH, CHART_HEIGHT = 240, 40
COLLECTIONS = (Sequence, set, frozenset, np.ndarray)


def cell(text: str, *, left: bool = True, title: str = "") -> str:
    """One cell of a table; `title` is shown when one points at it."""
    style = ' style="text-align:left"' if left else ""
    hint = f' title="{markup(title, 200)}"' if title else ""
    return f"<td{style}{hint}>{text}</td>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of finished cells under their headings."""
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of two columns: a heading and its finished cell; nothing where there is no row."""
    body = "".join(f'<tr><th style="text-align:left">{head}</th>{text}</tr>' for head, text in rows)
    return f"<table>{body}</table>" if body else ""


def items(texts: Iterable[str]) -> str:
    """A list; nothing where there is no item."""
    body = "".join(f"<li>{text}</li>" for text in texts)
    return f"<ul>{body}</ul>" if body else ""


def details(summary: str, inside: str, *, opened: bool = False) -> str:
    """A part that folds."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inside}</details>"


def line_chart(values: Sequence[float], caption: str) -> str:
    """Equally spaced values as a line; those that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    step = CHART_WIDTH / max(len(values) - 1, 1)
    points = " ".join(
        f"{index * step:.1f},{CHART_HEIGHT - 2 - (value - low) / span * (CHART_HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
        if math.isfinite(value)
    )
    return (
        f'<figure style="margin:4px 0"><svg width="{CHART_WIDTH}" height="{CHART_HEIGHT}" '
        f'role="img"><polyline fill="none" stroke="#1f6f8b" points="{points}"/></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def as_html(result: Any) -> str:
    """Title, then everything inside."""
    return f"<div><b>{_title(type(result).__name__)}</b>{_inside(result, DEPTH)}</div>"


def as_outline(result: Any) -> str:
    """Type, then one line a field; parts are indented, collections counted."""
    return "\n".join([type(result).__name__, *_outlined(result, DEPTH)])


def _outlined(result: Any, depth: int) -> Iterator[str]:
    for name, value in _values(result):
        reason = getattr(result, "missing", {}).get(name)
        yield f"  {name}: {_brief(value)}" + (f" ({plain(reason)})" if reason else "")
        if depth > 1 and dataclasses.is_dataclass(value):
            yield from (f"  {line}" for line in _outlined(value, depth - 1))


def as_line(result: Any) -> str:
    """Type and fields; what does not fit a line is counted."""
    texts: list[str] = []
    values = list(_values(result))
    for name, value in values:
        texts.append(f"{name}={_brief(value)}")
        if sum(map(len, texts)) > LINE:
            texts[-1] = f"… {len(values) - len(texts) + 1} more"
            break
    return f"{type(result).__name__}({', '.join(texts)})"


def _inside(result: Any, depth: int) -> str:
    """Single values first, then tables and parts, folded except the first of them."""
    values = list(_values(result))
    parts = [(name, value) for name, value in values if not _fits_a_cell(value)]
    if depth > 0:
        tail = "".join(
            _folded(name, value, depth, opened=depth == DEPTH and at == 0)
            for at, (name, value) in enumerate(parts)
        )
    else:
        tail = f"<p>{len(parts)} parts more: to_dict() has them</p>" if parts else ""
    single = ((_words(n), _field(result, n, value)) for n, value in values if _fits_a_cell(value))
    return facts(single) + tail


def _folded(name: str, value: Any, depth: int, opened: bool) -> str:
    if dataclasses.is_dataclass(value):
        title, inside = _words(name), _inside(value, depth - 1)
    else:
        named = isinstance(value, Mapping)
        rows = list(value.items()) if named else list(enumerate(value))
        title = f"{_words(name)} ({len(rows)})"
        inside = _collection(rows, named)
    return details(title, inside, opened=opened) if inside else ""


def _collection(rows: list[tuple[Any, Any]], named: bool) -> str:
    """One row per item: its single values, and the first ones of its parts."""
    if not rows:
        return ""
    key, first = rows[0]
    columns = [
        path
        for path in _columns(first)
        if not (named and len(path) == 1 and getattr(first, path[0], None) == key)
    ][:MOST_COLUMNS]  # without the name that stands before the row anyway
    heads = [*([""] if named else []), *(_words(path[-1]) for path in columns)]
    more = len(rows) - MOST_ROWS
    return table(
        heads,
        (
            [
                *([f"<th>{_text(str(_plain(key)))}</th>"] if named else []),
                *(_at(item, path) for path in columns),
            ]
            for key, item in rows[:MOST_ROWS]
        ),
    ) + (f"<p>… and {more} more: to_dict() has them</p>" if more > 0 else "")


def _columns(item: Any) -> Iterator[tuple[str, ...]]:
    if not dataclasses.is_dataclass(item):
        yield ("value",)
        return
    values = list(_values(item))
    yield from ((name,) for name, value in values if _fits_a_cell(value))
    for name, value in values:
        if dataclasses.is_dataclass(value):
            leaves = [leaf for leaf, inside in _values(value) if _fits_a_cell(inside)]
            yield from ((name, leaf) for leaf in leaves[:LEAVES])


def _at(item: Any, path: tuple[str, ...]) -> str:
    if not dataclasses.is_dataclass(item):
        return cell(_text(item), left=False)
    for name in path[:-1]:
        item = getattr(item, name, None)
    return _field(item, path[-1], getattr(item, path[-1], None))


def _field(owner: Any, name: str, value: Any) -> str:
    """A value; where there is none, its reason is shown when one points at it."""
    reason = getattr(owner, "missing", {}).get(name) if value is None else None
    return cell(_text(value), title=reason or "")


def _values(result: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(result):
        yield field.name, getattr(result, field.name)


def _fits_a_cell(value: Any) -> bool:
    """A single value, or a collection of few such."""
    if isinstance(value, Mapping):
        return len(value) <= MOST_LISTED and all(map(_single, value.values()))
    if _is_collection(value):
        return all(map(_single, value))
    return _single(value)


def _single(value: Any) -> bool:
    parts = dataclasses.is_dataclass(value) or isinstance(value, Mapping)
    return not (parts or _is_collection(value))


def _is_collection(value: Any) -> bool:
    return isinstance(value, COLLECTIONS) and not isinstance(value, str | bytes)


def _text(value: Any) -> str:
    return escape(_brief(value))


def _brief(value: Any) -> str:
    """A value in a few words: collections by their first items, parts by their type."""
    value = _plain(value)
    if value is None:
        return "–"
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if not isinstance(value, Mapping) and not _is_collection(value):
        return shortened(str(value), WIDTH)
    items = list(value.values()) if isinstance(value, Mapping) else list(value)
    if not items:
        return "none"
    if dataclasses.is_dataclass(items[0]):
        return f"{len(items)} × {type(items[0]).__name__}"
    if isinstance(value, set | frozenset):
        items.sort()
    first = [_brief(item) for item in items[:MOST_LISTED]]
    if isinstance(value, Mapping):
        first = [f"{_brief(key)}: {text}" for key, text in zip(value, first, strict=False)]
    return ", ".join(first) + (f" … ({len(items)})" if len(items) > MOST_LISTED else "")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.item() if isinstance(value, np.generic) else value


def _words(name: str) -> str:
    return markup(name.replace("_", " "), WIDTH)


def _title(name: str) -> str:
    return markup(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize(), WIDTH)


def show_card(place: str, verdict: str, command: str) -> bool:
    """In a notebook, a small card on where a run is and what to type; elsewhere nothing, False."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return False
    from IPython.display import HTML, display

    style = "border:1px solid #8884;border-radius:6px;padding:6px 10px;display:inline-block"
    said = f": <b>{markup(verdict, WIDTH)}</b>" if verdict else ""
    text = f"gradwatch <code>{markup(place, LINE)}</code>{said}"
    display(HTML(f'<div style="{style}">{text}<br><code>!{markup(command, LINE)}</code></div>'))
    return True
