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

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat, State
from gradwatch.text import percent, several

NAME = "no-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(run: Run, *, share: float = 0.95, least: int = 5, least_none: int = 3) -> Outcome:
    """Yield one finding for weights, or an information for vectors only."""
    ctx = context(run)
    states = run.state(Stat.GRAD_NORM)[: ctx.end]
    norms = run.series[Stat.GRAD_NORM][: ctx.end]
    measured = run.measured(Stat.GRAD_NORM)[: ctx.end]
    none = states == State.NO_GRADIENT
    looked = measured | none
    looked[ctx.skipped[: ctx.end] | _nothing_left(run, ctx)] = False
    empty = (none | (measured & (norms == 0))) & looked
    counts = looked.sum(axis=0)
    fraction = empty.sum(axis=0) / np.maximum(counts, 1)
    absent = none.sum(axis=0) == counts  # None is certain sooner than zero
    enough = (counts >= least) | (absent & (counts >= least_none))
    starved = (fraction >= share) & enough & ctx.trainable
    everything = bool((fraction[ctx.trainable] >= share).all())
    weights = np.flatnonzero(starved & ctx.matrices)
    columns = weights if len(weights) else np.flatnonzero(starved)
    if not len(columns):
        return
    order = ctx.forward_order
    columns = np.array(sorted(columns, key=lambda c: -order.get(ctx.layer(int(c)), -1)))
    layers = ctx.layers(columns)
    column = int(columns[0])
    rows = np.flatnonzero(looked.any(axis=1))
    kind = "is None" if none[:, column].mean() > 0.5 * looked[:, column].mean() else "is zero"
    yield Finding(
        check=NAME,
        severity=Severity.CRITICAL if len(weights) else Severity.INFO,
        layers=layers[:8],
        first_step=int(run.steps[rows[0]]),
        last_step=int(run.steps[rows[-1]]),
        message=(
            f"the gradient of {run.names[column]} {kind} on {percent(float(fraction[column]))} of "
            f"steps; {several(layers)} cannot learn"
        ),
        evidence=(Evidence(Stat.GRAD_NORM, run.names[column], int(run.steps[rows[-1]]), 0.0, 0.0),),
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
    )


def _nothing_left(run: Run, ctx: CheckContext) -> Mask:
    """Steps on which the loss is zero: then no gradient is the right one (hinge losses)."""
    out = np.zeros(ctx.end, bool)
    if ctx.loss is not None and "loss" in run.scalars:
        values = run.scalars["loss"][: ctx.end]
        out = np.nan_to_num(np.abs(values), nan=1.0) <= 1e-6 * abs(ctx.loss.start)
    return out
