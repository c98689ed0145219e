"""A run on the terminal: health, findings, curves, the map of layers over steps, two tables.

Everything is lines of rich text, the same for one look and for following a run. Every colour has a
character that says the same without it.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from gradwatch.run import Run
from gradwatch.stats.medians import medians
from gradwatch.text import cut, named, number, plain, several
from gradwatch.views.console import PROSE
from gradwatch.views.model import ViewModel
from gradwatch.views.model.heat import LEVELS, Code, LevelScale, codes_of, decoded, row_of
from gradwatch.views.model.layers import worst_first
from gradwatch.views.model.ranks import rank_rows
from gradwatch.views.model.titles import GRAD_RMS
from gradwatch.views.tables import FittedTable, fitted

STYLES = {
    "healthy": "bold green",
    "notes": "bold cyan",
    "sick": "bold red",
    "info": "bold cyan",
    "warning": "bold yellow",
    "critical": "bold red",
    "unknown": "bold",
}
SIGNS = {
    "healthy": "✓",
    "notes": "i",
    "sick": "✗",
    "info": "i",
    "warning": "▲",
    "critical": "✗",
    "unknown": "?",
}
MOST_FINDINGS = 8
MOST_ROWS = 24
"""More layers than that are grouped into blocks."""
RANK_CURVE = 20
"""Characters of the loss curve of a rank."""
BLOCKS = " ░▒▓█"
BARS = "▁▂▃▄▅▆▇█"
OTHER = {
    Code.EMPTY: ("·", "dim"),
    Code.ZERO: ("0", "bright_black"),
    Code.NO_GRADIENT: ("–", "bright_black"),
    Code.NONFINITE: ("!", "bold white on red"),
}
MEANINGS = {
    Code.EMPTY: "not measured",
    Code.ZERO: "exactly zero",
    Code.NO_GRADIENT: "no gradient",
    Code.NONFINITE: "NaN or Inf",
}
RAMP = ("#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
"""From low to high: dark to light and blue to yellow, so that colour-blind eyes read it too."""


def screen(
    model: ViewModel, width: int, *, stat: str | None = None, layers: str | None = None
) -> list[Text]:
    """Health, findings, curves, and the map of a statistic for the layers that match a pattern."""
    lines = [_health(model, width)]
    for finding in model.findings[:MOST_FINDINGS]:
        lines += _finding(finding, width)
    if len(model.findings) > MOST_FINDINGS:
        more = len(model.findings) - MOST_FINDINGS
        lines.append(Text(f"… and {more} more: gradwatch diagnose", style="dim"))
    curves = _curves(model, width)
    if curves:
        lines += [Text(), *curves]
    maps = model.heat["maps"]
    name = stat or next(iter(maps), GRAD_RMS)
    if name in maps:
        return [*lines, Text(), *heatmap(model, name, width, layers)]
    why = "could not be read" if name in model.heat["left_out"] else "was not recorded"
    return [*lines, Text(), Text(f"{name} {why} in these steps", style="dim")]


def _health(model: ViewModel, width: int) -> Text:
    health = model.health
    state = health["state"]
    text = Text(f"{SIGNS[state]} {state}", style=STYLES[state])
    text.append(f"  {fitted(model.run['name'], width - text.cell_len - 2)}", style="bold default")
    line = plain(health["line"])
    rest = f"  {line}"
    if text.cell_len + len(rest) > width:
        rest = f"\n{_filled(line, width, '  ')}"
    return text.append(rest, "not bold default")


def _finding(finding: dict[str, Any], width: int) -> list[Text]:
    """What, where, since when and what to try; a note in one line, as `gradwatch diagnose` does."""
    if finding["severity"] == "info":
        head = Text("note     ", style=STYLES["info"])
        said = cut(f"{finding['check']}: {finding['message']}", min(width, PROSE[1]) - len(head))
        return [head.append(said, style="not bold default")]
    head = Text(f"{finding['severity']:<8} ", style=STYLES[finding["severity"]])
    head.append(fitted(finding["check"], width - len(head)), style="bold default")
    margin, rest = " " * 9, f"since step {finding['first_step']}"
    if finding["layers"]:
        rest = f"{_where(finding['layers'], width - len(margin) - len(rest) - 2)}  {rest}"
    fits = head.cell_len + 2 + cell_len(rest) <= width
    lines = [head.append(f"  {rest}" if fits else f"\n{margin}{rest}", style="not bold default")]
    for mark, text in [("", finding["message"]), *(("try: ", a) for a in finding["advice"][:1])]:
        filled = _filled(plain(mark + text), width, margin)
        lines.append(Text(filled, style="default" if not mark else "dim"))
    return lines


def _where(layers: Sequence[str], room: int) -> str:
    """As many of the layers as fit, up to three; of the first as much as fits."""
    names = [plain(named(layer)) for layer in layers]
    for shown in (3, 2, 1):
        if cell_len(where := several(names, shown)) <= room:
            return where
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return fitted(names[0], room - len(more)) + more


def _filled(text: str, width: int, margin: str) -> str:
    width = min(width, PROSE[1])
    return textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin)


def _curves(model: ViewModel, width: int) -> list[Text]:
    """Loss, gradient and update ratio, each in one line with its first and last value."""
    lines = []
    curves = [(curve, points) for curve in _chosen(model) if (points := curve.points)]
    ends = [f" {number(points[-1][1])}{_early_end(model, points[-1][0])}" for _, points in curves]
    titles = max((len(curve.title) for curve, _ in curves), default=0)
    first, last = model.window
    room = max(min(width - titles - 10 - max([9, *map(len, ends)]), last - first + 1), 8)
    for (curve, points), ended in zip(curves, ends, strict=True):
        text = Text(f"{curve.title:<{titles}} {number(points[0][1]):>8} ")
        drawn = on_one_axis(curve.steps, curve.values, model.window, room)
        text.append(sparkline(drawn, room, curve.log).ljust(room), style="cyan")
        text.append(ended)
        lines.append(text)
    return lines


@dataclass(frozen=True, slots=True)
class _Curve:
    title: str
    steps: Sequence[int]
    values: Sequence[float | None]
    log: bool

    @property
    def points(self) -> list[tuple[int, float]]:
        """Step and value, where there is one."""
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if value is not None]


def _chosen(model: ViewModel) -> Iterator[_Curve]:
    for item in model.scalars:
        if item["name"] in ("loss", "val_loss"):
            yield _Curve(item["title"], item["x"], item["last"], item["log"])
    if GRAD_RMS in model.heat["maps"]:
        codes, scale = codes_of(model.heat, GRAD_RMS)
        mains = [layer["main"] for layer in model.layers if layer["main"] is not None]
        if codes.size and mains:
            columns = model.heat["maps"][GRAD_RMS]["columns"]
            steps = [model.heat["last"][column] for column in columns]
            middle = medians(decoded(codes[mains], scale)).tolist()
            yield _Curve(
                "gradient", steps, [None if math.isnan(value) else value for value in middle], True
            )
    if model.updates:
        yield _Curve("update/weight", model.updates["x"], model.updates["median"], True)


def _early_end(model: ViewModel, step: int) -> str:
    """Where the last finite value is, if the run went on for long after it."""
    first, last = model.window
    return f" (step {step})" if last - step > max(2, (last - first) // 10) else ""


# -- the map ---------------------------------------------------------------------------------------


def heatmap(model: ViewModel, name: str, width: int, pattern: str | None) -> list[Text]:
    """Title, one line per layer or block (worst first), and the steps under it."""
    codes, scale = codes_of(model.heat, name)
    lines = _rows(model, name, codes, pattern)
    if not lines:
        return [Text(f"no layer matches {pattern!r}" if pattern else "no layer has this series")]
    steps = max(codes.shape[1], 8)
    room = max(width - 10 - steps, width // 3)  # names may take what the map leaves
    names = min(max(cell_len(plain(title)) for title, _ in lines), room)
    columns = min(width - names - 10, steps)
    drawn = model.heat["maps"][name]
    head = _title(drawn, scale, len(lines), len(model.layers))
    out = [*head.wrap(Console(width=width), width)]
    for title, part in lines:
        line = Text(label(title, names) + " ")
        line.append_text(row(squeezed(part[None, :], columns)[0]))
        line.append(" " * (columns - min(len(part), columns)) + " " + _latest(part, scale).rjust(8))
        out.append(line)
    out.append(_axis(model, drawn, names, columns))
    return out + _key(np.concatenate([squeezed(part[None, :], columns)[0] for _, part in lines]))


def _key(codes: NDArray[np.uint8]) -> list[Text]:
    """What the signs of this map mean that are no level; those that do not occur are left out."""
    words = [f"{sign} {MEANINGS[code]}" for code, (sign, _) in OTHER.items() if code in codes]
    return [Text("   ".join(words[at : at + 2]), style="dim") for at in range(0, len(words), 2)]


def _rows(
    model: ViewModel, name: str, codes: NDArray[np.uint8], pattern: str | None
) -> list[tuple[str, NDArray[np.uint8]]]:
    chosen = [
        (index, at)
        for index in worst_first([layer["badness"] for layer in model.layers])
        if (at := row_of(model.heat["maps"][name], model.layers[index])) is not None
        and (pattern is None or _matches(model.layers[index]["name"], pattern))
    ]
    if len(chosen) <= MOST_ROWS:
        return [(model.layers[index]["name"], codes[at]) for index, at in chosen]
    return _blocks(model, codes, chosen)[: MOST_ROWS * 2]


def _blocks(
    model: ViewModel, codes: NDArray[np.uint8], chosen: Sequence[tuple[int, int]]
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Blocks in the order of their worst layer; a cell shows the highest of its layers."""
    groups: dict[str, list[int]] = {}
    single: dict[str, str] = {}
    for index, at in chosen:
        layer = model.layers[index]
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


