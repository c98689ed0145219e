"""Maps of tensors or layers over steps, as packed bytes within a budget of cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.run import Run
from gradwatch.stats import Kind
from gradwatch.views.model.cells import Code, Scale, coded, packed, unpacked
from gradwatch.views.model.columns import Columns, sizes_known
from gradwatch.views.model.titles import GRAD_RMS, HEAT_CHOICE, Shown, shown

CELLS = 1_100_000
"""All maps together; a byte each, they deflate to less, and base64 adds a third: 2 MB hold it."""
LEAST_COLUMNS = 60


def choice(run: Run, wanted: Sequence[str] | None, columns: int) -> tuple[list[Shown], int]:
    """Which statistics are shown and in how many columns, so that the cells stay in the budget."""
    names = HEAT_CHOICE if wanted is None else wanted
    stats = [item for item in map(shown, names) if item.stat in run.recorded]
    while stats:
        rows = sum(len(run.by_kind[item.kind]) for item in stats)
        if rows * columns <= CELLS or wanted is not None:
            return stats, columns
        if columns > LEAST_COLUMNS:
            columns = max(LEAST_COLUMNS, CELLS // rows)
        elif len(stats) > 2:
            stats.pop()
        else:
            return stats, max(1, min(columns, CELLS // rows))
    return stats, columns


def heat(columns: Columns, stats: Sequence[Shown]) -> dict[str, Any]:
    """`maps[name]`: title, unit, scale, `of` (tensors or layers), packed rows × columns.

    A map that is sampled more rarely leaves out the columns in which it has nothing: `columns` says
    which it has, and a view may draw each as far as the next.
    """
    maps = {}
    left_out = []
    for item in stats if len(columns) else ():
        try:
            maps[item.name] = _map(columns, item)
        except GradwatchError:  # too large to be loaded whole, and not stored in coarser levels
            left_out.append(item.name)
    return {
        "first": columns.first.tolist(),
        "last": columns.last.tolist(),
        "maps": {name: found for name, found in maps.items() if found["columns"]},
        "left_out": left_out,
    }


def _map(columns: Columns, what: Shown) -> dict[str, Any]:
    run = columns.run
    values = columns.values(what)
    scale = Scale.around(values, what.log, what.unit)
    codes = coded(
        values,
        scale,
        columns.nonfinite(what.kind, what.stat),
        columns.without_gradient(what, values),
    )
    there = np.flatnonzero((codes != Code.EMPTY).any(axis=1))
    if what.kind is Kind.LAYER and not (codes < Code.NO_GRADIENT)[codes != Code.EMPTY].any():
        there = there[:0]  # only marks that other maps of activations show as well
    title = what.title
    if what.name == GRAD_RMS and not sizes_known(run):
        title = "gradient norm (sizes unknown)"
    return {
        "title": title,
        "unit": what.unit,
        "of": "tensors" if what.kind is Kind.PARAMETER else "layers",
        "rows": _rows(run, what.kind),
        "columns": there.tolist(),
        "scale": scale.to_dict(),
        "cells": packed(np.ascontiguousarray(codes[there].T)),
    }


def _rows(run: Run, kind: Kind) -> list[str] | int:
    """Rows of tensors are those of the model's table; others are named."""
    if kind is Kind.PARAMETER:
        return len(run.parameters)
    return [subject.name for subject in run.by_kind[kind]]


def codes_of(model: dict[str, Any], name: str) -> tuple[NDArray[np.uint8], Scale]:
    """A map's bytes [row, column] and its scale, back from the model."""
    found = model["heat"]["maps"][name]
    rows = found["rows"] if isinstance(found["rows"], int) else len(found["rows"])
    scale = Scale(**found["scale"])
    return unpacked(found["cells"], rows, len(found["columns"])), scale


def row_of(model: dict[str, Any], name: str, layer: int) -> int | None:
    """Which row of a map stands for a layer; None where the map has none."""
    found = model["heat"]["maps"][name]
    entry = model["layers"][layer]
    if found["of"] == "tensors":
        main: int | None = entry["main"]
        return main
    rows: list[str] = found["rows"]
    return rows.index(entry["name"]) if entry["name"] in rows else None
