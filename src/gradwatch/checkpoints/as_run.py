"""Measured checkpoints as a `Run`: the weight series of every tensor, one step per checkpoint."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.checkpoints.index import Index
from gradwatch.checkpoints.joining import Measured
from gradwatch.run import Event, EventKind, Histogram, MemorySource, Run, Subject
from gradwatch.stats import Family, Kind, Stat, State

_COPIED = ("norm", "mean", "std", "skewness", "kurtosis", "abs_mean", "abs_max", "min", "max")
Step = tuple[int, Index, Sequence[Measured]]


def run_of(checkpoints: Sequence[Step]) -> Run:
    """One step for each; a tensor that a checkpoint lacks is not sampled there."""
    latest = {m.name: m for _, _, tensors in checkpoints for m in tensors}
    names = list(latest)
    column = {name: number for number, name in enumerate(names)}
    shape = (len(checkpoints), len(names))
    stats = [Stat(f"weight_{name}") for name in (*_COPIED, "zero_fraction", "row_spread")]
    counts = [Stat(f"weight_{name}") for name in ("count", "nan", "inf", "zero_rows", "hash")]
    values = {stat: np.full(shape, math.nan) for stat in (*stats, *counts)}
    exact = {stat: np.zeros(shape, np.uint64) for stat in counts}
    states = np.full(shape, State.NOT_SAMPLED, np.uint8)
    bins: dict[tuple[Family, str], dict[int, Histogram]] = {}
    for row, (step, _, tensors) in enumerate(checkpoints):
        for measured in tensors:
            at = row, column[measured.name]
            states[at] = State.MEASURED
            for stat, number in _numbers(measured).items():
                values[stat][at] = number
            for stat, whole in _integers(measured).items():
                exact[stat][at], values[stat][at] = whole, float(whole)
            if measured.histogram is not None:
                bins.setdefault((Family.WEIGHT, measured.name), {})[step] = measured.histogram
    if len(checkpoints) == 1:  # marks serve to compare steps and are not made for a single one
        del values[Stat.WEIGHT_HASH], exact[Stat.WEIGHT_HASH]
    return Run(
        MemorySource(
            np.array([step for step, _, _ in checkpoints], np.int64),
            tuple(_subject(measured) for measured in latest.values()),
            values,
            _states(values, states),
            exact,
            events=tuple(_events(checkpoints)),
            info=_info(checkpoints),
            bins=bins,
        )
    )


def _numbers(measured: Measured) -> dict[Stat, float]:
    found = {Stat(f"weight_{name}"): float(measured.moments[name]) for name in _COPIED}
    found[Stat.WEIGHT_ZERO_FRACTION] = measured.zero_fraction
    found[Stat.WEIGHT_ROW_SPREAD] = measured.spread
    return found


def _integers(measured: Measured) -> dict[Stat, int]:
    moments = measured.moments
    return {
        Stat.WEIGHT_COUNT: int(moments["count"]),
        Stat.WEIGHT_NAN: int(moments["nan"]),
        Stat.WEIGHT_INF: int(moments["pos_inf"]) + int(moments["neg_inf"]),
        Stat.WEIGHT_ZERO_ROWS: int(moments["zero_rows"]),
        Stat.WEIGHT_HASH: measured.mark,
    }


def _states(
    values: dict[Stat, NDArray[np.float64]], states: NDArray[np.uint8]
) -> dict[Stat, NDArray[np.uint8]]:
    """All alike, but for the spread of rows, which only matrices have."""
    table = dict.fromkeys(values, states)
    spread = values[Stat.WEIGHT_ROW_SPREAD]
    unsupported = (states == State.MEASURED) & np.isnan(spread)
    table[Stat.WEIGHT_ROW_SPREAD] = np.where(unsupported, State.UNSUPPORTED, states).astype(
        np.uint8
    )
    return table


def _subject(measured: Measured) -> Subject:
    tensor = measured.tensor
    return Subject(
        Kind.PARAMETER,
        tensor.name,
        measured.layer,
        tensor.shape,
        str(tensor.element),
        tensor.count,
        tied_to=tensor.aliases,
    )


def _events(checkpoints: Sequence[Step]) -> list[Event]:
    return [
        Event(step, EventKind.NOT_RECORDED, f"{name}: {reason}", subject=name)
        for step, index, _ in checkpoints
        for name, reason in index.left_out.items()
    ]


def _info(checkpoints: Sequence[Step]) -> dict[str, Any]:
    indices = [index for _, index, _ in checkpoints]
    first = indices[0]
    return {
        "name": first.path if len(indices) == 1 else f"{first.path} … {indices[-1].path}",
        "format": first.format,
        "kind": "checkpoint",
        "bytes": sum(index.bytes for index in indices),
        "files": sum(len(index.files) for index in indices),
        "complete": True,
    }
