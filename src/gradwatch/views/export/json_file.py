"""Strict JSON that brings everything back: NaN and infinities as words, counts exactly."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gradwatch.errors import GradwatchError
from gradwatch.graph import Graph
from gradwatch.run import Event, EventKind, MemorySource, Run, Subject
from gradwatch.stats import Stat, entry
from gradwatch.views.export.cells import Tick

FORMAT = 1
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def write_json(run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick) -> None:
    """One object; each series is written as it is read, so memory holds one at a time."""
    file.write(f'{{"format":{FORMAT}'.encode())
    for name, value in _front(run).items():
        file.write(f",{_dumped(name)}:{_dumped(value)}".encode())
    file.write(b',"series":{')
    for number, stat in enumerate(stats):
        head = "," if number else ""
        file.write(f"{head}{_dumped(str(stat))}:{_dumped(_series(run, stat))}".encode())
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
    states = run.state(stat)
    measured = run.measured(stat)
    exact = entry(stat).dtype == "<u8"
    table = (run.integers(stat) if exact else run.series[stat]).tolist()
    values = [
        [value if there else None for value, there in zip(row, mask, strict=True)]
        for row, mask in zip(table, measured.tolist(), strict=True)
    ]
    return {"kind": str(entry(stat).kind), "values": values, "states": states.tolist()}


def _logged(values: NDArray[np.float64]) -> list[Any]:
    """A scalar that was not logged is null; nobody can tell it from a logged NaN, which is too."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return json.dumps(_worded(value), allow_nan=False, separators=(",", ":"))


def _worded(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _worded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_worded(item) for item in value]
    return value if isinstance(value, int | str | bool) or value is None else str(value)


def read_json(text: str | bytes) -> Run:
    """A run from what `write_json` wrote."""
    try:
        data = json.loads(text)
        return Run(_source(data))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise GradwatchError(
            f"Expected a run as `gradwatch export` writes it in JSON, but: {error!r}. "
            "Export it again."
        ) from None


def _source(data: Mapping[str, Any]) -> MemorySource:
    steps = np.array(data["steps"], np.int64)
    values, states, exact = {}, {}, {}
    for word, table in data["series"].items():
        stat = Stat(word)
        width = entry(stat).width
        states[stat] = np.array(table["states"], np.uint8).reshape(len(steps), -1)
        shape = states[stat].shape if width == 1 else (*states[stat].shape, width)
        filled = np.full(shape, np.nan)
        whole = np.zeros(states[stat].shape, np.uint64)
        for row, line in enumerate(table["values"]):
            for column, cell in enumerate(line):
                if cell is None:
                    continue
                filled[row, column] = _number(cell) if width == 1 else [_number(c) for c in cell]
                if isinstance(cell, int) and cell >= 0:
                    whole[row, column] = cell
        values[stat] = filled
        if entry(stat).dtype == "<u8":
            exact[stat] = whole
    return MemorySource(
        steps,
        tuple(Subject.from_dict(item) for item in data["subjects"]),
        values,
        states,
        exact,
        {
            name: np.array([math.nan if v is None else _number(v) for v in listed])
            for name, listed in data["scalars"].items()
        },
        tuple(Event(**{**item, "kind": EventKind(item["kind"])}) for item in data["events"]),
        Graph.from_dict(data["graph"]),
        data["info"],
    )


def _number(cell: Any) -> float:
    return _WORDS[cell] if isinstance(cell, str) else float(cell)
