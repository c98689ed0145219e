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
only an information is given, unless unscaled targets (target-scale) make it large.

Where the gradient is large from the first step on, no weight amplifies and the loss is large
as well, nothing explodes: the scale of the loss, the targets or the rewards is named. To an
optimizer such as Adam that scale is all the same: where the training improves under it, only
an information is given.
"""

import numpy as np

from gradwatch.checks import limits
from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.limits import Rule
from gradwatch.checks.logged import adaptive
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.checks.target_scale import harmful, targets
from gradwatch.text import named, number, several

NAME = "exploding-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})
_LARGE_LOSS = 30.0
"""No loss of a usual scale starts above this: cross-entropies would need e^30 classes."""
_GROWN = 10.0
"""Times its beginning: a gradient that has grown so far since has another reason."""


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
    step = steps[int(np.nanargmax(run.at(Stat.GRAD_NORM, item.rows, peak)))]
    what = f"gradient norm {number(highest)} in {named(ctx.layer(peak))} at step {step}"
    if item.rule is Rule.SUDDEN:
        times, past = number(growth * highest / limit), number(limit / growth)
        what += f", {times} times its own past of {past}, and nothing after it is lower"
    else:
        what += f"; {int(beyond.sum())} parameters above {number(np.nanmin(item.limits))}"
    scale = _scale_of_loss(ctx, item, highest)
    cause, advice = scale or (
        f"Amplified on the way back; look at {several(layers)} first.",
        (
            "Clip the gradient norm to about 1.",
            "Lower the learning rate by ten.",
            "Use a standard initialisation and normalisation layers.",
        ),
    )
    harmless = scale is not None and adaptive(run) and outcome(ctx).learning >= Learning.IMPROVES
    yield finding(
        NAME,
        Severity.INFO if harmless and not harmful(ctx, targets(ctx)) else item.severity,
        () if scale else layers,
        steps,
        what,
        Evidence(Stat.GRAD_NORM, run.names[peak], step, highest, limit),
        cause=cause,
        advice=advice,
        tensors=[] if scale else [run.names[column] for column in item.columns],
    )


def _first_output(ctx: CheckContext) -> float:
    """Size of the model's first outputs: their RMS, else the spread of the last layer's."""
    sizes = ctx.run.scalars.get("output_rms", np.empty(0))[:1]
    if np.isfinite(sizes).any():
        return float(sizes[0])
    if Stat.ACT_STD not in ctx.run.recorded:
        return np.nan
    measured = dict(zip(ctx.layer_names, ctx.first(Stat.ACT_STD).tolist(), strict=True))
    return max((measured.get(layer, np.nan) for layer in ctx.output_layer), default=np.nan)


def _scale_of_loss(
    ctx: CheckContext, item: limits.Judgement, highest: float
) -> tuple[str, tuple[str, ...]] | None:
    """Cause and advice where all is large in proportion from the first step on; else nothing."""
    loss, gains = ctx.loss, np.nan_to_num(ctx.gains)
    first_rows = limits.gradient_rows(ctx)[:3]
    from_the_start = len(item.rows) > 0 and item.rows[0] in first_rows
    if loss is None or item.rule is Rule.SUDDEN or not from_the_start or gains.max() > 4.0:
        return None
    start = abs(float(loss.values[0]))
    beginning = float(ctx.total_gradient[first_rows[0]])
    known = targets(ctx)
    usual = max(10.0, known.rms if known is not None else 0.0)
    if start < _LARGE_LOSS or highest > _GROWN * beginning or not _first_output(ctx) <= usual:
        return None  # also where large outputs make the loss large: those were amplified
    size = f"The loss itself is large from the first step ({number(start)})"
    if known is not None and known.rms > 10.0:
        return (
            f"{size}, because the targets are (RMS {number(known.rms)}); the gradient is large in "
            "proportion, nothing is amplified on the way back.",
            (
                f"Divide the targets by their standard deviation, and multiply predictions by it: "
                f"the gradient should fall to about {number(highest / known.rms)}.",
            ),
        )
    if ctx.run.info.get("loss_reduction") == "sum":
        return (
            f"{size}, because it is a sum over the batch; the gradient is large in proportion, "
            "nothing is amplified on the way back.",
            ('Use the mean of the batch (reduction="mean"), and a learning rate to match.',),
        )
    return (
        f"{size}, and the gradient is large in proportion: nothing is amplified on the way back.",
        (
            "Bring the loss to about 1: scale targets or rewards, take means instead of sums, and "
            "look for a factor in front of the loss.",
        ),
    )
