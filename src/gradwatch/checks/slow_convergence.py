"""The loss falls far too slowly, or has stopped where there is much left to gain.

What is seen: less than `share` of the starting loss gone, together with a reason to believe
that more was possible: the loss never left the level of a constant guess; or it still falls
with very small updates; or successive gradients agree, so that larger steps would have
paid. The lowest reachable loss is unknown to us, so a run that is level far from zero
without such a reason is only mentioned, unless another finding explains it.

Why it hurts: time, and often the sign of another fault, which is then named first.

What helps: a larger learning rate (a smaller one where each step changes the weights by
several per cent), Adam instead of plain SGD, normalisation, a look at the other findings.

Threshold: a fifth of the start (half is mentioned), after at least 40 logged steps.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Curve, context
from gradwatch.checks.logged import adaptive
from gradwatch.checks.no_optimizer_step import without_step
from gradwatch.checks.outcome import at_chance, unjudged
from gradwatch.text import number, percent

NAME = "slow-convergence"
NEEDS = frozenset({"loss"})


def check(run: Run, *, share: float = 0.2, stuck: float = 0.05, least: int = 40) -> Outcome:
    """Yield a finding when little was learnt and more was possible."""
    ctx = context(run)
    yield from unjudged(ctx, NAME)
    yield from _without_step(ctx, share, least)
    for loss in ctx.judged:
        if len(loss) >= least and loss.start > 0 and not loss.below_zero:
            yield from _judge(ctx, loss, share, stuck)


def _without_step(ctx: CheckContext, share: float, least: int) -> Outcome:
    """Where no optimizer steps, losses are no curve over steps: only their ends are known."""
    match without_step(ctx.run):
        case {
            "losses": int(count),
            "loss": str(name),
            "first_loss": int(first) | float(first),
            "last_loss": int(last) | float(last),
            "moved": False,
        } if count >= least and first > 0 and last > (1 - share) * first:
            if name in ctx.no_level:
                return
            step = int(ctx.run.steps[0]) if len(ctx.run.steps) else 0
            yield finding(
                NAME,
                Severity.WARNING,
                (),
                (step, step),
                f"{name} was {number(first)} at first and {number(last)} after {count} batches: "
                f"{percent(max(1 - last / first, 0.0))} of the way to zero",
                Evidence(name, None, step, last, (1 - share) * first),
                cause="No optimizer has stepped.",
                advice=("Make the optimizer step; then the loss should fall.",),
            )


def _judge(ctx: CheckContext, loss: Curve, share: float, stuck: float) -> Outcome:
    level = loss.gain(0.5) < 0.02 and (loss.late > 0.3 * loss.start or at_chance(loss))
    if (loss.progress >= share and not level) or loss.converged:
        return
    little = (loss.progress < share or at_chance(loss)) and not loss.trained_before
    reason = _reason(ctx, loss, stuck) if little else ""
    yield finding(
        NAME,
        Severity.WARNING if reason else Severity.INFO,
        (),
        loss.steps,
        f"{loss.called} went from {number(loss.start)} to {number(loss.late)}: "
        f"{percent(max(loss.progress, 0.0))} of the way to zero",
        Evidence(loss.name, None, loss.steps[-1], loss.late, (1 - share) * loss.start),
        cause=reason or "Perhaps the task allows no more.",
        advice=rates(ctx),
    )


def rates(ctx: CheckContext) -> tuple[str, ...]:
    """What to try with the steps, by their size and the optimizer that makes them."""
    movement = ctx.typical(Stat.UPDATE_RATIO, 1.0)
    if movement is not None and movement < 1e-3 and not _rose(ctx):
        first = "Raise the learning rate by three to ten"
    elif (movement is not None and movement > 0.03) or _rose(ctx):
        first = "Lower the learning rate by three to ten"
    else:
        first = "Try a learning rate three times larger and one three times smaller"
    first += ": within a hundred steps the loss should fall faster than before."
    plain = "SGD" in str(ctx.run.info.get("optimizer", ""))
    others = ("Try Adam instead of plain SGD.",) if plain and not adaptive(ctx.run) else ()
    return (first, *others, "Check what the scheduler makes of the learning rate.")


def _rose(ctx: CheckContext) -> bool:
    """Whether a loss was clearly above its start at any time: then larger steps do not help."""
    return any(float(loss.smooth.max()) > 1.3 * abs(loss.start) for loss in ctx.judged)


def _reason(ctx: CheckContext, loss: Curve, stuck: float) -> str:
    """Why more was possible; empty when nothing says so."""
    never_lower = loss.chance is not None and float(loss.smooth.min()) > 0.9 * loss.chance
    if loss.chance is not None and loss.late > (1 - stuck) * loss.chance and never_lower:
        return "The loss never left the level of a constant guess."
    movement = ctx.typical(Stat.UPDATE_RATIO, 1.0)
    if movement is not None and movement < 1e-4 and loss.progress < 0.2:
        return f"A step changes the weights by only {number(movement)} of their norm."
    cosine = ctx.typical(Stat.GRAD_COSINE, 0.5) or 0.0
    if cosine > 0.5 and movement is not None and movement < 1e-3:
        return f"Successive gradients agree (cosine {cosine:.2f}): larger steps would pay."
    return ""
