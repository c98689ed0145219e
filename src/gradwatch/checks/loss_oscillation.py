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

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.outcome import unjudged
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
    yield from unjudged(ctx, NAME)
    loss = ctx.level
    if loss is None or len(loss) < least:
        return
    tail, steps = loss.values[len(loss) // 2 :], loss.steps[len(loss) // 2 :]
    moves = np.diff(tail)
    turned = float((np.sign(moves[1:]) != np.sign(moves[:-1])).mean())
    level = float(np.median(tail))
    swing = float(np.median(np.abs(moves))) / max(abs(level), 1e-30)
    if turned <= weak_flips or swing <= weak_change or loss.gain(0.5) > 0.05:
        return
    if level <= 0.5 * loss.reference:
        return  # most of the loss is gone all the same
    strong = turned > flips and swing > change and _overshoot(ctx, tail)
    yield finding(
        NAME,
        Severity.WARNING if strong else Severity.INFO,
        _largest_movers(ctx),
        steps,
        f"{loss.called} turns around on {percent(turned)} of steps and changes by {percent(swing)} "
        f"of its level {number(level)}, without progress",
        Evidence(loss.name, None, steps[0], swing, change if strong else weak_change),
        cause="Steps overshoot: each undoes part of the one before.",
        advice=(
            "Lower the learning rate by three to ten: within fifty steps the loss should change "
            f"by less than {percent(weak_change)} from step to step.",
            "Add warm-up, or lower the momentum.",
            "Use a larger batch.",
        ),
    )


def _overshoot(ctx: CheckContext, tail: Array) -> bool:
    """Whether the ups and downs come from the steps rather than from the batches."""
    centred = tail - tail.mean()
    power = float((centred**2).sum())
    surely = max(0.35, 2.5 / np.sqrt(len(tail)))  # what noise reaches by chance
    if power > 0 and float((centred[1:] * centred[:-1]).sum()) / power < -surely:
        return True
    cosine = ctx.typical(Stat.GRAD_COSINE, 0.5)
    if cosine is not None and cosine < -0.2:
        return True
    if Stat.UPDATE_RATIO not in ctx.run.recorded:
        return False
    late = ctx.late_half(Stat.UPDATE_RATIO, ctx.trainable)
    wild = bool(ctx.weights.any()) and float(np.median(late[ctx.weights])) > 0.05
    return wild or bool((late > 0.5).any())


def _largest_movers(ctx: CheckContext) -> tuple[str, ...]:
    if Stat.UPDATE_RATIO not in ctx.run.recorded:
        return ()
    ratio = np.where(ctx.weights, np.nan_to_num(ctx.late(Stat.UPDATE_RATIO, 0.5)), -1.0)
    return ctx.layers(np.argsort(-ratio, kind="stable"))[:2]
