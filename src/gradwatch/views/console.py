"""The terminal that commands write to: how wide it is, and whether it wants colours."""

import os
import shutil
from typing import TYPE_CHECKING, Any

import click

from gradwatch.jsonio import dumps

if TYPE_CHECKING:  # completing a word after Tab must not wait for rich
    from rich.console import Console

NARROWEST = 40
PROSE = (60, 120)
"""Lines of sentences are no narrower and no wider, however wide the terminal is."""


def terminal_width() -> int:
    """Columns for tables and maps: of the terminal, or what COLUMNS says; 80 without a terminal."""
    return max(shutil.get_terminal_size((80, 24)).columns, NARROWEST)


def prose_width() -> int:
    """Columns for sentences."""
    narrowest, widest = PROSE
    return min(max(terminal_width(), narrowest), widest)


def coloured() -> bool | None:
    """What NO_COLOR, FORCE_COLOR and TERM ask for; None: colours if it is a terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def print_json(value: Any, *, indent: int | None = None) -> None:
    """What `--json` says: ASCII, so that no character of a name reaches a terminal as it is."""
    click.echo(dumps(value, indent=indent, ascii_only=True))


def console() -> "Console":
    """Standard output as rich writes it: as wide and as colourful as it should be."""
    from rich.console import Console

    return Console(
        highlight=False,
        width=terminal_width(),
        color_system=None if coloured() is False else "auto",
    )
