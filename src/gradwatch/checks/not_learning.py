"""The training stands still, and none of the known causes fits.

What is seen: after `least` logged steps less than `share` of the starting loss has gone, and
the loss is where a constant guess would be. Where that level is not known, the loss has to be
level within its own noise over `unsure` steps; beside a reward, the reward. The finding stands
only where no other check knows a cause (slow-convergence follows from it), and says what was
ruled out.

Why it hurts: nothing is learnt, and more steps of the same will not change that.

What helps: train on one small batch; if its loss does not go to zero, the fault is in model,
loss or loop, else in the data: targets that do not belong to their inputs, or inputs that tell
nothing about them.

Thresholds: 5 % of the way, 60 steps; 100 where chance is unknown. Losses whose level says
nothing, fine-tuning (a start far below chance) and a warm-up that goes on are not judged.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gradwatch.checks import slow_convergence
from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import CheckContext, Curve, context
from gradwatch.checks.outcome import Learning, agreement, at_chance, outcome
from gradwatch.text import number, percent

NAME = "not-learning"
NEEDS: frozenset[str] = frozenset()
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
    result = outcome(ctx)
    curve = ctx.curve(result.name)
    if curve is None or result.learning is Learning.UNKNOWN:
        yield Skipped(NAME, "no loss, reward or accuracy was logged often enough")
        return
    if result.learning > Learning.STANDS or len(curve) < least or _warms_up(ctx):
        return
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


def _stands(loss: Curve, share: float, unsure: int) -> bool:
    if loss.progress >= share or loss.trained_before:
        return False
    if loss.chance is not None:
        return at_chance(loss)
    first, last = loss.smooth[: len(loss.smooth) // 4], loss.smooth[-len(loss.smooth) // 4 :]
    still = float(np.median(first) - np.median(last)) < share * abs(float(np.median(first)))
    return len(loss) >= unsure and still and agreement(-loss.values) < 0.8


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

    It says what was ruled out; slow-convergence, its milder form, then follows from it.
    """
    symptoms = {NAME, slow_convergence.NAME}
    if any(item.check not in symptoms and item.severity > Severity.INFO for item in findings):
        return [item for item in findings if item.check != NAME]
    named = {item.check for item in findings}
    known = [words for check, words in RULED_OUT.items() if check in checked and check not in named]
    cause = "None of the known causes fits" + (f": {', '.join(known)}." if known else ".")
    return [replace(item, cause=cause) if item.check == NAME else item for item in findings]
