"""Layers learn at speeds that differ by orders of magnitude.

What is seen: the medians of ‖update‖ ÷ ‖weight‖ differ by more than `times` between the
fastest and the slowest weight that move at all.

Why it hurts: the fast layers chase what the slow ones do not deliver. Often wanted
(discriminative rates, fine-tuning), so it is only mentioned.

What helps: Adam instead of SGD, normalisation, learning rates per group.

Threshold: 1,000; in one trial of each healthy family of the zoo the largest was 36.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.text import number

NAME = "uneven-learning-speeds"
NEEDS = frozenset({Stat.UPDATE_RATIO})


def check(run: Run, *, times: float = 1e3, least: int = 8) -> Outcome:
    """Yield one information that names the slowest layer first, then the fastest."""
    ctx = context(run)
    rows = ctx.rows(Stat.UPDATE_RATIO)
    if len(rows) < least:
        return
    typical = np.where(ctx.weights, ctx.whole(Stat.UPDATE_RATIO), np.nan)
    columns = np.flatnonzero(np.nan_to_num(typical) > 0)
    if len(columns) < 2:
        return
    slow = int(columns[typical[columns].argmin()])
    fast = int(columns[typical[columns].argmax()])
    ratio = float(typical[fast] / typical[slow])
    if ratio <= times:
        return
    last = int(run.steps[rows[-1]])
    yield Finding(
        check=NAME,
        severity=Severity.INFO,
        layers=ctx.layers([slow, fast]),
        first_step=int(run.steps[rows[0]]),
        last_step=last,
        message=(
            f"{run.names[fast]} moves {number(ratio)} times as fast as {run.names[slow]} "
            f"({number(float(typical[slow]))} of its norm per step)"
        ),
        evidence=(
            Evidence(
                Stat.UPDATE_RATIO,
                run.names[slow],
                last,
                float(typical[slow]),
                float(typical[fast] / times),
            ),
        ),
        cause="Their gradients or learning rates differ by as much.",
        advice=("Use Adam, or learning rates per group.",),
    )
