"""The loss shoots up and comes back.

What is seen: a loss above the recent median by `deviations` median absolute deviations,
above three times the median and 2.5 times the highest of the last 60 steps, and above what
a constant guess would give; back near the old level within `within` steps.

Why it hurts: progress is lost, and large spikes do not always come back. Before a spike the
update norm or g/√v of one layer usually rises; that layer is named.

What helps: look at the batch, clip gradients, lower the learning rate or Adam's β2, QK
normalisation.

Thresholds: as published for large runs (OLMo: six sigma of 128 steps), made stricter for
noisy small ones.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.outcome import unjudged
from gradwatch.text import number

NAME = "loss-spike"
NEEDS = frozenset({"loss"})


def check(
    run: Run, *, deviations: float = 15.0, times: float = 3.0, within: int = 15, window: int = 60
) -> Outcome:
    """Yield one finding for all spikes, with the layer that moved first."""
    ctx = context(run)
    yield from unjudged(ctx, NAME)
    loss = ctx.level
    if loss is None or len(loss) < 20:
        return
    above = loss.chance if loss.chance is not None else loss.start
    spikes: list[tuple[int, float]] = []
    for at in np.flatnonzero(loss.values > 1.2 * above):
        before = loss.values[max(0, at - window) : at]
        if len(before) < 10:
            continue
        median = float(np.median(before))
        spread = float(np.median(np.abs(before - median)))
        value = float(loss.values[at])
        high = value > max(median + deviations * spread, times * median, 2.5 * float(before.max()))
        after = loss.values[at + 1 : at + 1 + within]
        if high and len(after) and float(after.min()) < median + 0.2 * (value - median):
            spikes.append((int(at), median))
    if not spikes:
        return
    worst, median = max(spikes, key=lambda spike: loss.values[spike[0]] / max(spike[1], 1e-30))
    step, value = int(loss.steps[worst]), float(loss.values[worst])
    yield finding(
        NAME,
        Severity.WARNING,
        jumped(ctx, step),
        loss.steps[[spikes[0][0], spikes[-1][0]]],
        f"the loss jumps from {number(median)} to {number(value)} at step {step} and comes back"
        + (f"; {len(spikes)} spikes in all" if len(spikes) > 1 else ""),
        Evidence("loss", None, step, value, times * median),
        cause="One batch, or one step that was too large.",
        advice=(
            "Look at the batch of that step.",
            "Clip the gradient norm.",
            "Lower the learning rate or Adam's β2.",
        ),
    )


def jumped(ctx: CheckContext, step: int, back: int = 5) -> tuple[str, ...]:
    """Layers whose gradient or update left its usual size by most in the steps up to this one."""
    largest = 3.0  # less than three times the usual is no jump
    layers: tuple[str, ...] = ()
    for stat in (Stat.UPDATE_RATIO, Stat.GRAD_NORM):
        compared = ctx.beside_usual(stat, step - back, step, window=60, least=5)
        if compared is None:
            continue
        near, usual = compared
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nanmax(np.nan_to_num(ctx.values(stat, near)), axis=0) / usual
        ratio[~ctx.weights | ~np.isfinite(ratio)] = 0.0
        order = np.argsort(-ratio, kind="stable")
        if len(order) and ratio[order[0]] > largest:
            largest, layers = float(ratio[order[0]]), ctx.layers(order)[:2]
    return layers
