"""The learning rate has gone to zero, long before the training is over.

What is seen: the rate of every parameter group is at most a billionth of its largest on at least
`share` of the steps since that was reached.

Why it hurts: from then on nothing is learned. The usual reason is a scheduler that was made for
epochs and is stepped for every batch, or made for fewer steps than the training has.

What helps: step the scheduler where its numbers say, or give it the number of all steps.

Threshold: a fifth of the steps, at least `least` of them; a schedule may well end at zero. Critical
where the loss stands still, an information where the training has done what it could. One group of
several with a rate of 0 from the start is not-updated's.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.stats import Kind
from gradwatch.stats.medians import Array
from gradwatch.text import number, percent

NAME = "learning-rate-zero"
NEEDS = frozenset({Stat.LR})
NOTHING = 1e-9


def check(run: Run, *, share: float = 0.2, least: int = 10) -> Outcome:
    """Yield one finding for the whole run."""
    ctx = context(run)
    rows = ctx.rows(Stat.LR)
    if len(rows) < least or not run.by_kind[Kind.GROUP]:
        return
    rates = _last_known(ctx.values(Stat.LR, rows))
    largest = np.nanmax(rates, axis=0, initial=0.0)
    at, highest = int(np.argmax(largest)), float(largest.max(initial=0.0))
    learns = largest > 0
    # with a rate that is never above 0 every group counts, and every step
    zero = (~(rates > NOTHING * largest)[:, learns]).all(axis=1)
    begin = int(np.nanargmax(rates[:, at])) if highest else 0
    lengths = np.diff(ctx.steps[rows], append=ctx.steps[rows[-1]] + 1)
    gone = zero & (np.arange(len(rows)) >= begin)
    steps, after = int(lengths[gone].sum()), int(lengths[begin:].sum())
    if gone.sum() < least or steps < share * after:
        return
    first = int(ctx.steps[rows[gone][0]])
    group, level = run.by_kind[Kind.GROUP][at].name, float(rates[gone][-1, at])
    yield finding(
        NAME,
        _severity(ctx),
        (),
        ctx.steps[rows[gone]],
        _message(level, first, highest, steps / after) + f"; {outcome(ctx)}",
        Evidence(Stat.LR, group, int(ctx.steps[rows[gone][-1]]), level, NOTHING * highest),
        cause="The schedule has come to its end: the scheduler is stepped more often, for every "
        "batch perhaps, than its numbers say, or the training is longer."
        if highest
        else "The optimizer was made with rate 0, or the scheduler multiplies by 0.",
        advice=(
            "Call scheduler.step() once per epoch, or count batches in its numbers (T_max, "
            "total_steps, step_size, milestones).",
            f"Then the recorded rate at step {first} is still a good part of {number(highest)}.",
        )
        if highest
        else ("Give the optimizer a rate above 0; print scheduler.get_last_lr().",),
    )


def always_zero(ctx: CheckContext) -> bool:
    """Whether no group ever had a rate above 0."""
    rows = ctx.rows(Stat.LR)
    return len(rows) > 0 and not (ctx.values(Stat.LR, rows) > 0).any()


def _severity(ctx: CheckContext) -> Severity:
    learning = outcome(ctx).learning
    if learning >= Learning.WORKS:
        return Severity.INFO
    stands = learning in (Learning.STANDS, Learning.WORSE)
    return Severity.CRITICAL if stands else Severity.WARNING


def _message(level: float, first: int, highest: float, share: float) -> str:
    if not highest:
        return "the learning rate is 0 on every step"
    return (
        f"the learning rate is {number(level)} since step {first} (at most {number(highest)} "
        f"before): {percent(share)} of the steps change nothing"
    )


def _last_known(rates: Array) -> Array:
    """Each group's rate on every row: where its optimizer did not step, the one before."""
    known = np.where(np.isfinite(rates), np.arange(len(rates))[:, None], 0)
    return np.asarray(np.take_along_axis(rates, np.maximum.accumulate(known, axis=0), 0))
