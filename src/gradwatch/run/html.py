"""A run as a small piece of HTML for notebooks: static, no script, every name escaped."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwatch.text import markup

if TYPE_CHECKING:
    from gradwatch.run.run import Run

WIDTH, HEIGHT, POINTS = 240, 40, 120


def as_html(run: "Run") -> str:
    """Name, size, what was recorded, and the loss as a line."""
    name = markup(str(run.info.get("name", "run in memory")), 80)
    families = sorted({str(stat).partition("_")[0] for stat in run.recorded})
    rows = [
        ("steps", f"{len(run.steps)}{_range(run)}"),
        ("layers, parameters", f"{len(run.layers)}, {len(run.names)}"),
        ("recorded", ", ".join(families) or "nothing"),
        ("scalars", ", ".join(markup(name, 60) for name in sorted(run.scalars)[:12]) or "none"),
    ]
    cells = "".join(
        f'<tr><th style="text-align:left">{key}</th><td style="text-align:left">{text}</td></tr>'
        for key, text in rows
    )
    return f"<div><b>{name}</b><table>{cells}</table>{_loss(run)}</div>"


def _range(run: "Run") -> str:
    return f" ({run.steps[0]} to {run.steps[-1]})" if len(run.steps) else ""


def _loss(run: "Run") -> str:
    if "loss" not in run.scalars or not len(run.steps):
        return ""
    last = run.window(points=POINTS).scalar("loss").last[:, 0].tolist()
    known = [value for value in last if math.isfinite(value)]
    if len(known) < 2:
        return ""
    told = f"loss from {known[0]:.3g} to {known[-1]:.3g}"
    return (
        f'<figure style="margin:4px 0"><svg width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<polyline fill="none" stroke="#1f6f8b" points="{_points(last, known)}"/>'
        f"</svg><figcaption>{told}</figcaption></figure>"
    )


def _points(values: Sequence[float], known: Sequence[float]) -> str:
    low, span = min(known), (max(known) - min(known)) or 1.0
    step = WIDTH / max(len(values) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{HEIGHT - 2 - (value - low) / span * (HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
        if math.isfinite(value)
    )
