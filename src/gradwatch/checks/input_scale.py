"""The inputs are far from the scale networks are made for.

What is seen: the median over steps of the RMS of the floating-point inputs above `limit`. A
single batch ten times the usual is mentioned.

Why it hurts: the first layer's gradient is proportional to its input, so the learning rate
that suits the others is far too large for it; tanh and sigmoid start saturated.

What helps: subtract the mean and divide by the standard deviation of the training set;
divide images by 255.

Threshold: 100; standardised data have about one, raw bytes about 100 to 150.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import context
from gradwatch.text import number

NAME = "input-scale"
NEEDS = frozenset({"input_rms"})


def check(run: Run, *, limit: float = 100.0, odd: float = 10.0) -> Outcome:
    """Yield a finding for the first layer."""
    layers = context(run).input_layer
    rows = np.flatnonzero(np.isfinite(run.scalars["input_rms"]))
    if not len(rows):
        return
    sizes, steps = run.scalars["input_rms"][rows], run.steps[rows]
    typical, worst = float(np.median(sizes)), sizes.argmax()
    if typical > limit:
        yield finding(
            NAME,
            Severity.WARNING,
            layers,
            steps,
            f"inputs have an RMS of {number(typical)}; networks are made for about 1",
            Evidence("input_rms", None, steps[0], typical, limit),
            cause="The data were not normalised.",
            advice=("Standardise the inputs (images: divide by 255 first).",),
        )
    elif len(rows) >= 5 and sizes[worst] > odd * typical > 0:
        yield finding(
            NAME,
            Severity.INFO,
            layers,
            (steps[worst],),
            f"the batch of step {steps[worst]} has an RMS of {number(sizes[worst])}, usual is "
            f"{number(typical)}",
            Evidence("input_rms", None, steps[worst], sizes[worst], odd * typical),
            cause="One batch holds values of another scale.",
            advice=("Look at that batch.",),
        )
