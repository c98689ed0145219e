"""Copies of one weight on different ranks are no longer equal.

What is seen: ranks that hold the same piece of a parameter had equal weight hashes, and
from some step on one of them has another. A hash differs as soon as a single bit does.

Why it hurts: data-parallel ranks average the gradients of models that are no longer the
same model; the loss drifts and checkpoints depend on who wrote them.

What helps: a look at what that rank does alone: a random number, a skipped step, a
parameter changed under `if rank == 0`, a buffer that is not broadcast, a faulty machine.

Threshold: none, equality is exact. Ranks that never were equal train models of their own on
purpose, as far as one can tell; that is only mentioned.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.stats import Kind, Stat
from gradwatch.text import several

NAME = "replica-divergence"
NEEDS = frozenset({Stat.WEIGHT_HASH})

Holder = tuple[int, Run, int]
"""Rank, the run of that rank alone, the column of the parameter there."""


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first step on which copies of a parameter differ, and who holds the odd ones."""

    step: int
    parameter: str
    layer: str
    ranks: tuple[int, ...]
    was_equal: bool


def check(run: Run) -> Outcome:
    """Yield one finding: the first parameter and step that left, and the rank it left on."""
    if len(run.ranks) < 2:
        return  # one copy cannot differ from itself
    differences = sorted(_differences(run), key=lambda difference: difference.step)
    if not differences:
        return
    first = differences[0]
    layers = tuple(dict.fromkeys(d.layer for d in differences if d.step == first.step))
    who = f"rank {first.ranks[0]}" if len(first.ranks) == 1 else f"ranks {list(first.ranks)}"
    since = (
        "differs from the others since" if first.was_equal else "never equalled the others, from"
    )
    yield finding(
        NAME,
        Severity.CRITICAL if first.was_equal else Severity.INFO,
        layers,
        (first.step, run.steps[-1]),
        f"the copy of {first.parameter} on {who} {since} step {first.step}",
        Evidence(Stat.WEIGHT_HASH, first.parameter, first.step, len(first.ranks), 0.0),
        cause=f"Something changed {several(layers)} on {who} and nowhere else.",
        advice=(
            f"Look for code that runs on {who} only, before step {first.step}.",
            "Seed what must be equal on all ranks; broadcast buffers.",
            "If one machine keeps leaving, test its memory.",
        ),
    )


def _differences(run: Run) -> list[FirstDifference]:
    """Per piece of a parameter: its copies' hashes on the steps that all of them recorded."""
    copies: dict[tuple[str, object], list[Holder]] = {}
    for rank, part in run.ranks.items():
        if Stat.WEIGHT_HASH not in part.recorded:
            continue
        for column, subject in enumerate(part.by_kind[Kind.PARAMETER]):
            place = subject.placement
            piece = (place.offset, place.shape) if place else None
            copies.setdefault((subject.name, piece), []).append((rank, part, column))
    differences = [_first_difference(name, holders) for (name, _), holders in copies.items()]
    return [difference for difference in differences if difference is not None]


def _first_difference(name: str, holders: list[Holder]) -> FirstDifference | None:
    steps, table = _common(holders)
    unequal = np.flatnonzero((table != table[0]).any(axis=0))
    if not len(unequal):
        return None
    at = int(unequal[0])
    hashes = table[:, at].tolist()
    # with a tie the lowest rank is believed: it wrote the checkpoint
    usual, _ = max(Counter(hashes).items(), key=lambda item: (item[1], item[0] == hashes[0]))
    odd = tuple(rank for (rank, _, _), value in zip(holders, hashes, strict=True) if value != usual)
    layer = holders[0][1].by_kind[Kind.PARAMETER][holders[0][2]].layer
    return FirstDifference(int(steps[at]), name, layer, odd, was_equal=at > 0)


def _common(holders: list[Holder]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Steps on which every holder measured the weight, and their hashes [holder, step]."""
    measured = [part.measured(Stat.WEIGHT_HASH)[:, column] for _, part, column in holders]
    steps = holders[0][1].steps[measured[0]]
    for (_, part, _), mask in zip(holders[1:], measured[1:], strict=True):
        steps = np.intersect1d(steps, part.steps[mask])
    rows = [
        part.integers(Stat.WEIGHT_HASH)[np.searchsorted(part.steps, steps), column]
        for _, part, column in holders
    ]
    return steps, np.stack(rows)
