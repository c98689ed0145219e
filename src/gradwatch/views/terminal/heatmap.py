"""The map of layers over steps in characters."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from gradwatch.text import number
from gradwatch.views.model.badness import worst_first
from gradwatch.views.model.cells import Code, Scale, decoded
from gradwatch.views.model.heat import codes_of, row_of
from gradwatch.views.terminal.glyphs import BLOCKS, MEANINGS, OTHER, label, row, squeezed

MOST_ROWS = 24
"""More layers than that are grouped into blocks."""


def heatmap(model: dict[str, Any], name: str, width: int, pattern: str | None) -> list[Text]:
    """Title, one line per layer or block (worst first), and the steps under it."""
    codes, scale = codes_of(model, name)
    lines = _rows(model, name, codes, pattern)
    if not lines:
        return [Text(f"no layer matches {pattern!r}" if pattern else "no layer has this series")]
    names = min(max(len(title) for title, _ in lines), max(12, width // 3))
    columns = max(width - names - 11, 8)
    found = model["heat"]["maps"][name]
    out = [_title(found, scale, len(lines), len(model["layers"]))]
    out[0].truncate(width, overflow="ellipsis")
    for title, part in lines:
        line = Text(label(title, names) + " ")
        line.append_text(row(squeezed(part[None, :], columns)[0]))
        drawn = min(part.shape[0], columns)
        line.append(" " * (columns - drawn) + " " + _latest(part, scale).rjust(8))
        out.append(line)
    out.append(_axis(model, found, names, columns))
    return out + _key(np.concatenate([squeezed(part[None, :], columns)[0] for _, part in lines]))


def _key(codes: NDArray[np.uint8]) -> list[Text]:
    """What the signs of this map mean that are no level; those that do not occur are left out."""
    words = [f"{sign} {MEANINGS[code]}" for code, (sign, _) in OTHER.items() if code in codes]
    return [Text("   ".join(words[at : at + 2]), style="dim") for at in range(0, len(words), 2)]


def _rows(
    model: dict[str, Any], name: str, codes: NDArray[np.uint8], pattern: str | None
) -> list[tuple[str, NDArray[np.uint8]]]:
    chosen = [
        (index, at)
        for index in worst_first(model)
        if (at := row_of(model, name, index)) is not None
        and (pattern is None or _matches(model["layers"][index]["name"], pattern))
    ]
    if len(chosen) <= MOST_ROWS:
        return [(model["layers"][index]["name"], codes[at]) for index, at in chosen]
    return _blocks(model, codes, chosen)[: MOST_ROWS * 2]


def _blocks(
    model: dict[str, Any], codes: NDArray[np.uint8], chosen: Sequence[tuple[int, int]]
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Blocks in the order of their worst layer; a cell shows the highest of its layers."""
    groups: dict[str, list[int]] = {}
    single: dict[str, str] = {}
    for index, at in chosen:
        layer = model["layers"][index]
        groups.setdefault(layer["block"], []).append(at)
        single[layer["block"]] = layer["name"]
    return [
        (
            single[block] if len(rows) == 1 else f"{block} ({len(rows)})",
            codes[rows].max(axis=0),
        )
        for block, rows in groups.items()
    ]


def _matches(name: str, pattern: str) -> bool:
    """A pattern with * ? [ is matched whole; a plain word anywhere in the name."""
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(name, pattern)
    return pattern in name


def _latest(part: NDArray[np.uint8], scale: Scale) -> str:
    there = part[part != Code.EMPTY]
    if not len(there):
        return ""
    if there[-1] == Code.NONFINITE:
        return "nan/inf"
    if there[-1] == Code.NO_GRADIENT:
        return "no grad"
    return number(float(decoded(there[-1:], scale)[0]))


def _title(found: dict[str, Any], scale: Scale, rows: int, layers: int) -> Text:
    text = Text(found["title"], style="bold")
    kind = "log scale" if scale.log else "linear"
    text.append(f", {kind} {number(scale.low)} '{BLOCKS}' {number(scale.high)}", style="not bold")
    if rows < layers:
        text.append(f"  ({rows} rows of {layers} layers)", style="dim not bold")
    return text


def _axis(model: dict[str, Any], found: dict[str, Any], names: int, columns: int) -> Text:
    heat = model["heat"]
    first = heat["first"][found["columns"][0]]
    last = heat["last"][found["columns"][-1]]
    drawn = min(len(found["columns"]), columns)
    left, right = f"step {first}", str(last)
    return Text(
        " " * (names + 1) + left + right.rjust(max(drawn - len(left), len(right) + 1)), style="dim"
    )
