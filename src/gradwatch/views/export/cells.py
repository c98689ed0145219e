"""A run as a long list of cells: one for every value that was recorded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.run import Run
from gradwatch.stats import Stat, State, entry

Tick = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""
SCALAR = "scalar"


@dataclass(frozen=True)
class Cells:
    """The recorded cells of one statistic (or scalar), by step and then by subject."""

    name: str
    kind: str
    subjects: Sequence[str]
    steps: NDArray[np.int64]
    columns: NDArray[np.intp]
    values: NDArray[np.float64] | NDArray[np.uint64]
    """Counts and hashes exactly, everything else as float64."""
    states: NDArray[np.uint8]


def exported(run: Run, wanted: Sequence[Stat] = ()) -> list[Stat]:
    """The statistics to write: those asked for, or all that have one number per cell."""
    return [*wanted] or [stat for stat in run.series if entry(stat).width == 1]


def all_cells(run: Run, stats: Sequence[Stat], tick: Tick) -> Iterator[Cells]:
    """Scalars first, then each statistic; wide ones as `name[0]`, `name[1]`, …"""
    total = len(stats) + 1
    for name, values in run.scalars.items():
        there = np.flatnonzero(~np.isnan(values))
        yield Cells(
            name,
            SCALAR,
            [""],
            run.steps[there],
            np.zeros(len(there), np.intp),
            values[there],
            np.zeros(len(there), np.uint8),
        )
    tick(1 / total)
    for number, stat in enumerate(stats, start=2):
        yield from _of(run, stat)
        tick(number / total)


def _of(run: Run, stat: Stat) -> Iterator[Cells]:
    item = entry(stat)
    states = run.state(stat)
    rows, columns = np.nonzero(states != State.NOT_SAMPLED)
    names = [subject.name for subject in run.by_kind[item.kind]]
    for part in range(item.width):
        if item.width > 1:
            values = run.series[stat][rows, columns, part]
        elif item.dtype == "<u8":
            values = run.integers(stat)[rows, columns]
        else:
            values = run.series[stat][rows, columns]
        name = str(stat) if item.width == 1 else f"{stat}[{part}]"
        yield Cells(
            name, str(item.kind), names, run.steps[rows], columns, values, states[rows, columns]
        )
