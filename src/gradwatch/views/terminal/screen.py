"""The whole screen, as lines of rich text: the same for one look and for following a run."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from gradwatch.text import number, plain, shortened
from gradwatch.views.model.cells import decoded
from gradwatch.views.model.heat import codes_of
from gradwatch.views.model.titles import GRAD_RMS
from gradwatch.views.terminal.glyphs import on_one_axis, sparkline
from gradwatch.views.terminal.heatmap import heatmap

STYLES = {
    "healthy": "bold green",
    "info": "bold cyan",
    "warning": "bold yellow",
    "critical": "bold red",
    "unknown": "bold",
}
SIGNS = {"healthy": "✓", "info": "i", "warning": "▲", "critical": "✗", "unknown": "?"}
MOST_FINDINGS = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked to see."""

    stat: str | None = None
    layers: str | None = None


def screen(model: dict[str, Any], width: int, wanted: Wanted) -> list[Text]:
    """Health, findings, curves, map."""
    lines = [_health(model, width)]
    for finding in model["findings"][:MOST_FINDINGS]:
        lines += _finding(finding, width)
    if len(model["findings"]) > MOST_FINDINGS:
        more = len(model["findings"]) - MOST_FINDINGS
        lines.append(Text(f"… and {more} more: gradwatch diagnose", style="dim"))
    curves = _curves(model, width)
    if curves:
        lines += [Text(), *curves]
    maps = model["heat"]["maps"]
    name = wanted.stat or next(iter(maps), GRAD_RMS)
    if name in maps:
        return [*lines, Text(), *heatmap(model, name, width, wanted.layers)]
    return [*lines, Text(), Text(f"{name} was not recorded in these steps", style="dim")]


def _health(model: dict[str, Any], width: int) -> Text:
    health = model["health"]
    state = health["state"]
    text = Text(f"{SIGNS[state]} {state}", style=STYLES[state])
    text.append(f"  {shortened(model['run']['name'], max(width // 2, 20))}", style="bold default")
    rest = f"  {health['line']}"
    if len(text) + len(rest) > width:
        text.append(
            "\n" + textwrap.fill(rest.strip(), width, subsequent_indent="  "), "not bold default"
        )
    else:
        text.append(rest, "not bold default")
    return text


def _finding(finding: dict[str, Any], width: int) -> list[Text]:
    head = Text(f"{finding['severity']:<8} ", style=STYLES[finding["severity"]])
    head.append(plain(finding["check"]), style="bold default")
    where = ", ".join(plain(name) for name in finding["layers"][:3])
    if len(finding["layers"]) > 3:
        where += f" and {len(finding['layers']) - 3} more"
    since = f"since step {finding['first_step']}"
    head.append(f"  {where + '  ' if where else ''}{since}", style="not bold default")
    head.truncate(width, overflow="ellipsis")
    lines = [head]
    for mark, told in [("", finding["message"]), *(("try: ", a) for a in finding["advice"][:1])]:
        filled = textwrap.fill(
            plain(mark + told), width, initial_indent=" " * 9, subsequent_indent=" " * 9
        )
        lines.append(Text(filled, style="default" if not mark else "dim"))
    return lines


def _curves(model: dict[str, Any], width: int) -> list[Text]:
    """Loss, gradient and update ratio, each in one line with its first and last value."""
    lines = []
    curves = [(curve, known) for curve in _chosen(model) if (known := curve.known)]
    ends = [f" {number(known[-1][1])}{_early_end(model, known[-1][0])}" for _, known in curves]
    room = max(width - 23 - max([9, *map(len, ends)]), 8)
    for (curve, known), ended in zip(curves, ends, strict=True):
        text = Text(f"{curve.title[:13]:<13} {number(known[0][1]):>8} ")
        drawn = on_one_axis(curve.steps, curve.values, model["window"], room)
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
    def known(self) -> list[tuple[int, float]]:
        pairs = zip(self.steps, self.values, strict=True)
        return [(step, value) for step, value in pairs if value is not None]


def _chosen(model: dict[str, Any]) -> Iterator[_Curve]:
    for item in model["scalars"]:
        if item["name"] in ("loss", "val_loss"):
            yield _Curve(item["title"], item["x"], item["last"], item["log"])
    if GRAD_RMS in model["heat"]["maps"]:
        codes, scale = codes_of(model, GRAD_RMS)
        mains = [layer["main"] for layer in model["layers"] if layer["main"] is not None]
        columns = model["heat"]["maps"][GRAD_RMS]["columns"]
        if codes.size and mains:
            steps = [model["heat"]["last"][column] for column in columns]
            yield _Curve("gradient", steps, _median(decoded(codes[mains], scale)), True)
    if model["updates"]:
        yield _Curve("update/weight", model["updates"]["x"], model["updates"]["median"], True)


def _early_end(model: dict[str, Any], step: int) -> str:
    """Where the last finite value is, if the run went on for long after it."""
    first, last = model["window"]
    return f" (step {step})" if last - step > max(2, (last - first) // 10) else ""


def _median(values: Any) -> list[float | None]:
    """Median over layers per column."""
    out: list[float | None] = []
    for column in values.T:
        finite = column[np.isfinite(column)]
        out.append(float(np.median(finite)) if len(finite) else None)
    return out
