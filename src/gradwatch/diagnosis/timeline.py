"""In which order signals left their usual range when a run lost its stability."""

import numpy as np

from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.curve import Curve
from gradwatch.diagnosis.diagnosis import Onset
from gradwatch.finding import Finding
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat, entry

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
    findings = [root, *root.consequences]
    unstable = [finding.first_step for finding in findings if finding.check in UNSTABLE]
    ctx = context(run)
    if not unstable or ctx.loss is None:
        return ()
    first, last = min(unstable) - before, min(unstable) + 10
    onsets: list[Onset] = []
    for stat, word in SIGNALS:
        onsets += _of_layers(ctx, stat, word, first, last, times)
    onsets += _of_loss(ctx.loss, first, last, times)
    onsets.sort(key=lambda onset: (onset.step, -onset.factor))
    return tuple(onsets[:most])


def _of_layers(
    ctx: CheckContext, stat: Stat, word: str, first_step: int, last_step: int, times: float
) -> list[Onset]:
    """The earliest two layers of one signal."""
    compared = ctx.beside_usual(stat, first_step, last_step, window=60, least=10)
    if compared is None:
        return []
    near, usual = compared
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(ctx.values(stat, near) / usual, posinf=0.0)
    if entry(stat).kind is Kind.PARAMETER:
        ratio[:, ~ctx.weights] = 0.0
    high = ratio > times
    columns = np.flatnonzero(high.any(axis=0))
    first = high.argmax(axis=0)
    columns = columns[np.argsort(first[columns], kind="stable")][:2]
    subjects = ctx.run.by_kind[entry(stat).kind]
    names = [subject.layer or subject.name for subject in subjects]
    return [
        Onset(int(ctx.steps[near[first[c]]]), word, names[c], float(ratio[first[c], c]))
        for c in columns
    ]


def _of_loss(loss: Curve, first_step: int, last_step: int, times: float) -> list[Onset]:
    before = loss.values[loss.steps < first_step][-60:]
    usual = float(np.median(before)) if len(before) >= 10 else 0.0
    if usual <= 0:
        return []
    near = (loss.steps >= first_step) & (loss.steps <= last_step)
    ratio = loss.values / usual
    high = np.flatnonzero(near & (ratio > times))[:1]
    return [Onset(int(loss.steps[i]), "loss", "", float(ratio[i])) for i in high]
