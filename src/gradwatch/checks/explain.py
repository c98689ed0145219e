"""A check's page: its docstring, its settings and what the zoo measured of it."""

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

from gradwatch.checks.bearable import bearable
from gradwatch.checks.check import Check


def summary(check: Check) -> str:
    """The first line of a check's documentation."""
    return body(check).partition("\n")[0]


def text(check: Check) -> str:
    """A check's whole page in plain text."""
    lines = (settings(check), bearable(check.NAME), measured(check.NAME))
    return "\n".join((check.NAME, "", body(check), "", *filter(None, lines)))


def body(check: Check) -> str:
    """What is seen, why it hurts, what helps: the docstring."""
    return inspect.cleandoc(check.__doc__ or "")


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
    row = _figures()["checks"].get(name)
    if row is None:
        return ""
    alarms, hits, sick = row
    line = (
        f"Measured on the zoo: a warning in {alarms} of {_figures()['healthy_runs']} healthy runs"
    )
    return f"{line}; found in {hits} of {sick} runs that have it." if sick else f"{line}."


@cache
def _figures() -> dict[str, Any]:
    """Written by `gradwatch zoo score --figures`.

    For each check: healthy runs with a warning, sick runs found, sick runs that have the fault.
    """
    figures: dict[str, Any] = json.loads(Path(__file__).with_name("figures.json").read_text())
    return figures
