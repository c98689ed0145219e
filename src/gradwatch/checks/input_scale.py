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

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.text import number

NAME = "input-scale"
NEEDS = frozenset({"input_rms"})


def check(run: Run, *, limit: float = 100.0, odd: float = 10.0) -> Outcome:
    """Yield a finding for the first layer."""
    ctx = context(run)
    values = run.scalars["input_rms"]
    rows = np.flatnonzero(np.isfinite(values))
    if not len(rows):
        return
    typical = float(np.median(values[rows]))
    layers = (ctx.input_layer,) if ctx.input_layer is not None else ()
    last = int(run.steps[rows[-1]])
    if typical > limit:
        first = int(run.steps[rows[0]])
        yield Finding(
            check=NAME,
            severity=Severity.WARNING,
            layers=layers,
            first_step=first,
            last_step=last,
            message=f"inputs have an RMS of {number(typical)}; networks are made for about 1",
            evidence=(Evidence("input_rms", None, first, typical, limit),),
            cause="The data were not normalised.",
            advice=("Standardise the inputs (images: divide by 255 first).",),
        )
    elif len(rows) >= 5 and float(values[rows].max()) > odd * typical > 0:
        worst = int(rows[values[rows].argmax()])
        step = int(run.steps[worst])
        yield Finding(
            check=NAME,
            severity=Severity.INFO,
            layers=layers,
            first_step=step,
            last_step=step,
            message=(
                f"the batch of step {step} has an RMS of {number(float(values[worst]))}, usual is "
                f"{number(typical)}"
            ),
            evidence=(Evidence("input_rms", None, step, float(values[worst]), odd * typical),),
            cause="One batch holds values of another scale.",
            advice=("Look at that batch.",),
        )
