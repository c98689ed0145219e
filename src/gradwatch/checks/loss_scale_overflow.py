"""The gradient scaler keeps skipping steps.

What is seen: after the first `settle` steps, more than `share` of the steps were skipped
because scaled gradients overflowed.

Why it hurts: skipped steps learn nothing; a scale that never settles means true gradients
that overflow.

What helps: a smaller initial scale, a longer growth interval, bfloat16 instead of float16,
a look at the layer whose gradient is not finite.

Threshold: a tenth. A scaler that looks for its scale skips a few of the first steps, and
then one in two thousand.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.text import percent

NAME = "loss-scale-overflow"
NEEDS = frozenset({"skipped"})


def check(run: Run, *, share: float = 0.1, settle: int = 20, least: int = 10) -> Outcome:
    """Yield one finding for the whole run."""
    settled = run.steps >= run.steps[:1] + settle
    skipped = np.nan_to_num(run.scalars["skipped"]) > 0
    if settled.sum() < least:
        return
    often = float(skipped[settled].mean())
    if often <= share:
        return
    steps = run.steps[settled & skipped]
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        steps,
        f"{percent(often)} of steps were skipped because scaled gradients overflowed",
        Evidence("skipped", None, steps[-1], often, share),
        cause="The loss scale is too large for these gradients, or the gradients are not finite.",
        advice=(
            "Lower init_scale or raise growth_interval of the GradScaler.",
            "Use bfloat16, which needs no scaler.",
        ),
    )
