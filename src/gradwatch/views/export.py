"""A run's numbers for other tools: CSV, strict JSON, Parquet, TensorBoard.

CSV and Parquet are one long table, a row for every value that was recorded. JSON holds each series
as a table of steps and subjects. TensorBoard's event files are written without TensorBoard: a list
of records, each with its length and two masked CRC-32C sums, which hold one `Event` message of
tensorflow/core/util/event.proto; the few fields needed are encoded here.
"""

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import Exit, GradwatchError
from gradwatch.files import make_folder, write_whole
from gradwatch.jsonio import dumps
from gradwatch.run import Histogram, Run
from gradwatch.stats import HAS_VALUE, Family, Stat, State

JSON_FORMAT = 1
HEAD = "step,kind,name,statistic,value,state\r\n"
Tick = Callable[[float], None]
"""Told the share that is done, from 0 to 1."""
_RUNS_AS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")
_STATES = [state.name.lower() for state in sorted(State)]
_LINES = 20_000
"""Lines of CSV put together before they are written."""


def exported(run: Run, wanted: Sequence[Stat] = ()) -> list[Stat]:
    """The statistics to write: those asked for, or all."""
    return [*wanted] or [*run.series]


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
    """Scalars first, then each statistic."""
    total = len(stats) + 1
    for name, values in run.scalars.items():
        rows = np.flatnonzero(~np.isnan(values))
        first = np.zeros(len(rows), np.intp)
        measured = np.zeros(len(rows), np.uint8)
        yield RecordedValues(name, "scalar", [""], run.steps[rows], first, values[rows], measured)
    tick(1 / total)
    for number, stat in enumerate(stats, start=2):
        yield _recorded_stat(run, stat)
        tick(number / total)


def _recorded_stat(run: Run, stat: Stat) -> RecordedValues:
    sampled = run.sampled(stat)
    states = run.states_at(stat, sampled)
    rows, columns = np.nonzero(states != State.NOT_SAMPLED)
    states, rows = states[rows, columns], sampled[rows]
    steps, subjects = run.steps[rows], [subject.name for subject in run.by_kind[stat.kind]]
    exact = stat.dtype == "<u8"
    values = run.integers(stat)[rows, columns] if exact else run.at(stat, rows, columns)
    return RecordedValues(str(stat), str(stat.kind), subjects, steps, columns, values, states)


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
            "Install it (`pip install pyarrow`), or export to .csv or .json.",
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
    exact = stat.dtype == "<u8"
    table = (run.integers(stat) if exact else run.series[stat]).tolist()
    values = [
        [value if there else None for value, there in zip(row, mask, strict=True)]
        for row, mask in zip(table, run.measured(stat).tolist(), strict=True)
    ]
    return {"kind": str(stat.kind), "values": values, "states": run.state(stat).tolist()}


def _logged(values: NDArray[np.float64]) -> list[Any]:
    """A scalar that was not logged is null; nobody can tell it from a logged NaN, which is too."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _json(value: Any) -> str:
    return dumps(value, ascii_only=True)


STATS = (Stat.GRAD_NORM, Stat.WEIGHT_NORM, Stat.UPDATE_RATIO)
HISTOGRAMS = (Family.GRAD, Family.WEIGHT)


def write_tensorboard(run: Run, folder: Path) -> Path:
    """Write one event file into `folder`; refuses a folder that already holds event files."""
    make_folder(folder)
    if any(folder.glob("*tfevents*")):
        raise GradwatchError(
            f"{folder} already holds event files; name another folder, or remove them.", Exit.USAGE
        )
    # the name must hold "tfevents" for TensorBoard to see it
    path = folder / f"events.out.tfevents.{int(time.time())}.gradwatch"
    write_whole(path, lambda file: file.writelines(map(_record, _events(run))))
    return path


def _events(run: Run) -> Iterator[bytes]:
    yield _double(1, 0.0) + _bytes(3, b"brain.Event:2")
    for name, values in run.scalars.items():
        yield from _scalars(name, run.steps.tolist(), values.tolist())
    for stat in STATS:
        if stat in run.recorded:
            for column, name in enumerate(run.names):
                yield from _scalars(
                    f"{stat}/{name}", run.steps.tolist(), run.series[stat][:, column].tolist()
                )
    for family in HISTOGRAMS:
        for name in run.names:
            yield from _histograms(f"{family}/{name}", run.histograms(family, name))


def _scalars(tag: str, steps: Iterable[int], values: Iterable[float]) -> Iterator[bytes]:
    head = _bytes(1, tag.encode("utf-8", "backslashreplace"))
    for step, value in zip(steps, values, strict=True):
        if value == value:  # NaN here means "not recorded"
            with np.errstate(over="ignore"):
                single = float(np.float32(value))
            yield _event(step, head + _tag(2, 5) + struct.pack("<f", single))


def _histograms(tag: str, by_step: Mapping[int, Histogram]) -> Iterator[bytes]:
    head = _bytes(1, tag.encode("utf-8", "backslashreplace"))
    for step, histogram in by_step.items():
        yield _event(step, head + _bytes(5, _proto(histogram)))


def _proto(histogram: Histogram) -> bytes:
    """Bins by their right edges, from the most negative to the most positive; zeros between."""
    edges, counts = _bins(histogram)
    centres = np.concatenate([[edges[0]], (edges[1:] + edges[:-1]) / 2])
    total = float((counts * centres).sum())
    squares = float((counts * centres**2).sum())
    filled = np.flatnonzero(counts)
    low = edges[max(int(filled[0]) - 1, 0)] if len(filled) else 0.0
    high = edges[int(filled[-1])] if len(filled) else 0.0
    head = b"".join(
        _double(field, value)
        for field, value in enumerate((low, high, float(counts.sum()), total, squares), start=1)
    )
    return (
        head + _bytes(6, edges.astype("<f8").tobytes()) + _bytes(7, counts.astype("<f8").tobytes())
    )


def _bins(histogram: Histogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    exponents = histogram.first_exponent + np.arange(len(histogram.positive))
    size = np.ldexp(1.0, exponents)
    tiny = size[0] if len(size) else 1.0
    edges = np.concatenate([-size[::-1], [tiny / 2], 2 * size])
    # a bin's right edge: −2^e for the negative bins, 2^(e+1) for the positive ones
    counts = np.concatenate(
        [histogram.negative[::-1], [histogram.zeros], histogram.positive]
    ).astype(float)
    return edges, counts


def _event(step: int, value: bytes) -> bytes:
    return _double(1, 0.0) + _tag(2, 0) + _varint(step) + _bytes(5, _bytes(1, value))


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """CRC-32C, turned and shifted as the format asks, so that sums of sums stay useful."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of the bytes, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    rows = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


_TABLE = _table()
