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

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Curve, context
from gradwatch.checks.logged import adaptive
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
    for loss in ctx.judged:
        spikes = _spikes(loss, deviations, times, within, window) if len(loss) >= 20 else []
        if spikes:
            yield _worst(ctx, loss, spikes, times)


def _spikes(
    loss: Curve, deviations: float, times: float, within: int, window: int
) -> list[tuple[int, float]]:
    """Where the loss jumps and comes back, each with the median before it."""
    base = min(0.0, float(loss.smooth.min()))  # a loss below zero is measured from its lowest
    values = loss.values - base
    above = (loss.chance if loss.chance is not None else loss.start) - base
    spikes: list[tuple[int, float]] = []
    for at in np.flatnonzero(values > 1.2 * above):
        before = values[max(0, at - window) : at]
        if len(before) < 10:
            continue
        median = float(np.median(before))
        spread = float(np.median(np.abs(before - median)))
        value = float(values[at])
        high = value > max(median + deviations * spread, times * median, 2.5 * float(before.max()))
        after = values[at + 1 : at + 1 + within]
        if high and len(after) and float(after.min()) < median + 0.2 * (value - median):
            spikes.append((int(at), median + base))
    return spikes


def _worst(
    ctx: CheckContext, loss: Curve, spikes: list[tuple[int, float]], times: float
) -> Finding:
    worst, median = max(spikes, key=lambda spike: loss.values[spike[0]] / max(spike[1], 1e-30))
    step, value = int(loss.steps[worst]), float(loss.values[worst])
    return finding(
        NAME,
        Severity.WARNING,
        jumped(ctx, step),
        loss.steps[[spikes[0][0], spikes[-1][0]]],
        f"{loss.called} jumps from {number(median)} to {number(value)} at step {step} and comes "
        "back" + (f"; {len(spikes)} spikes in all" if len(spikes) > 1 else ""),
        Evidence(loss.name, None, step, value, times * median),
        cause="One batch, or one step that was too large.",
        advice=(
            "Look at the batch of that step first: log(batch=ids) names its samples.",
            "Clip the gradient norm. It helped if the loss passes the same batches without a jump.",
            "Lower the learning rate or Adam's β2."
            if adaptive(ctx.run)
            else "Lower the learning rate by three.",
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
