"""The loss jumps up and down and gets nowhere.

What is seen in the second half: the loss turns around on more than `flips` of the steps,
typically changes by more than `change` of its level, makes no progress, and stands well
above its best or near where it began. Noise from small batches also turns around; it is
told apart by its cause: when steps overshoot, each undoes the one before, so that
neighbouring losses or neighbouring gradients point against each other, or each step moves
the weights by several per cent.

Why it hurts: the optimizer leaps over the valley instead of walking into it.

What helps: a lower learning rate, warm-up, less momentum, a larger batch.

Thresholds: 40 % and 20 % of the level (30 % and 8 % are mentioned).
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import Array
from gradwatch.text import number, percent

NAME = "loss-oscillation"
NEEDS = frozenset({"loss"})


def check(
    run: Run, *, flips: float = 0.4, change: float = 0.2, weak_flips: float = 0.3,
    weak_change: float = 0.08, least: int = 30,
) -> Outcome:  # fmt: skip
    """Yield a finding when the second half overshoots."""
    ctx = context(run)
    loss = ctx.loss
    if loss is None or len(loss) < least:
        return
    tail = loss.values[len(loss) // 2 :]
    moves = np.diff(tail)
    turned = float((np.sign(moves[1:]) != np.sign(moves[:-1])).mean())
    level = float(np.median(tail))
    swing = float(np.median(np.abs(moves))) / max(abs(level), 1e-30)
    if turned <= weak_flips or swing <= weak_change or loss.gain(0.5) > 0.05:
        return
    stuck = level > 0.5 * loss.reference
    overshoot = _overshoot(run, ctx, tail)
    strong = turned > flips and swing > change and stuck and overshoot
    if not stuck:
        return
    layers = _largest_movers(run, ctx)
    step = int(loss.steps[len(loss) // 2])
    yield Finding(
        check=NAME,
        severity=Severity.WARNING if strong else Severity.INFO,
        layers=layers,
        first_step=step,
        last_step=int(loss.steps[-1]),
        message=(
            f"the loss turns around on {percent(turned)} of steps and changes by {percent(swing)} "
            f"of its level {number(level)}, without progress"
        ),
        evidence=(Evidence("loss", None, step, swing, change if strong else weak_change),),
        cause="Steps overshoot: each undoes part of the one before.",
        advice=("Lower the learning rate by three to ten.", "Add warm-up.", "Use a larger batch."),
    )


def _overshoot(run: Run, ctx: CheckContext, tail: Array) -> bool:
    """Whether the ups and downs come from the steps rather than from the batches."""
    centred = tail - tail.mean()
    power = float((centred**2).sum())
    surely = max(0.35, 2.5 / np.sqrt(len(tail)))  # what noise reaches by chance
    if power > 0 and float((centred[1:] * centred[:-1]).sum()) / power < -surely:
        return True
    if Stat.GRAD_COSINE in run.recorded:
        cosine = ctx.late(Stat.GRAD_COSINE, 0.5)[ctx.weights]
        if np.isfinite(cosine).any() and float(np.nanmedian(cosine)) < -0.2:
            return True
    if Stat.UPDATE_RATIO in run.recorded:
        late = np.nan_to_num(ctx.late(Stat.UPDATE_RATIO, 0.5))
        weights = late[ctx.weights]
        wild = len(weights) > 0 and float(np.median(weights)) > 0.05
        return wild or bool((late[ctx.trainable] > 0.5).any())
    return False


def _largest_movers(run: Run, ctx: CheckContext) -> tuple[str, ...]:
    if Stat.UPDATE_RATIO not in run.recorded:
        return ()
    ratio = np.where(ctx.weights, np.nan_to_num(ctx.late(Stat.UPDATE_RATIO, 0.5)), -1.0)
    return ctx.layers(np.argsort(-ratio, kind="stable"))[:2]
