"""In which order signals left their usual range when a run lost its stability."""

import numpy as np

from gradwatch.checks.facts import Facts, facts
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
    known = facts(run)
    if not shaky or known.loss is None:
        return ()
    centre = min(shaky)
    found: list[Onset] = []
    for stat, word in SIGNALS:
        found.extend(_of(run, known, stat, word, centre, times, before))
    found.extend(_of_loss(known, centre, times, before))
    found.sort(key=lambda onset: (onset.step, -onset.factor))
    return tuple(found[:most])


def _of(
    run: Run, known: Facts, stat: Stat, word: str, centre: int, times: float, before: int
) -> list[Onset]:
    """The earliest two layers of one signal."""
    rows = known.rows(stat)
    steps = known.steps[rows]
    usual = rows[steps < centre - before][-60:]
    near = rows[(steps >= centre - before) & (steps <= centre + 10)]
    if len(usual) < 10 or not len(near):
        return []
    base = medians(known.values(stat, usual))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(known.values(stat, near) / base, posinf=0.0)
    if entry(stat).kind is Kind.PARAMETER:
        ratio[:, ~known.weights] = 0.0
    high = ratio > times
    columns = np.flatnonzero(high.any(axis=0))
    first = high.argmax(axis=0)
    columns = columns[np.argsort(first[columns], kind="stable")][:2]
    names = run.by_kind[entry(stat).kind]
    return [
        Onset(
            int(known.steps[near[first[c]]]),
            word,
            names[c].layer or names[c].name,
            float(ratio[first[c], c]),
        )
        for c in columns
    ]


def _of_loss(known: Facts, centre: int, times: float, before: int) -> list[Onset]:
    loss = known.loss
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
