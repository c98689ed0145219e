"""A run's numbers for other tools: CSV, strict JSON, Parquet.

CSV and Parquet are one long table, a row for every value that was recorded. JSON holds each series
as a table of steps and subjects.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.jsonio import dumps
from gradwatch.run import Run
from gradwatch.stats import HAS_VALUE, Stat, State, entry

JSON_FORMAT = 1
HEAD = "step,kind,name,statistic,value,state\r\n"
Tick = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""
_RUNS_AS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")
_STATES = [state.name.lower() for state in sorted(State)]
_LINES = 20_000
"""Lines of CSV put together before they are written."""


def exported(run: Run, wanted: Sequence[Stat] = ()) -> list[Stat]:
    """The statistics to write: those asked for, or all that have one number per cell."""
    return [*wanted] or [stat for stat in run.series if entry(stat).width == 1]


# -- the long table --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedValues:
    """The recorded values of one statistic (or scalar), by step and then by subject."""

    name: str
    kind: str
    subjects: Sequence[str]
    steps: NDArray[np.int64]
    columns: NDArray[np.intp]
    """Which of `subjects` each value belongs to."""
    values: NDArray[np.float64] | NDArray[np.uint64]
    """Counts and hashes exactly, everything else as float64."""
    states: NDArray[np.uint8]


def _recorded(run: Run, stats: Sequence[Stat], tick: Tick) -> Iterator[RecordedValues]:
    """Scalars first, then each statistic; wide ones as `name[0]`, `name[1]`, …"""
    total = len(stats) + 1
    for name, values in run.scalars.items():
        rows = np.flatnonzero(~np.isnan(values))
        first = np.zeros(len(rows), np.intp)
        measured = np.zeros(len(rows), np.uint8)
        yield RecordedValues(name, "scalar", [""], run.steps[rows], first, values[rows], measured)
    tick(1 / total)
    for number, stat in enumerate(stats, start=2):
        yield from _recorded_stat(run, stat)
        tick(number / total)


def _recorded_stat(run: Run, stat: Stat) -> Iterator[RecordedValues]:
    item = entry(stat)
    states = run.state(stat)
    rows, columns = np.nonzero(states != State.NOT_SAMPLED)
    steps, states = run.steps[rows], states[rows, columns]
    subjects = [subject.name for subject in run.by_kind[item.kind]]
    table = run.integers(stat) if item.dtype == "<u8" and item.width == 1 else run.series[stat]
    cells = table[rows, columns]
    parts = [(str(stat), cells)]
    if item.width > 1:
        parts = [(f"{stat}[{part}]", cells[:, part]) for part in range(item.width)]
    for name, values in parts:
        yield RecordedValues(name, str(item.kind), subjects, steps, columns, values, states)


def write_csv(
    run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick, *, exact_names: bool = False
) -> None:
    """One line per recorded value. A cell without a number is empty; its state says why."""
    file.write(HEAD.encode())
    for series in _recorded(run, stats, tick):
        for begin in range(0, len(series.steps), _LINES):
            lines = _csv_lines(series, slice(begin, begin + _LINES), exact_names)
            file.write("".join(lines).encode("utf-8", "backslashreplace"))


def _csv_lines(series: RecordedValues, part: slice, exact: bool) -> list[str]:
    names = [quoted(name, exact) for name in series.subjects]
    kind, statistic = quoted(series.kind, exact), quoted(series.name, exact)
    cells = zip(
        series.steps[part].tolist(),
        series.columns[part].tolist(),
        series.values[part].tolist(),
        series.states[part].tolist(),
        strict=True,
    )
    return [
        f"{step},{kind},{names[column]},{statistic},"
        f'{repr(value) if HAS_VALUE[state] else ""},"{_STATES[state]}"\r\n'
        for step, column, value, state in cells
    ]


def quoted(text: str, exact: bool = False) -> str:
    """A text cell, with an apostrophe before what a spreadsheet would run unless `exact`."""
    if not exact and text.startswith(_RUNS_AS_FORMULA):
        text = f"'{text}"
    return '"' + text.replace('"', '""').replace("\0", "\\0") + '"'


def write_parquet(run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick) -> None:
    """The table of the CSV, with exact counts beside; one row group per statistic."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise GradwatchError(
            "Parquet needs pyarrow, which is not installed. "
            "Install it (`pip install gradwatch[parquet]`), or export to .csv or .json.",
            Exit.USAGE,
        ) from None
    schema = arrow.schema(
        [
            ("step", arrow.int64()),
            ("kind", arrow.string()),
            ("name", arrow.string()),
            ("statistic", arrow.string()),
            ("value", arrow.float64()),
            ("whole", arrow.uint64()),
            ("state", arrow.string()),
        ]
    )
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for series in _recorded(run, stats, tick):
            if len(series.steps):
                writer.write_table(_arrow_table(arrow, schema, series))


