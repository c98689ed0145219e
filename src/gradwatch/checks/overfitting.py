"""The network learns the training data by heart.

What is seen: the validation loss ends above `times` its minimum while the training loss is
below `low` of its start, and is not negligible: at least `matters` of where it began.

Why it hurts: from the minimum on, training makes the network worse on anything new.

What helps: stop at the minimum, more data or augmentation, weight decay, dropout, a smaller
network.

Thresholds: 1.5 × the minimum, 0.3 × the start, over at least four validations.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context
from gradwatch.text import number

NAME = "overfitting"
NEEDS = frozenset({"loss", "val_loss"})


def check(
    run: Run, *, times: float = 1.5, low: float = 0.3, matters: float = 0.1, least: int = 4
) -> Outcome:
    """Yield a finding that begins where the validation loss was best."""
    ctx = context(run)
    loss, valid = ctx.level, ctx.validation
    if loss is None or valid is None or len(valid) < least:
        return
    best = int(np.argmin(valid.values))
    lowest, end = float(valid.values[best]), float(np.median(valid.values[-2:]))
    risen = best < len(valid) - 2 and end > times * lowest > 0
    if not risen or loss.late >= low * loss.start:
        return
    if end < matters * max(float(valid.values[0]), loss.start):
        return  # rising from nothing to next to nothing
    step = int(valid.steps[best])
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        valid.steps[best:],
        f"the validation loss was lowest at step {step} ({number(lowest)}) and is now "
        f"{number(end)}, while the training loss fell to {number(loss.late)}",
        Evidence(valid.name, None, valid.steps[-1], end, times * lowest),
        cause="More parameters or steps than the data can hold in check.",
        advice=(
            f"Keep the weights of step {step}, where the validation was best (early stopping).",
            "Add weight decay, dropout or augmentation. It helped if the validation loss falls "
            f"below {number(lowest)}.",
            "Use more data or a smaller network.",
        ),
    )
