"""A check's page: its docstring, its settings, what the zoo measured, a program that has it."""

import inspect
import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gradwatch.checks.bearable import bearable
from gradwatch.checks.check import Check

WIDTH = 80


class PagePart(NamedTuple):
    """A part of the page that keeps its lines."""

    heading: str
    language: str
    lines: str


def summary(check: Check) -> str:
    """The first line of a check's documentation."""
    return body(check).partition("\n")[0]


def text(check: Check) -> str:
    """A check's whole page in plain text."""
    shown = [f"{block.heading}\n\n{block.lines}" for block in blocks(check.NAME)]
    ending = textwrap.fill(after(check.NAME), WIDTH)
    parts = [check.NAME, body(check), facts(check), *shown, ending]
    return "\n\n".join(filter(None, parts))


def body(check: Check) -> str:
    """What is seen, why it hurts, what helps: the docstring."""
    return inspect.cleandoc(check.__doc__ or "")


def facts(check: Check) -> str:
    """Settings, what a training bears, and what the zoo measured: a line each."""
    lines = (settings(check), bearable(check.NAME), measured(check.NAME))
    return "\n".join(filter(None, lines))


def settings(check: Check) -> str:
    """The thresholds and their defaults, read off the signature."""
    keywords = [
        f"{name}={value.default}"
        for name, value in inspect.signature(check.check).parameters.items()
        if value.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return f"Settings: {', '.join(keywords)}." if keywords else "Settings: none."


def measured(name: str) -> str:
    """False alarms and hits on the zoo's reported half, kept beside this module."""
    row = _beside("figures.json")["checks"].get(name)
    if row is None:
        return ""
    alarms, hits, sick = row
    healthy = _beside("figures.json")["healthy_runs"]
    line = f"Measured on the zoo: a warning in {alarms} of {healthy} healthy runs"
    return f"{line}; found in {hits} of {sick} runs that have it." if sick else f"{line}."


def blocks(name: str) -> tuple[PagePart, ...]:
    """A program that has the fault, what is said of it, and the fix; empty where none is kept."""
    page = _beside("pages.json").get(name)
    if page is None:
        return ()
    return (
        PagePart("A program that has it:", "python", page["program"]),
        PagePart("What gradwatch says:", "text", page["says"]),
        PagePart("The fix:", "diff", page["fix"]),
    )


def after(name: str) -> str:
    """What the mended program gives; empty where none is kept."""
    return str(_beside("pages.json").get(name, {}).get("after", ""))


@cache
def _beside(file: str) -> dict[str, Any]:
    """A file beside this one.

    `figures.json` is written by `gradwatch zoo score --figures`; for each check: healthy runs with
    a warning, sick runs found, sick runs that have the fault. `pages.json` is written by
    `python -m tools.gallery`, from real runs of the programs in `docs/gallery/programs`.
    """
    kept: dict[str, Any] = json.loads(Path(__file__).with_name(file).read_text("utf-8"))
    return kept
