"""A few elements carry almost the whole gradient.

What is seen: the excess kurtosis of a weight's gradient above `kurtosis` over the second
half. Embeddings, whose gradients are sparse by nature, are left out.

Why it hurts: clipping and SGD react to the few, Adam's moments of the others are noise.
Common in language models with rare tokens, so it is only mentioned.

What helps: clipping by value or per layer, Adam instead of SGD, a larger batch.

Threshold: 1,000 (a Gaussian has 0).
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number, several

NAME = "heavy-tailed-gradients"
NEEDS = frozenset({Stat.GRAD_KURTOSIS})


def check(run: Run, *, kurtosis: float = 1000.0, least: int = 20) -> Outcome:
    """Yield one information for all heavy-tailed weights."""
    ctx = context(run)
    rows = ctx.rows(Stat.GRAD_KURTOSIS)
    if len(rows) < least:
        return
    judged = ctx.weights & ~ctx.embeddings
    late = np.where(judged, np.nan_to_num(ctx.late(Stat.GRAD_KURTOSIS, 0.5)), 0.0)
    columns = np.flatnonzero(late > kurtosis)
    if not len(columns):
        return
    columns = columns[np.argsort(-late[columns], kind="stable")]
    layers, worst = ctx.layers(columns), int(columns[0])
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.INFO,
        layers=layers[:8],
        first_step=int(run.steps[rows[len(rows) // 2]]),
        last_step=last,
        message=f"the gradient of {run.names[worst]} has kurtosis {number(float(late[worst]))}",
        evidence=(
            Evidence(Stat.GRAD_KURTOSIS, run.names[worst], last, float(late[worst]), kurtosis),
        ),
        cause=f"A few elements of {several(layers)} carry almost all of the gradient.",
        advice=("Clip per layer or by value.", "Use Adam and a larger batch."),
    )
