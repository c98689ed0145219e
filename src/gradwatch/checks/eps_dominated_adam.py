"""Adam's ε is larger than the gradients, so its steps shrink with them.

What is seen: for most weights, more than `share` of the coordinates have √v̂ < ε over the
second half, while the loss is far from gone.

Why it hurts: Adam's step is about the learning rate whatever the gradient's size, but only
while √v̂ is larger than ε. Below, the step is proportional to the gradient and soon too
small to matter.

What helps: a smaller ε (1e-8 or less; OLMo 2 went from 1e-5 to 1e-8), a loss that is not
scaled down, a larger gradient (summed instead of averaged over tokens).

Threshold: half of the coordinates of half of the weights.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import percent, several

NAME = "eps-dominated-adam"
NEEDS = frozenset({Stat.OPTIM_EPS_FRACTION})


def check(run: Run, *, share: float = 0.5, moved: float = 0.3, least: int = 8) -> Outcome:
    """Yield one finding; a warning only where the loss has hardly moved."""
    ctx = context(run)
    rows = ctx.rows(Stat.OPTIM_EPS_FRACTION)
    judged = ctx.weights & ~ctx.embeddings
    if len(rows) < least or not judged.any():
        return
    late = np.where(judged, np.nan_to_num(ctx.late(Stat.OPTIM_EPS_FRACTION, 0.5)), 0.0)
    columns = np.flatnonzero(late > share)
    if len(columns) < 0.5 * judged.sum():
        return
    loss = ctx.loss
    hindered = loss is not None and len(loss) >= 30 and loss.progress < moved
    columns = columns[np.argsort(-late[columns], kind="stable")]
    layers, worst = ctx.layers(columns), int(columns[0])
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if hindered else Severity.INFO,
        layers=layers[:8],
        first_step=int(run.steps[rows[0]]),
        last_step=last,
        message=f"{percent(float(late[worst]))} of {run.names[worst]} has √v̂ < ε",
        evidence=(
            Evidence(Stat.OPTIM_EPS_FRACTION, run.names[worst], last, float(late[worst]), share),
        ),
        cause=f"The gradients of {several(layers)} are smaller than Adam's ε.",
        advice=("Lower eps to 1e-8 or less.", "Do not divide the loss by more than the batch."),
    )
