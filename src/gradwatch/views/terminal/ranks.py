"""What should differ between ranks, side by side: loss, input scale, activations, step time."""

import math

from rich.table import Table

from gradwatch.run import Run
from gradwatch.text import number
from gradwatch.views.model.ranks import rank_rows
from gradwatch.views.terminal.glyphs import sparkline

CURVE = 20


def ranks_table(run: Run) -> Table:
    """One row per rank; what is odd about one stands at its end."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("input RMS", justify="right")
    table.add_column("activations", justify="right")
    table.add_column("ms/step", justify="right")
    table.add_column("")
    for row in rank_rows(run):
        loss = run.ranks[row.rank].scalars.get("loss", ())
        known = [float(value) for value in loss if math.isfinite(value)]
        table.add_row(
            str(row.rank),
            str(row.steps),
            _said(row.values["loss"]),
            sparkline(known, CURVE, log=False),
            *(_said(row.values[name]) for name in ("input_rms", "activations", "step_ms")),
            ", ".join(row.notes),
        )
    return table


def _said(value: float) -> str:
    return "–" if math.isnan(value) else number(value)
