"""A weight is set anew after training began.

What is seen: between two steps a weight changes by something that is not the optimizer's update,
by at least `large` of its size, and rarely.

Why it hurts: what was learned or loaded is gone. It happens by an init function that runs again, a
checkpoint loaded in the middle of the loop, averaged weights copied back, a layer made anew; no
error is raised, and the loss starts over.

What helps: find what writes to the weights after the first step; initialise and load before the
loop, once.

Threshold: a quarter of the weight's norm; where weights change on more than `habit` of the steps
(clipped weights, projections), it is meant. Compared are up to 64 tensors of each optimizer before
each recorded step, of more by turns: seen is what happens right before such a step. Before the
first step it is an information, and where the training works and its loss did not rise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.text import listed, number, percent, several

NAME = "lost-initialisation"
NEEDS = frozenset({Stat.GRAD_NORM})
AROUND = 5
"""Losses before and after that are compared."""


def check(run: Run, *, large: float = 0.25, habit: float = 0.2, jump: float = 1.5) -> Outcome:
    """Yield one finding: of the whole run, or of the layers that were set anew."""
    ctx = context(run)
    changes = run.scalars.get("outside_change")
    if changes is None:
        if not run.info.get("weights_compared"):
            reason = "weights were not compared between steps: they are sharded, or on a device"
            yield Skipped(NAME, reason)
        return
    changed = np.nan_to_num(changes[: ctx.end]) > 0
    if not changed.any() or changed.sum() > max(1, habit * len(ctx.rows(Stat.GRAD_NORM))):
        return
    noted = [entry for entry in _entries(run) if entry["change"] >= large]
    later = [entry for entry in noted if entry["step"] > run.steps[0]]
    if not noted:
        return
    found = later or noted
    columns = [run.index(name) for name in _names(run, found)]
    whole = any(len(entry["names"]) == entry["compared"] > 1 for entry in found)
    steps, worst = [entry["step"] for entry in found], max(found, key=lambda e: float(e["change"]))
    before, after = _losses(ctx, steps[0])
    rose = after > jump * abs(before)
    works = outcome(ctx).learning >= Learning.WORKS
    layers = ctx.layers(columns)
    where = "the whole network" if whole else several(layers)
    when = f"step {listed(steps)}" if later else "the first step, after watch"
    loss = f"; the loss went from {number(before)} to {number(after)}" if rose else ""
    yield finding(
        NAME,
        Severity.WARNING if later and (rose or not works) else Severity.INFO,
        () if whole else layers,
        steps,
        f"{where} was set anew before {when}: {percent(min(float(worst['change']), 1.0))} of the "
        f"weights' norm changed, and not by the optimizer{loss}",
        Evidence("outside_change", None, worst["step"], worst["change"], large),
        cause="Something writes to the weights between two steps: an init function, "
        "load_state_dict, weights copied back.",
        advice=(
            f"Look for what runs between the steps {max(steps[0] - 1, 0)} and {steps[0]} and "
            "writes to parameters; initialise and load once, before the loop.",
            "Then outside_change is no longer recorded, and the loss goes on from where it was.",
        ),
        tensors=[] if whole else [run.names[column] for column in columns],
    )


def _entries(run: Run) -> Iterator[Mapping[str, Any]]:
    """What the recorder noted; files are not trusted."""
    noted = run.info.get("outside_changes")
    for entry in noted if isinstance(noted, list) else []:
        match entry:
            case {"step": int(), "change": int() | float(), "names": list(), "compared": int()}:
                yield entry


def _names(run: Run, entries: list[Mapping[str, Any]]) -> list[str]:
    known = set(run.names)
    return list(dict.fromkeys(n for entry in entries for n in entry["names"] if n in known))


def _losses(ctx: CheckContext, step: int) -> tuple[float, float]:
    """The typical loss of a few steps before this one and of a few from it on; NaN unknown."""
    if ctx.loss is None:
        return np.nan, np.nan
    before = ctx.loss.values[ctx.loss.steps < step][-AROUND:]
    after = ctx.loss.values[ctx.loss.steps >= step][:AROUND]
    if not len(before) or not len(after):
        return np.nan, np.nan
    return float(np.median(before)), float(np.median(after))
