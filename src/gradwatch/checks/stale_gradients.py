"""Gradients of earlier steps are still there when a new step begins.

What is seen: on at least `share` of the steps a gradient is already non-zero before the
step's first backward pass. Accumulation over micro-batches inside a step is not meant and
not counted.

Why it hurts: every step follows the sum of all gradients so far; the effective learning
rate grows with time, as if momentum were one.

What helps: call `optimizer.zero_grad()` once per step, after `step()` or before
`backward()`, on the optimizer that owns these parameters.

Threshold: 90 % of steps; a correct loop has none.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.text import percent

NAME = "stale-gradients"
NEEDS = frozenset({"stale"})


def check(run: Run, *, share: float = 0.9, least: int = 2) -> Outcome:
    """Yield a finding for the whole run: the fault is in the loop, not in a layer."""
    rows = np.flatnonzero(np.isfinite(run.scalars["stale"]))
    rows = rows[rows > 0]  # nothing can be left over before the first step
    if len(rows) < least:
        return
    stale = run.scalars["stale"][rows] > 0
    often = float(stale.mean())
    if often < share:
        return
    steps = run.steps[rows[stale.argmax() :]]
    yield finding(
        NAME,
        Severity.CRITICAL,
        (),
        steps,
        f"gradients are left over from the step before on {percent(often)} of steps",
        Evidence("stale", None, steps[0], often, share),
        cause="zero_grad() is missing, misplaced, or called on another optimizer.",
        advice=("Call optimizer.zero_grad() once per step, before backward().",),
    )
