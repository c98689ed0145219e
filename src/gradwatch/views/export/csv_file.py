"""CSV: every text quoted, nothing a spreadsheet would run, numbers as numbers."""

from collections.abc import Sequence
from typing import BinaryIO

from gradwatch.run import Run
from gradwatch.stats import Stat, State
from gradwatch.views.export.cells import Cells, Tick, all_cells

HEAD = "step,kind,name,statistic,value,state\r\n"
_RUNS_AS_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")
_WORDS = {int(state): state.name.lower() for state in State}
_LINES = 20_000


def write_csv(
    run: Run, stats: Sequence[Stat], file: BinaryIO, tick: Tick, *, exact_names: bool = False
) -> None:
    """One line per recorded value. A cell without a number is empty; its state says why."""
    file.write(HEAD.encode())
    for cells in all_cells(run, stats, tick):
        for begin in range(0, len(cells.steps), _LINES):
            lines = _lines(cells, begin, begin + _LINES, exact_names)
            file.write("".join(lines).encode("utf-8", "backslashreplace"))


def _lines(cells: Cells, begin: int, end: int, exact: bool) -> list[str]:
    names = [quoted(name, exact) for name in cells.subjects]
    kind, statistic = quoted(cells.kind, exact), quoted(cells.name, exact)
    pieces = zip(
        cells.steps[begin:end].tolist(),
        cells.columns[begin:end].tolist(),
        cells.values[begin:end].tolist(),
        cells.states[begin:end].tolist(),
        strict=True,
    )
    return [
        f"{step},{kind},{names[column]},{statistic},"
        f'{repr(value) if State(state).has_value else ""},"{_WORDS[state]}"\r\n'
        for step, column, value, state in pieces
    ]


def quoted(text: str, exact: bool = False) -> str:
    """A text cell, with an apostrophe before what a spreadsheet would run unless `exact`."""
    if not exact and text.startswith(_RUNS_AS_FORMULA):
        text = f"'{text}"
    return '"' + text.replace('"', '""').replace("\0", "\\0") + '"'
