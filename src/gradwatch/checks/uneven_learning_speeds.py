"""Layers learn at speeds that differ by orders of magnitude.

What is seen: the medians of ‖update‖ ÷ ‖weight‖ differ by more than `times` between the
fastest and the slowest weight that move at all.

Why it hurts: the fast layers chase what the slow ones do not deliver. Often wanted
(discriminative rates, fine-tuning), so it is only mentioned.

What helps: Adam instead of SGD, normalisation, learning rates per group.

Threshold: 1,000; in one trial of each healthy family of the zoo the largest was 36.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context
from gradwatch.text import number

NAME = "uneven-learning-speeds"
NEEDS = frozenset({Stat.UPDATE_RATIO})


def check(run: Run, *, times: float = 1e3, least: int = 8) -> Outcome:
    """Yield one information that names the slowest layer first, then the fastest."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_RATIO)
    if len(rows) < least:
        return
    speeds = ctx.late(Stat.UPDATE_RATIO, 1.0)
    columns = np.flatnonzero(ctx.weights & (np.nan_to_num(speeds) > 0))
    if len(columns) < 2:
        return
    slow, fast = columns[speeds[columns].argmin()], columns[speeds[columns].argmax()]
    ratio = speeds[fast] / speeds[slow]
    if ratio <= times:
        return
    limit = speeds[fast] / times
    yield finding(
        NAME,
        Severity.INFO,
        ctx.layers([slow, fast]),
        ctx.steps[rows],
        f"{run.names[fast]} moves {number(ratio)} times as fast as {run.names[slow]} "
        f"({number(speeds[slow])} of its norm per step)",
        Evidence(Stat.UPDATE_RATIO, run.names[slow], ctx.steps[rows[-1]], speeds[slow], limit),
        cause="Their gradients or learning rates differ by as much.",
        advice=("Use Adam, or learning rates per group.",),
    )
