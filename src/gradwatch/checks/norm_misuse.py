"""A BatchNorm layer trains in evaluation mode.

What is seen: a BatchNorm whose gain is trainable was in evaluation mode on at least `share`
of the training steps, so that its running statistics never changed. With a frozen gain this
is deliberate (fine-tuning).

Why it hurts: the layer uses statistics of other data (or 0 and 1 from its making); nothing
is normalised.

What helps: `model.train()` before the training loop and after each validation.

Threshold: 90 % of steps.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat
from gradwatch.text import percent, several

NAME = "norm-misuse"
NEEDS = frozenset({Stat.PROBE_TRAINING})


def check(run: Run, *, share: float = 0.9, least: int = 3) -> Outcome:
    """Yield one finding for all BatchNorm layers in the wrong mode."""
    ctx = context(run)
    gains = {p.layer for p in ctx.parameters if "BatchNorm" in p.module and not p.frozen}
    rows = ctx.rows(Stat.PROBE_TRAINING)
    if not gains or len(rows) < least:
        return
    values = ctx.values(Stat.PROBE_TRAINING, rows)
    resting = {
        subject.name: float((column[np.isfinite(column)] == 0).mean())
        for subject, column in zip(run.by_kind[Kind.LAYER], values.T, strict=True)
        if subject.name in gains and np.isfinite(column).sum() >= least
    }
    order = ctx.forward_order
    layers = sorted(
        (name for name, often in resting.items() if often >= share),
        key=lambda name: order.get(name, 1 << 30),
    )
    if not layers:
        return
    first, last = int(run.steps[rows[0]]), int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING,
        layers=tuple(layers[:8]),
        first_step=first,
        last_step=last,
        message=(
            f"{several(layers)} {'was' if len(layers) == 1 else 'were'} in evaluation mode on "
            f"{percent(resting[layers[0]])} of training steps"
        ),
        evidence=(Evidence(Stat.PROBE_TRAINING, layers[0], last, 0.0, share),),
        cause="The model was put into eval() and not back.",
        advice=("Call model.train() before the loop and after each validation.",),
    )
