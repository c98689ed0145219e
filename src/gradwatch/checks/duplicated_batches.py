"""The same batch comes again and again.

What is seen: a fingerprint of each step's inputs (shapes, types and some of the bits; nothing
of the data is kept). On at least `share` of the steps it is the one of the step before. That
every epoch has the same batches in the same order is an information.

Why it hurts: a second step on the same batch teaches little that is new, so that half or
more of the training is spent on a part of the data, which it overfits.

What helps: look at the loop around the loader: a batch fetched once and used by an inner
loop, an iterator made anew for every step, workers that draw with the same seed.

Threshold: half of the steps. One batch on all of them is full-batch training, which is
meant. Where a reward is logged or the loss goes below zero, several steps on one batch are
usual (policy gradients), and only mentioned.
"""

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context
from gradwatch.checks.logged import REWARD, words
from gradwatch.stats.medians import Array
from gradwatch.text import percent

NAME = "duplicated-batches"
NEEDS = frozenset({"batch_fingerprint"})


def check(run: Run, *, share: float = 0.5, least: int = 10) -> Outcome:
    """Yield a finding for the whole run."""
    rows = np.flatnonzero(np.isfinite(run.scalars["batch_fingerprint"]))
    prints, steps = run.scalars["batch_fingerprint"][rows], run.steps[rows]
    different = len(np.unique(prints))
    neighbours = np.diff(steps) == 1
    if neighbours.sum() < least or different == 1:
        return
    again = neighbours & (np.diff(prints) == 0)
    often = float(again.sum() / neighbours.sum())
    if often < share:
        yield from _same_order(prints, steps)
        return
    loss = context(run).loss
    policy = any(words(name) & REWARD for name in run.scalars)
    several_steps = policy or (loss is not None and loss.values.min() < 0)
    yield finding(
        NAME,
        Severity.INFO if several_steps else Severity.WARNING,
        (),
        steps[1:][again],
        f"on {percent(often)} of the steps the whole batch is, bit for bit, the one of the step "
        f"before: {different:,} different batches on {len(steps):,} steps that were looked at",
        Evidence("batch_fingerprint", None, steps[1:][again][0], often, share),
        cause="The loop or the loader hands out each batch more than once.",
        advice=(
            "Look where the loop takes its batch: once per step, from one iterator that goes on.",
            "Give the workers of the loader different seeds.",
            "watcher.log(batch=ids) shows which samples come again.",
        ),
    )


def _same_order(prints: Array, steps: NDArray[np.int64]) -> Outcome:
    """Each batch comes again after the same number of steps, at least twice round."""
    last: dict[float, int] = {}
    lags = []
    for fingerprint, step in zip(prints.tolist(), steps.tolist(), strict=True):
        lags.append(step - last.get(fingerprint, step))
        last[fingerprint] = step
    repeated = np.array(lags)[np.array(lags) > 0]
    if not len(repeated):
        return
    epoch = int(np.median(repeated))
    span = steps[-1] - steps[0] + 1
    later = int((steps - steps[0] >= epoch).sum())
    if epoch < 2 or span < 2 * epoch or (repeated == epoch).sum() < 0.9 * later:
        return
    yield finding(
        NAME,
        Severity.INFO,
        (),
        steps[steps - steps[0] >= epoch],
        f"every {epoch:,} steps the same batches come in the same order",
        Evidence("batch_fingerprint", None, steps[0] + epoch, epoch, None),
        cause="The data are not shuffled between epochs.",
        advice=("Shuffle: DataLoader(..., shuffle=True).",),
    )
