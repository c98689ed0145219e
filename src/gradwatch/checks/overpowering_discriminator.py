"""The discriminator wins so clearly that the generator learns nothing from it any more.

What is seen: of two losses logged under such names (`d_loss` and `g_loss`, `loss_D`,
`errG`, …) the discriminator's ends at or below `share` of its start (or of ln 2), while the
generator's gradient has fallen to `faint` of what it was, or its loss goes on rising through
the second half, or has risen to three times its start and does not come down.

Why it hurts: a discriminator that is always right and always sure tells the generator
nothing about which way to go.

What helps: a lower learning rate or fewer steps for the discriminator, noise on its inputs,
smoothed labels, a loss that does not saturate, a gradient penalty.

Thresholds: 5 % and 1 % (20 % and 10 % are mentioned). Losses below zero, as those of a
critic without a sigmoid, have no such level and are not judged.
"""

import math

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Curve, Mask, context
from gradwatch.checks.logged import AGENT, DISCRIMINATOR, GENERATOR, REWARD, words
from gradwatch.checks.outcome import SURE, agreement
from gradwatch.text import number, percent

NAME = "overpowering-discriminator"
NEEDS = frozenset({"loss"})


def check(
    run: Run, *, share: float = 0.05, faint: float = 0.01, weak_share: float = 0.2,
    weak_faint: float = 0.1, least: int = 40,
) -> Outcome:  # fmt: skip
    """Yield a finding that names the discriminator's layers."""
    ctx = context(run)
    pair = opponents(ctx)
    if pair is None or len(pair[0]) < least or pair[0].below_zero:
        return
    loss, opponent = pair
    start = max(loss.start, math.log(2))
    left = _gradient_left(ctx, _side(ctx, opponent, loss))
    second_half = opponent.values[len(opponent) // 2 :]
    grows = agreement(second_half) >= SURE and opponent.late > opponent.start
    risen = opponent.late > 3 * max(abs(opponent.start), math.log(2))
    rises = grows or (risen and agreement(-second_half) < SURE)
    strong = loss.late <= share * start and (left <= faint or rises)
    if not strong and not (loss.late <= weak_share * start and (left <= weak_faint or rises)):
        return
    limit = (share if strong else weak_share) * start
    low = np.flatnonzero(loss.values <= limit)
    follows = (
        f"{opponent.name} {'rises' if grows else 'has risen'}, from {number(opponent.start)} to "
        f"{number(opponent.late)}"
        if rises
        else f"the generator's gradient has fallen to {percent(left)} of what it was"
    )
    yield finding(
        NAME,
        Severity.WARNING if strong else Severity.INFO,
        ctx.layers(ctx.in_forward_order(_side(ctx, loss, opponent))),
        loss.steps[low] if len(low) else loss.steps,
        f"{loss.name} fell from {number(loss.start)} to {number(loss.late)}, and {follows}",
        Evidence(loss.name, None, loss.steps[-1], loss.late, limit),
        cause="The discriminator tells real from made without doubt, so the generator is not "
        "told which way to go.",
        advice=(
            "Lower the discriminator's learning rate by four, or train it on every second step. "
            f"It helped if {loss.name} stays near where it began.",
            "Add noise to its inputs or smooth its labels (0.9 instead of 1).",
            "Use a gradient penalty, or spectral normalisation in the discriminator.",
        ),
    )


def opponents(ctx: CheckContext) -> tuple[Curve, Curve] | None:
    """The losses of a discriminator and of its generator, by their names."""
    if any(words(name) & (AGENT | REWARD) for name in ctx.run.scalars):
        return None  # the critic of a policy is no opponent
    loss, opponent = _loss_of(ctx, DISCRIMINATOR), _loss_of(ctx, GENERATOR)
    return None if loss is None or opponent is None else (loss, opponent)


def _loss_of(ctx: CheckContext, side: frozenset[str]) -> Curve | None:
    """The loss of one side: of several (of real and of made samples) that of the shortest name."""
    named = [loss for loss in ctx.losses if words(loss.name) & side]
    return min(named, key=lambda loss: len(loss.name), default=None)


def _side(ctx: CheckContext, own: Curve, other: Curve) -> Mask:
    """The weights that a loss moves: by the names of the layers, else by what it reaches."""
    side = DISCRIMINATOR if words(own.name) & DISCRIMINATOR else GENERATOR
    named = np.array([bool(words(p.layer) & side) for p in ctx.parameters], bool)
    reaches = ctx.run.info.get("loss_reaches")
    if named.any() or not isinstance(reaches, dict):
        return np.asarray(named & ctx.weights, bool)
    mine, theirs = (set(reaches.get(loss.name, ())) for loss in (own, other))
    # the generator's loss goes through the discriminator as well, but not the other way round
    reached = mine - theirs if side is GENERATOR else mine & theirs
    parts = reached if mine != theirs else set()
    reached_by = np.array([p.name.partition(".")[0] in parts for p in ctx.parameters], bool)
    return np.asarray(reached_by & ctx.weights, bool)


def _gradient_left(ctx: CheckContext, columns: Mask) -> float:
    """What is left of the generator's gradient; one where that is not known."""
    rows = ctx.rows(Stat.GRAD_NORM)
    part = max(5, len(rows) // 10)
    if not columns.any() or len(rows) < 2 * part:
        return 1.0
    early, late = (
        float(np.median(np.sqrt(np.nansum(ctx.values(Stat.GRAD_NORM, some)[:, columns] ** 2, 1))))
        for some in (rows[:part], rows[-part:])
    )
    return late / early if early > 0 else 1.0
