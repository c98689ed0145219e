"""The training stands still, and none of the known causes fits.

What is seen: after `least` logged steps less than `share` of the starting loss has gone, and
the loss is where a constant guess would be. Where that level is not known, the loss has to be
level within its own noise over `unsure` steps; beside a reward, the reward, which may also
fall. A loss that goes on falling, or falls a little by small steps, is slow and not still. The
finding stands only where no other check knows a cause (slow-convergence follows from it), and says
what was ruled out.

Why it hurts: nothing is learnt, and more steps of the same will not change that.

What helps: train on one small batch; if its loss does not go to zero, the fault is in model,
loss or loop, else in the data: targets that do not belong to their inputs, or inputs that tell
nothing about them. Where a reward falls, look at the sign of the loss first.

Thresholds: 5 % of the way, 60 steps; 100 where chance is unknown. A reward has fallen that lost
a fifth, by four standard deviations of a rank test between its first and last fifth. Losses
whose level says nothing, fine-tuning (a start far below chance), losses that were clearly lower
in between and a warm-up that goes on are not judged.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gradwatch.checks import slow_convergence
from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import CheckContext, Curve, context
from gradwatch.checks.logged import VALUE, words
from gradwatch.checks.outcome import (
    SURE,
    Learning,
    TrainingOutcome,
    agreement,
    at_chance,
    beyond_noise,
    outcome,
    rewards,
)
from gradwatch.checks.overpowering_discriminator import opponents
from gradwatch.text import number, percent

NAME = "not-learning"
NEEDS: frozenset[str] = frozenset()
TINY = 1e-5
"""Share of a weight that a step changes, below which nothing else needs to be wrong,"""
SMALL = 1e-4
"""and below which a loss that falls, however little, is only slow."""
RULED_OUT = {
    "no-optimizer-step": "the optimizers step",
    "no-gradient": "gradients reach every layer",
    "not-updated": "every weight moves",
    "update-ratio-too-small": "updates are not too small",
    "update-ratio-too-large": "nor too large",
    "stale-gradients": "gradients are cleared",
    "input-scale": "inputs are scaled",
    "dead-units": "no units are dead",
    "saturation": "none are saturated",
    "vanishing-gradient": "gradients do not fade on their way back",
    "output-misuse": "the loss is fed with what it expects",
    "duplicated-batches": "batches differ",
}
"""What is known when a check looked and found nothing."""


def check(run: Run, *, share: float = 0.05, least: int = 60, unsure: int = 100) -> Outcome:
    """Yield a finding for a training that stands still, whatever the others say."""
    ctx = context(run)
    lost = [reward for reward in rewards(ctx) if reward.learning is Learning.WORSE]
    if lost and all(item.learning <= Learning.STANDS for item in rewards(ctx)):
        yield _worse(ctx, lost[0])
        return
    if (helped := _together(ctx)) is not None:
        yield helped
        return
    result = outcome(ctx)
    curve = ctx.curve(result.name)
    if curve is None or result.learning is Learning.UNKNOWN:
        seldom = "no loss, reward or accuracy was logged often enough"
        yield Skipped(NAME, next(iter(ctx.no_level.values()), seldom))
        return
    if result.learning > Learning.STANDS or len(curve) < least or _warms_up(ctx):
        return
    if _creeps(ctx, curve):
        return  # that is why, and slow-convergence says so
    if ctx.judged:
        losses = [loss for loss in ctx.judged if len(loss) >= least]
        level = bool(losses) and all(_stands(loss, share, unsure) for loss in losses)
        shown = losses[0] if losses else curve
        message = _of_loss(shown)
    else:
        level = len(curve) >= unsure and agreement(curve.values) < 0.7
        shown, message = curve, _of_reward(curve)
    if not level:
        return
    yield finding(
        NAME,
        Severity.WARNING,
        (),
        shown.steps,
        message,
        Evidence(shown.name, None, shown.steps[-1], shown.late, (1 - share) * shown.start),
        cause="None of the known causes fits.",
        advice=(
            "Train on one batch of eight samples: if its loss does not go to zero, look at model "
            "and loss; if it does, check that targets belong to their inputs.",
            *slow_convergence.rates(ctx),
        ),
    )


def _worse(ctx: CheckContext, reward: TrainingOutcome) -> Finding:
    """A reward that ends below where it began; where the loss fell meanwhile, that is said."""
    message = f"{reward.name} fell from {number(reward.start)} to {number(reward.late)}"
    own = (loss for loss in ctx.losses if not words(loss.name) & VALUE)
    fell = next((loss for loss in own if loss.late < loss.start), None)
    if fell is not None:
        message += f" while {_fall(fell)}: check the sign of the loss"
    return _wrong_sign(
        ctx,
        message,
        Evidence(reward.name, None, ctx.steps[ctx.end - 1], reward.late, reward.start),
        "What is minimised leads away from the reward: often a loss with the wrong sign.",
        "Check the sign of the loss: the log-probability of a good action must be subtracted. "
        f"It helped if {reward.name} rises.",
    )


def _together(ctx: CheckContext) -> Finding | None:
    """A generator that helps its discriminator: both of their losses fall."""
    pair = opponents(ctx)
    if pair is None or len(pair[1]) < 40 or not pair[1].below_zero:
        return None
    loss, helper = pair
    won = not loss.below_zero and loss.late <= 0.05 * max(loss.start, math.log(2))
    second_half = helper.values[len(helper) // 2 :]
    if not won or helper.late > helper.start or agreement(-second_half) < SURE:
        return None
    return _wrong_sign(
        ctx,
        f"{_fall(loss)} and {_fall(helper)}: the two work together, not against each other",
        Evidence(helper.name, None, helper.steps[-1], helper.late, helper.start),
        "The generator is rewarded for what the discriminator finds out.",
        f"Check the sign of {helper.name}: it must fall where the discriminator is deceived. It "
        f"helped if {loss.name} stays near where it began.",
    )


def _fall(loss: Curve) -> str:
    return f"{loss.called} fell from {number(loss.start)} to {number(loss.late)}"


def _wrong_sign(
    ctx: CheckContext, message: str, evidence: Evidence, cause: str, first: str
) -> Finding:
    return finding(
        NAME,
        Severity.CRITICAL,
        (),
        ctx.steps[: ctx.end],
        message,
        evidence,
        cause=cause,
        advice=(first, "Lower the learning rate by three."),
    )


def _creeps(ctx: CheckContext, curve: Curve) -> bool:
    """Whether the steps are tiny, or small while the loss falls: it is slow, not stuck."""
    movement = ctx.typical(Stat.UPDATE_RATIO, 0.5)
    if movement is None or movement >= SMALL:
        return False
    return movement < TINY or agreement(-curve.values) >= beyond_noise(curve, 2.0)


def _stands(loss: Curve, share: float, unsure: int) -> bool:
    if loss.trained_before:
        return False
    if loss.chance is not None:
        # a constant reaches chance from any start, and easy batches may have been lower at first
        half = Curve(loss.steps[len(loss) // 2 :], loss.values[len(loss) // 2 :])
        lowest = float(loss.smooth[len(loss.smooth) // 2 :].min())
        return at_chance(loss) and lowest > 0.9 * loss.chance and not _has_trend(half)
    fifths = [float(np.median(part)) for part in np.array_split(loss.values, 5)]
    fell = max(loss.start - loss.late, fifths[0] - min(fifths))
    if fell >= 2 * share * abs(loss.start) or len(loss) < unsure:
        return False  # where it was lower, what is compared has changed meanwhile, or it rose again
    return agreement(-loss.values) < beyond_noise(loss)


def _has_trend(curve: Curve) -> bool:
    """Whether it falls, or rises: then it is slow, or what is compared changes."""
    falls = agreement(-curve.values)
    return max(falls, 1 - falls) >= min(SURE, beyond_noise(curve))


def _of_loss(loss: Curve) -> str:
    guess = f"; a constant guess gives {number(loss.chance)}" if loss.chance else ""
    return (
        f"{loss.called} went from {number(loss.start)} to {number(loss.late)} in {len(loss)} "
        f"steps, {percent(max(loss.progress, 0.0))} of the way to zero{guess}"
    )


def _of_reward(curve: Curve) -> str:
    early = float(np.median(curve.values[: len(curve) // 5]))
    return (
        f"{curve.name} stands still: {number(early)} at first, {number(curve.late)} after "
        f"{len(curve)} logged values"
    )


def _warms_up(ctx: CheckContext) -> bool:
    """Whether the learning rate is still growing, or has only just stopped."""
    if Stat.LR not in ctx.run.recorded:
        return False
    rates = ctx.run.series[Stat.LR][: ctx.end]
    rates = rates[np.isfinite(rates).any(axis=1)]
    if len(rates) < 2:
        return False
    largest = np.nanmax(rates, axis=1)
    return bool(largest[len(largest) // 2] < 0.6 * largest[-1])


def settled(findings: Sequence[Finding], checked: Collection[str]) -> list[Finding]:
    """The findings, not-learning among them only where no other check knows a cause.

    It says what was ruled out; slow-convergence, its milder form, then follows from it. A reward
    that falls is told unless something is as grave.
    """
    own = [item for item in findings if item.check == NAME]
    others = [item for item in findings if item.check not in (NAME, slow_convergence.NAME)]
    if not own:
        return list(findings)
    if any(Severity.INFO < item.severity >= own[0].severity for item in others):
        return [item for item in findings if item.check != NAME]
    if own[0].severity is Severity.CRITICAL:
        return list(findings)
    named = {item.check for item in findings}
    known = [text for check, text in RULED_OUT.items() if check in checked and check not in named]
    cause = "None of the known causes fits" + (f": {', '.join(known)}." if known else ".")
    return [replace(item, cause=cause) if item.check == NAME else item for item in findings]
