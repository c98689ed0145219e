"""The model gives the same output whatever its input is.

What is seen: rows of the output within one batch differ by less than `spread` of their size
on at least `share` of the looks at the second half of the run, while the loss stands.

Why it hurts: the model has learnt the mean of its targets and nothing of its inputs. Usual
reasons: dead units or saturated ones in front of the output, weights that collapsed under
weight decay, inputs that are all alike after preprocessing, a layer that forgets its input.

What helps: feed two very different inputs and compare the outputs of each layer; where they
become equal is the layer to open.

Thresholds: 1e-4 of the output's size, 90 % of the looks. A training that learns is left
alone: its targets may be nearly constant.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context, since
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.text import number, percent

NAME = "constant-output"
NEEDS = frozenset({"output_spread"})


def check(run: Run, *, spread: float = 1e-4, share: float = 0.9, least: int = 4) -> Outcome:
    """Yield a finding for the output layer."""
    ctx = context(run)
    values = run.scalars["output_spread"][: ctx.end]
    rows = np.flatnonzero(np.isfinite(values))
    late = rows[len(rows) // 2 :]
    if len(late) < least or np.mean(values[late] < spread) < share:
        return
    turned_out = outcome(ctx)
    if turned_out.learning >= Learning.WORKS:
        return
    stands = turned_out.learning in (Learning.STANDS, Learning.WORSE)
    begin = rows[since(values[rows] < spread)] if values[rows[-1]] < spread else late[0]
    typical = float(np.median(values[late]))
    yield finding(
        NAME,
        Severity.WARNING if stands else Severity.INFO,
        ctx.output_layer,
        ctx.steps[rows[rows >= begin]],
        f"outputs for different inputs are equal: since step {ctx.steps[begin]} they differ by "
        f"{number(typical)} of their size (on {percent(float(np.mean(values[late] < spread)))} of "
        f"the looks at the second half); {turned_out}",
        Evidence("output_spread", None, ctx.steps[late[-1]], typical, spread),
        cause="Somewhere before the output the input is lost.",
        advice=(
            "Feed two very different inputs and compare the outputs layer by layer: open the "
            "layer in which they become equal.",
            "Look for dead or saturated units, too much weight decay, and inputs that are all "
            "alike after preprocessing.",
        ),
    )