def _latest(part: NDArray[np.uint8], scale: LevelScale) -> str:
    there = part[part != Code.EMPTY]
    if not len(there):
        return ""
    if there[-1] == Code.NONFINITE:
        return "nan/inf"
    if there[-1] == Code.NO_GRADIENT:
        return "no grad"
    return number(float(decoded(there[-1:], scale)[0]))


def _title(drawn: dict[str, Any], scale: LevelScale, rows: int, layers: int) -> Text:
    text = Text(drawn["title"], style="bold")
    kind = "log scale" if scale.log else "linear"
    text.append(f", {kind} {number(scale.low)} '{BLOCKS}' {number(scale.high)}", style="not bold")
    if rows < layers:
        text.append(f"  ({rows} rows of {layers} layers)", style="dim not bold")
    return text


def _axis(model: ViewModel, drawn: dict[str, Any], names: int, columns: int) -> Text:
    left = f"step {model.heat['first'][drawn['columns'][0]]}"
    right = str(model.heat["last"][drawn["columns"][-1]])
    room = min(len(drawn["columns"]), columns) - len(left)
    return Text(" " * (names + 1) + left + right.rjust(max(room, len(right) + 1)), style="dim")


# -- characters ------------------------------------------------------------------------------------


def cell(code: int) -> tuple[str, str]:
    """Character and style of one byte of a map."""
    for special, drawn in OTHER.items():
        if code == special:
            return drawn
    level = (code - Code.LOWEST) / LEVELS
    block = BLOCKS[min(int(level * len(BLOCKS)), len(BLOCKS) - 1)]
    return block, RAMP[min(int(level * len(RAMP)), len(RAMP) - 1)]


