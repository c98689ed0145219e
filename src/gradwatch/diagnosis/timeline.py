"""In which order signals left their usual range when a run lost its stability."""

import numpy as np

from gradwatch.checks.context import CheckContext, context
from gradwatch.diagnosis.diagnosis import Onset
from gradwatch.finding import Finding
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat, entry
from gradwatch.stats.medians import medians

UNSTABLE = frozenset(
    {"loss-spike", "divergence", "nonfinite", "exploding-gradient", "gradient-spikes"}
)
SIGNALS = ((Stat.UPDATE_NORM, "update"), (Stat.GRAD_NORM, "gradient"), (Stat.ACT_STD, "outputs"))


def timeline(
    run: Run, root: Finding | None, *, times: float = 2.0, before: int = 40, most: int = 8
) -> tuple[Onset, ...]:
    """For an unstable run: the first steps at which layers left `times` their usual size."""
    if root is None:
        return ()
    checks = [root, *root.consequences]
    shaky = [item.first_step for item in checks if item.check in UNSTABLE]
    ctx = context(run)
    if not shaky or ctx.loss is None:
        return ()
    centre = min(shaky)
    found: list[Onset] = []
    for stat, word in SIGNALS:
        found.extend(_of(run, ctx, stat, word, centre, times, before))
    found.extend(_of_loss(ctx, centre, times, before))
    found.sort(key=lambda onset: (onset.step, -onset.factor))
    return tuple(found[:most])


def _of(
    run: Run, ctx: CheckContext, stat: Stat, word: str, centre: int, times: float, before: int
) -> list[Onset]:
    """The earliest two layers of one signal."""
    rows = ctx.rows(stat)
    steps = ctx.steps[rows]
    usual = rows[steps < centre - before][-60:]
    near = rows[(steps >= centre - before) & (steps <= centre + 10)]
    if len(usual) < 10 or not len(near):
        return []
    base = medians(ctx.values(stat, usual))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(ctx.values(stat, near) / base, posinf=0.0)
    if entry(stat).kind is Kind.PARAMETER:
        ratio[:, ~ctx.weights] = 0.0
    high = ratio > times
    columns = np.flatnonzero(high.any(axis=0))
    first = high.argmax(axis=0)
    columns = columns[np.argsort(first[columns], kind="stable")][:2]
    names = run.by_kind[entry(stat).kind]
    return [
        Onset(
            int(ctx.steps[near[first[c]]]),
            word,
            names[c].layer or names[c].name,
            float(ratio[first[c], c]),
        )
        for c in columns
    ]


def _of_loss(ctx: CheckContext, centre: int, times: float, before: int) -> list[Onset]:
    loss = ctx.loss
    assert loss is not None
    usual = loss.values[loss.steps < centre - before][-60:]
    near = np.flatnonzero((loss.steps >= centre - before) & (loss.steps <= centre + 10))
    if len(usual) < 10 or not len(near) or float(np.median(usual)) <= 0:
        return []
    ratio = loss.values[near] / float(np.median(usual))
    high = np.flatnonzero(ratio > times)
    if not len(high):
        return []
    return [Onset(int(loss.steps[near[high[0]]]), "loss", "", float(ratio[high[0]]))]
