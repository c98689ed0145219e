"""The table of what was recorded."""

from typing import Any

from rich.table import Table


def signals_table(model: dict[str, Any]) -> Table:
    """Name, what it belongs to, how often, what it means."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("signal", "of", "sampled", "meaning"):
        table.add_column(title, no_wrap=title == "signal", overflow="fold")
    for row in model["signals"]:
        table.add_row(row["name"], row["of"], row["cadence"], row["meaning"])
    return table
