"""What should differ between ranks, side by side: loss, input scale, activations, step time."""

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.views.terminal.glyphs import sparkline
from gradwatch.views.text import number

CURVE = 20


def ranks_table(run: Run) -> Table:
    """One row per rank; the slowest one is marked where it stands out."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("rank", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("input RMS", justify="right")
    table.add_column("activations", justify="right")
    table.add_column("ms/step", justify="right")
    table.add_column("")
    times = {rank: _middle(_scalar(own, "step_seconds")) for rank, own in run.ranks.items()}
    usual = _middle(np.array(list(times.values())))
    for rank, own in run.ranks.items():
        loss = _scalar(own, "loss")
        curve = sparkline([float(v) for v in loss], CURVE, log=False) if len(loss) else ""
        table.add_row(
            str(rank),
            str(len(own.steps)),
            number(float(loss[-1])) if len(loss) else "–",
            curve,
            _said(_middle(_scalar(own, "input_rms"))),
            _said(_activations(own)),
            _said(1e3 * times[rank]),
            "slow" if times[rank] > 1.5 * usual else "",
        )
    return table


def _scalar(run: Run, name: str) -> NDArray[np.float64]:
    values = run.scalars.get(name, np.empty(0))
    return values[np.isfinite(values)]


def _middle(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _activations(run: Run) -> float:
    """Median standard deviation of the layers' outputs, last recorded step."""
    if Stat.ACT_STD not in run.recorded:
        return float("nan")
    spread = run.series[Stat.ACT_STD]
    rows = np.flatnonzero(np.isfinite(spread).any(axis=1))
    return _middle(spread[rows[-1]]) if len(rows) else float("nan")


def _said(value: float) -> str:
    return "–" if np.isnan(value) else number(value)
