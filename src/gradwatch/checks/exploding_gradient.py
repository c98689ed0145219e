"""Gradients are so large that one step can throw the weights anywhere.

What is seen: the norm of one parameter's gradient (before clipping) above `huge` on three
steps, above `enormous` once, or the late median `growth` times the early one and above ten;
or the last samples, be it one, `growth` times the median of the first half (at least five),
never having been there before. The last has to be clear by two of three: above ten, above
what any layer usually has, and at once (a hundred times its highest norm before). A spike
that comes back is another fault, gradient-spikes.
Named first is the layer whose weights amplify most, else the one whose gradient left the
others first.

Why it hurts: with plain SGD the step is proportional to the gradient; with Adam the second
moment is poisoned for hundreds of steps. Usually followed by a spike, divergence or NaN.

What helps: clip the gradient norm, lower the learning rate, use a standard initialisation,
normalisation layers or shorter back-propagation through time; scale inputs and targets to
about one.

Thresholds: 1e3 and 1e6 as in the published rules (SageMaker Debugger, DeepDiagnosis,
torchmortem differ between 10 and 1e6), held against one trial of each healthy family of the
zoo, where the largest norm was 8. A summed loss makes gradients large without harm: where
loss and gradient are large together from the start, the loss falls and updates stay small,
only an information is given.
"""

import numpy as np

from gradwatch.checks import limits
from gradwatch.checks.check import Evidence, Outcome, Run, Stat, finding
from gradwatch.checks.context import context
from gradwatch.checks.limits import Rule
from gradwatch.text import number, several

NAME = "exploding-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(
    run: Run,
    *,
    huge: float = limits.HUGE,
    enormous: float = limits.ENORMOUS,
    growth: float = limits.GROWTH,
    large: float = limits.LARGE,
) -> Outcome:
    """Yield one finding for all parameters whose gradient explodes."""
    ctx = context(run)
    item = limits.exploding(ctx, huge=huge, enormous=enormous, growth=growth, large=large)
    if item is None:
        return
    layers, beyond = ctx.layers(item.columns), np.isfinite(item.limits)
    peak = int(np.where(beyond, item.levels, -1.0).argmax())
    highest, limit = item.levels[peak], item.limits[peak]
    steps = ctx.steps[item.rows]
    step = steps[int(np.nanargmax(run.series[Stat.GRAD_NORM][item.rows, peak]))]
    what = f"gradient norm {number(highest)} in {ctx.layer(peak)} at step {step}"
    if item.rule is Rule.SUDDEN:
        times, past = number(growth * highest / limit), number(limit / growth)
        what += f", {times} times its own past of {past}, and nothing after it is lower"
    else:
        what += f"; {int(beyond.sum())} parameters above {number(np.nanmin(item.limits))}"
    yield finding(
        NAME,
        item.severity,
        layers,
        steps,
        what,
        Evidence(Stat.GRAD_NORM, run.names[peak], step, highest, limit),
        cause=f"Amplified on the way back; look at {several(layers)} first.",
        advice=(
            "Clip the gradient norm to about 1.",
            "Lower the learning rate by ten.",
            "Use a standard initialisation and normalisation layers.",
        ),
        tensors=[run.names[column] for column in item.columns],
    )
