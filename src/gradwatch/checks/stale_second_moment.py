"""Adam's memory of the gradient is out of date just before the loss jumps.

What is seen: the RMS of g/√v̂ of a weight rises above `limit` (about one is usual) after
having been usual, at most ten steps before a loss spike or a rise of the loss; without such
a rise it is only mentioned.

Why it hurts: v remembers small gradients; when large ones come, the step is several times
too large. In transformers the embedding is usually first.

What helps: a lower β2 (0.95), update clipping (StableAdamW), gradient clipping, a lower
learning rate.

Threshold: 2.3, as published with StableAdamW (arXiv 2304.13013).
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.text import number

NAME = "stale-second-moment"
NEEDS = frozenset({Stat.OPTIM_RATIO_RMS})


def check(run: Run, *, limit: float = 2.3, lead: int = 10, settle: int = 20) -> Outcome:
    """Yield one finding for the first weight that passes the limit."""
    ctx = context(run)
    rows = ctx.rows(Stat.OPTIM_RATIO_RMS)
    rows = rows[ctx.steps[rows] >= settle]  # v̂ is young and noisy at first
    if len(rows) < 10:
        return
    ratios = ctx.values(Stat.OPTIM_RATIO_RMS, rows)
    if not (ratios > limit).any():  # the usual case, and it costs one look
        return
    values = np.where(ctx.weights, np.nan_to_num(ratios), 0.0)
    usual = np.median(values, axis=0)
    high = (values > limit) & (usual < limit / 1.5)
    if not high.any():
        return
    first = int(high.any(axis=1).argmax())
    column = int(np.where(high[first], values[first], 0.0).argmax())
    name, value = run.names[column], values[first, column]
    steps = ctx.steps[rows[high.any(axis=1)]]
    rises = _rises(ctx, lead, steps.tolist())
    yield finding(
        NAME,
        Severity.WARNING if rises else Severity.INFO,
        ctx.layers([column]),
        steps,
        f"the gradient of {name} is {number(value)} times the size that Adam remembers of it "
        f"at step {steps[0]} (limit {number(limit)}, about 1 is usual)"
        + ("; the loss rose after it" if rises else ""),
        Evidence(Stat.OPTIM_RATIO_RMS, name, steps[0], value, limit),
        cause="Adam's second moment had adapted to smaller gradients, so the step is too large.",
        advice=(
            "Lower β2 to 0.95. It helped if the loss no longer jumps.",
            "Clip updates (StableAdamW) or gradients.",
        ),
    )


def _rises(ctx: CheckContext, lead: int, steps: list[int]) -> bool:
    """Whether within `lead` steps of any of these the loss left its recent range."""
    loss = ctx.level
    if loss is None:
        return False
    for step in steps:
        before = loss.values[(loss.steps < step) & (loss.steps >= step - 60)]
        after = loss.values[(loss.steps >= step) & (loss.steps <= step + lead)]
        if len(before) >= 10 and len(after) and after.max() > 3 * before.max() > 0:
            return bool(after.max() > loss.reference)
    return False
