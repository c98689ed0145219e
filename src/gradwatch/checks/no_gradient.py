"""A weight that should learn receives no gradient at all.

What is seen: a parameter that requires gradients whose gradient is None, or exactly zero,
on at least `share` of the recorded steps. Weights of two or more dimensions are a fault;
biases and single vectors are only mentioned.

Why it hurts: nothing tells these weights what to do. They stay as initialised.

What helps: look for `.detach()`, `.data`, `torch.no_grad()`, `.item()` or an argmax between
this layer and the loss, for a branch that is never used, for a layer made but not called,
for dead ReLUs behind it.

Threshold: 95 % of steps, at least five of them (zero-initialised branches have no gradient
on the first), or three where the gradient is None.
"""

import numpy as np

from gradwatch.checks.check import Outcome, finding
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.finding import Evidence, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat, State
from gradwatch.text import percent, several

NAME = "no-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(run: Run, *, share: float = 0.95, least: int = 5, least_none: int = 3) -> Outcome:
    """Yield one finding for weights, or an information for vectors only."""
    ctx = context(run)
    norms = run.series[Stat.GRAD_NORM][: ctx.end]
    measured = run.measured(Stat.GRAD_NORM)[: ctx.end]
    none = run.state(Stat.GRAD_NORM)[: ctx.end] == State.NO_GRADIENT
    looked = measured | none
    looked[ctx.skipped[: ctx.end] | _nothing_left(ctx)] = False
    empty = (none | (measured & (norms == 0))) & looked
    counts = looked.sum(axis=0)
    fraction = empty.sum(axis=0) / np.maximum(counts, 1)
    absent = none.sum(axis=0) == counts  # None is certain sooner than zero
    enough = (counts >= least) | (absent & (counts >= least_none))
    starved = (fraction >= share) & enough & ctx.trainable
    everything = bool((fraction[ctx.trainable] >= share).all())
    weights = starved & ctx.matrices
    # gradients flow backwards, so the layer nearest to the loss is named first
    columns = sorted(
        np.flatnonzero(weights if weights.any() else starved).tolist(),
        key=lambda column: -ctx.position(ctx.layer(column)),
    )
    if not columns:
        return
    layers, nearest = ctx.layers(columns), columns[0]
    steps = ctx.steps[: ctx.end][looked.any(axis=1)]
    is_none = none[:, nearest].mean() > 0.5 * looked[:, nearest].mean()
    yield finding(
        NAME,
        Severity.CRITICAL if weights.any() else Severity.INFO,
        layers,
        steps,
        f"the gradient of {run.names[nearest]} {'is None' if is_none else 'is zero'} on "
        f"{percent(fraction[nearest])} of steps; {several(layers)} cannot learn",
        Evidence(Stat.GRAD_NORM, run.names[nearest], steps[-1], 0.0, 0.0),
        cause=(
            "No parameter gets a gradient: the loss does not depend on the network."
            if everything
            else "The path from this layer to the loss is cut or carries nothing."
        ),
        advice=(
            "Look for detach(), no_grad(), .data or argmax between this layer and the loss.",
            "Check that the layer is called and its output used.",
            "If it is meant to rest, set requires_grad to False and keep it from the optimizer.",
        ),
        tensors=[run.names[column] for column in columns],
    )


def _nothing_left(ctx: CheckContext) -> Mask:
    """Steps on which the loss is zero: then no gradient is the right one (hinge losses)."""
    if ctx.loss is None:
        return np.zeros(ctx.end, bool)
    losses = np.abs(ctx.run.scalars["loss"][: ctx.end])
    return np.asarray(np.nan_to_num(losses, nan=1.0) <= 1e-6 * abs(ctx.loss.start), bool)