def row(codes: NDArray[np.uint8]) -> Text:
    """One row of a map."""
    text = Text()
    drawn = [cell(int(code)) for code in codes]
    for style, run in groupby(drawn, key=lambda pair: pair[1]):
        text.append("".join(character for character, _ in run), style)
    return text


def squeezed(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """[row, column] in at most `width` columns; of those that fall together the highest byte stays.

    The order of the bytes makes that right: non-finite over everything, a level over a gap.
    """
    count = codes.shape[1]
    if count <= width:
        return codes
    starts = np.unique(np.linspace(0, count, width, endpoint=False).astype(int))
    highest: NDArray[np.uint8] = np.maximum.reduceat(codes, starts, axis=1)
    return highest


def on_one_axis(
    steps: Sequence[int], values: Sequence[float | None], window: Sequence[int], width: int
) -> list[float | None]:
    """The curve on the steps of `window`, so that lines under one another share their time axis.

    A column shows the highest value in it, one between two points the earlier of them.
    """
    first, last = window
    count = max(1, min(width, last - first + 1))
    columns: list[float | None] = [None] * count
    seen: dict[int, float | None] = {}
    for step, value in zip(steps, values, strict=True):
        column = min((step - first) * count // (last - first + 1), count - 1)
        other = seen.get(column)
        seen[column] = value if other is None or (value is not None and value > other) else other
    held: float | None = None
    for column in range(min(seen, default=0), max(seen, default=-1) + 1):
        held = seen.get(column, held)
        columns[column] = held
    return columns


def sparkline(values: Sequence[float | None], width: int, log: bool) -> str:
    """A curve in one line; gaps stay gaps, and a bucket shows its highest value."""
    numbers = np.array([np.nan if value is None else value for value in values], float)
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            numbers = np.where(numbers > 0, np.log(numbers), np.nan)
    if len(numbers) > width:
        starts = np.unique(np.linspace(0, len(numbers), width, endpoint=False).astype(int))
        numbers = np.fmax.reduceat(numbers, starts)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return ""
    low, span = float(finite.min()), float(finite.max() - finite.min())
    return "".join(
        " " if not np.isfinite(value) else BARS[int((value - low) / span * 7) if span else 0]
        for value in numbers
    )


def label(name: str, width: int) -> str:
    """A name in exactly `width` cells of the terminal, cut from the left."""
    return set_cell_size(fitted(name or "(model)", width), width)


# -- tables ----------------------------------------------------------------------------------------


def signals_table(model: ViewModel) -> FittedTable:
    """Name, what it belongs to, how often, what it means."""
    keys = ("name", "of", "cadence", "meaning")
    return FittedTable(
        ("signal", "of", "sampled", "meaning"),
        [[row[key] for key in keys] for row in model.signals],
        words=("of", "sampled"),
        prose="meaning",
        spare=("of",),
    )


def ranks_table(run: Run) -> FittedTable:
    """One row per rank; what is odd about one stands at its end."""
    rows = []
    for row in rank_rows(run):
        loss = run.ranks[row.rank].scalars.get("loss", ())
        finite = [float(value) for value in loss if math.isfinite(value)]
        cells = (
            str(row.rank),
            str(row.steps),
            _or_dash(row.values["loss"]),
            sparkline(finite, RANK_CURVE, log=False),
            *(_or_dash(row.values[name]) for name in ("input_rms", "activations", "step_ms")),
            ", ".join(row.notes),
        )
        rows.append(cells)
    return FittedTable(
        ("rank", "steps", "loss", "its curve", "input RMS", "activations", "ms/step", "remarks"),
        rows,
        names=0,
        words=("its curve",),
        prose="remarks",
        spare=("its curve", "activations", "input RMS"),
    )


def _or_dash(value: float) -> str:
    return "–" if math.isnan(value) else number(value)