def _arrow_table(arrow: Any, schema: Any, series: RecordedValues) -> Any:
    count = len(series.steps)
    without = ~HAS_VALUE[series.states]
    exact = series.values.dtype == np.uint64
    columns = [
        arrow.array(series.steps),
        arrow.array([series.kind] * count),
        _repeated(arrow, series.subjects, series.columns),
        arrow.array([series.name] * count),
        arrow.array(series.values.astype(np.float64), mask=without),
        arrow.array(series.values, mask=without) if exact else arrow.nulls(count, arrow.uint64()),
        _repeated(arrow, _STATES, series.states),
    ]
    return arrow.Table.from_arrays(columns, schema=schema)


def _repeated(arrow: Any, words: Sequence[str], index: Any) -> Any:
    clean = [word.encode("utf-8", "backslashreplace").decode() for word in words]
    return arrow.array(clean, arrow.string()).take(arrow.array(index.astype(np.int64)))


# -- JSON ------------------------------------------------------------------------------------------


def write_json(run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick) -> None:
    """One object; each series is written as it is read, so memory holds one at a time.

    NaN and the infinities are spelled as in `gradwatch.jsonio`; null is "no value".
    """
    file.write(f'{{"format":{JSON_FORMAT}'.encode())
    for name, value in _front(run).items():
        file.write(f",{_json(name)}:{_json(value)}".encode())
    file.write(b',"series":{')
    for number, stat in enumerate(stats):
        comma = "," if number else ""
        file.write(f"{comma}{_json(str(stat))}:{_json(_series(run, stat))}".encode())
        tick((number + 1) / len(stats))
    file.write(b"}}\n")


def _front(run: Run) -> dict[str, Any]:
    return {
        "name": run.info.get("name", ""),
        "info": dict(run.info),
        "steps": run.steps.tolist(),
        "subjects": [subject.to_dict() for subject in run.subjects],
        "scalars": {name: _logged(values) for name, values in run.scalars.items()},
        "events": [
            {
                "step": event.step,
                "kind": str(event.kind),
                "text": event.text,
                "subject": event.subject,
                "data": dict(event.data),
                "wall": event.wall,
                "rank": event.rank,
            }
            for event in run.events
        ],
        "graph": run.graph.to_dict(),
    }


def _series(run: Run, stat: Stat) -> dict[str, Any]:
    exact = entry(stat).dtype == "<u8"
    table = (run.integers(stat) if exact else run.series[stat]).tolist()
    values = [
        [value if there else None for value, there in zip(row, mask, strict=True)]
        for row, mask in zip(table, run.measured(stat).tolist(), strict=True)
    ]
    return {"kind": str(entry(stat).kind), "values": values, "states": run.state(stat).tolist()}


def _logged(values: NDArray[np.float64]) -> list[Any]:
    """A scalar that was not logged is null; nobody can tell it from a logged NaN, which is too."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _json(value: Any) -> str:
    return dumps(value, ascii_only=True)
