"""What should differ between ranks and how far it does: loss, inputs, activations, step time.

Merged series hide a rank that departs. Here every rank has its own row; for each quantity the
lowest, median and highest rank are named, and who is farthest from the median. Whether that is too
far is for the checks to say.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.diagnosis import Diagnosis
from gradwatch.finding import Finding
from gradwatch.run import Run
from gradwatch.run.downsample import downsample
from gradwatch.stats import Stat
from gradwatch.stats.medians import medians
from gradwatch.views.model.titles import numbers, rounded

MOST_ROWS = 64
"""Ranks listed; of more, those with a note and those farthest from the median loss come first."""
MOST_VALUES = 20_000_000
"""Losses (steps × ranks) compared step by step, and activations loaded for all ranks together."""
POINTS = 240
SLOW = 1.5
"""A rank is called slow from this multiple of the median rank's step time on."""
REPLICA_CHECK = "replica-divergence"
TITLES = {
    "loss": "loss, last",
    "input_rms": "input RMS",
    "activations": "activation std",
    "step_ms": "ms per step",
}


@dataclass(frozen=True)
class RankRow:
    """One rank: what it measured for itself, and what is odd about its data."""

    rank: int
    steps: int
    values: Mapping[str, float]
    """NaN where it has none."""
    notes: tuple[str, ...]


def ranks(run: Run, diagnosis: Diagnosis | None, first: int, last: int) -> dict[str, Any] | None:
    """None for a run of one process."""
    if len(run.ranks) < 2:
        return None
    rows = rank_rows(run)
    far = {name: _spread(rows, name) for name in TITLES}
    listed = _listed(rows, far["loss"])
    return {
        "count": len(rows),
        "rows": [
            {
                "rank": row.rank,
                "steps": row.steps,
                "values": {name: rounded(value) for name, value in row.values.items()},
                "notes": list(row.notes),
            }
            for row in listed
        ],
        "titles": TITLES,
        "spread": [spread for spread in far.values() if spread],
        "departures": [f.message for f in _all(diagnosis) if f.check == REPLICA_CHECK],
        "loss": _loss(run, far["loss"], first, last),
    }


def rank_rows(run: Run) -> list[RankRow]:
    """Every rank, in order."""
    values = {rank: _values(rank_run, len(run.ranks)) for rank, rank_run in run.ranks.items()}
    usual = float(medians(np.array([row["step_ms"] for row in values.values()])))
    logged = any(math.isfinite(row["loss"]) for row in values.values())
    closed = any(rank_run.info.get("complete") for rank_run in run.ranks.values())
    rows = []
    for rank, rank_run in run.ranks.items():
        notes = _missing(run, rank_run)
        if logged and not math.isfinite(values[rank]["loss"]):
            notes.append("no finite loss")
        if closed and not rank_run.info.get("complete"):
            notes.append("not closed")
        if values[rank]["step_ms"] > SLOW * usual:
            notes.append("slow")
        rows.append(RankRow(rank, len(rank_run.steps), values[rank], tuple(notes)))
    return rows


def _values(rank_run: Run, ranks: int) -> dict[str, float]:
    loss = _scalar(rank_run, "loss")
    return {
        "loss": float(loss[-1]) if len(loss) else math.nan,
        "input_rms": float(medians(_scalar(rank_run, "input_rms"))),
        "activations": _activations(rank_run, ranks),
        "step_ms": 1e3 * float(medians(_scalar(rank_run, "step_seconds"))),
    }


def _missing(run: Run, rank_run: Run) -> list[str]:
    """Steps that other ranks have and this one does not."""
    if not len(rank_run.steps):
        return ["no steps"]
    begin, end = int(rank_run.steps[0]), int(rank_run.steps[-1])
    notes = []
    if begin > run.steps[0]:
        notes.append(f"begins at step {begin}")
    if end < run.steps[-1]:
        notes.append(f"ends at step {end}")
    between = int(((run.steps >= begin) & (run.steps <= end)).sum()) - len(rank_run.steps)
    if between > 0:
        notes.append(f"{between} steps missing between")
    return notes


def _spread(rows: Sequence[RankRow], name: str) -> dict[str, Any] | None:
    pairs = [(row.values[name], row.rank) for row in rows if math.isfinite(row.values[name])]
    if len(pairs) < 2:
        return None
    middle = float(medians(np.array([value for value, _ in pairs])))
    (low, lowest), (high, highest) = min(pairs), max(pairs)
    far = max(pairs, key=lambda pair: (abs(pair[0] - middle), -pair[1]))
    return {
        "name": name,
        "title": TITLES[name],
        "lowest": rounded(low),
        "lowest_rank": lowest,
        "median": rounded(middle),
        "highest": rounded(high),
        "highest_rank": highest,
        "farthest_rank": far[1] if low != high else None,
    }


def _listed(rows: Sequence[RankRow], loss: dict[str, Any] | None) -> list[RankRow]:
    if len(rows) <= MOST_ROWS:
        return list(rows)
    middle = loss["median"] if loss else 0.0

    def interest(row: RankRow) -> tuple[bool, float]:
        away = abs(row.values["loss"] - middle)
        return bool(row.notes), away if math.isfinite(away) else 0.0

    kept = sorted(rows, key=interest, reverse=True)[:MOST_ROWS]
    return sorted(kept, key=lambda row: row.rank)


def _loss(run: Run, spread: dict[str, Any] | None, first: int, last: int) -> dict[str, Any] | None:
    """Lowest, median and highest loss among the ranks at each step, and that of the farthest."""
    if spread is None or len(run.steps) * len(run.ranks) > MOST_VALUES:
        return None
    table = np.full((len(run.steps), len(run.ranks)), np.nan)
    for column, rank_run in enumerate(run.ranks.values()):
        if "loss" in rank_run.scalars:
            table[np.searchsorted(run.steps, rank_run.steps), column] = rank_run.scalars["loss"]
    table[~np.isfinite(table)] = np.nan
    keep = ~np.isnan(table).all(axis=1) & (run.steps >= first) & (run.steps <= last)
    if not keep.any():
        return None
    steps, table = run.steps[keep], table[keep]
    far = spread["farthest_rank"]
    own_loss = (
        table[:, list(run.ranks).index(far)] if far is not None else np.full(len(table), np.nan)
    )
    four = np.stack([np.nanmin(table, 1), medians(table.T), np.nanmax(table, 1), own_loss], axis=1)
    buckets = downsample(steps, four, first, last, POINTS)
    return {
        "x": buckets.last_steps.tolist(),
        "lowest": numbers(buckets.low[:, 0]),
        "median": numbers(buckets.last[:, 1]),
        "highest": numbers(buckets.high[:, 2]),
        "farthest_rank": far,
        "farthest": numbers(buckets.last[:, 3]),
    }


def _all(diagnosis: Diagnosis | None) -> list[Finding]:
    findings = list(diagnosis.findings) if diagnosis else []
    return findings + [after for finding in findings for after in finding.consequences]


def _scalar(run: Run, name: str) -> NDArray[np.float64]:
    values = run.scalars.get(name, np.empty(0))
    return values[np.isfinite(values)]


def _activations(run: Run, ranks: int) -> float:
    """Median standard deviation of the layers' outputs, last recorded step."""
    large = len(run.steps) * len(run.layers) * ranks > MOST_VALUES
    if Stat.ACT_STD not in run.recorded or large:
        return math.nan
    spread = run.at(Stat.ACT_STD, run.sampled(Stat.ACT_STD))
    spread = spread[np.isfinite(spread).any(axis=1)]
    return float(medians(spread[-1])) if len(spread) else math.nan
