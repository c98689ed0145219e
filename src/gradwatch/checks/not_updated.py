"""A weight does not change, although it should.

What is seen: a parameter whose bits (their hash) are the same at the end as before the
first update, although it receives gradients, because no optimizer was given it or because
its optimizer never steps; or a frozen parameter that was handed to the optimizer. Frozen
and not in the optimizer is deliberate and not mentioned.

Why it hurts: the loss may still fall, because other layers make up for it; nothing else
shows the fault.

What helps: make the optimizer after replacing or adding layers, give it every parameter,
check the learning rate of the group, and in bfloat16 or float16 see
update-lost-to-rounding.

Threshold: bit-identical. A vector counts only if its step would be visible in its
precision.
"""

from dataclasses import dataclass

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, finding
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.checks.learning_rate_zero import always_zero
from gradwatch.checks.ownership import foreign_optimizers, handed, left_alone, unchanged
from gradwatch.stats import Kind, Stat
from gradwatch.text import several

NAME = "not-updated"
NEEDS: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Reason:
    mask: Mask
    what: str
    cause: str
    advice: tuple[str, ...]
    severity: Severity = Severity.CRITICAL


def check(run: Run, *, least: int = 3) -> Outcome:
    """Yield a finding for each reason why weights stand still."""
    ctx = context(run)
    if not len(run.names):
        return
    same = unchanged(ctx, least)
    if same is None:
        yield Skipped(NAME, "neither weights nor updates were recorded on enough steps")
        same = np.zeros(len(run.names), bool)
    for reason in _reasons(ctx, same):
        columns = ctx.in_forward_order(reason.mask)
        if not columns:
            continue
        layers = ctx.layers(columns)
        last = run.steps[max(ctx.end - 1, 0)]
        yield finding(
            NAME,
            reason.severity,
            layers,
            (run.steps[0], last),
            f"no change in {several(layers)}: {reason.what}",
            Evidence(Stat.UPDATE_NORM, run.names[columns[0]], last, 0.0, None),
            cause=reason.cause,
            advice=reason.advice,
        )


def _why_unknown(run: Run) -> str:
    audit = run.info.get("audit")
    if isinstance(audit, dict) and audit.get("in_no_watched_module"):
        return (
            "The optimizer holds tensors that are in no layer: this layer was probably replaced "
            "after the optimizer was made."
        )
    return "The parameter is in the model but in no optimizer group."


def _reasons(ctx: CheckContext, same: Mask) -> list[_Reason]:
    owned = handed(ctx)
    unknown = ~owned & ctx.trainable
    # where an optimizer is another model's, something may copy its results back
    unknown &= same if foreign_optimizers(ctx.run) else owned.any()
    gradient = _has_gradient(ctx)
    alone = left_alone(ctx) & ctx.trainable & bool(ctx.run.info.get("complete"))
    rested = same & ctx.trainable & owned & gradient & ~alone
    rate_zero = rested & _rate_zero(ctx)
    unmoved = rested & ~rate_zero
    rate_zero &= not always_zero(ctx)  # then the fault is learning-rate-zero
    return [
        _Reason(
            unknown & (ctx.matrices | ~_beside_matrix(ctx, unknown)),
            "no optimizer was given it",
            _why_unknown(ctx.run),
            (
                "Make the optimizer after the model is complete, from model.parameters().",
                "If it is meant to rest, set requires_grad to False.",
            ),
        ),
        _Reason(
            rate_zero,
            "its learning rate is 0",
            "The optimizer group has learning rate 0 on every recorded step.",
            ("Set the learning rate of its group; check the scheduler.",),
        ),
        _Reason(
            unmoved & (ctx.matrices | ~_beside_matrix(ctx, unmoved)),
            "bit-identical at the end although it has gradients",
            "The optimizer's step leaves it as it is, or its update is lost in rounding.",
            (
                "Check that optimizer.step() is reached and holds this very tensor.",
                "In bfloat16 or float16 keep float32 master weights.",
            ),
        ),
        _Reason(
            alone & (ctx.matrices | ~_beside_matrix(ctx, alone)),
            "its optimizer never stepped, although it has gradients",
            "step() of the optimizer that holds it is never reached.",
            ("Call step() of its optimizer after backward().",),
        ),
        _Reason(
            ~ctx.trainable & owned & same,
            "frozen, but handed to the optimizer",
            "requires_grad is False, yet an optimizer group holds it.",
            (
                "Set requires_grad to True if it should learn.",
                "Else leave it out: [p for p in model.parameters() if p.requires_grad].",
            ),
            Severity.WARNING,
        ),
        _Reason(
            same & ctx.trainable & owned & ~gradient & ctx.matrices,
            "its gradient is zero",
            "Nothing to follow: see no-gradient.",
            (),
            Severity.INFO,
        ),
    ]


def _has_gradient(ctx: CheckContext) -> Mask:
    """A gradient that would move the weight: for vectors, more than a rounding error's worth."""
    if Stat.GRAD_NORM not in ctx.run.recorded:
        return np.zeros(len(ctx.parameters), bool)
    norms = ctx.late(Stat.GRAD_NORM, 1.0)
    strongest = np.nanmax(norms) if np.isfinite(norms).any() else 0.0
    norms = np.nan_to_num(norms)
    return (norms > 0) & (ctx.matrices | (norms > 1e-5 * strongest))


def _rate_zero(ctx: CheckContext) -> Mask:
    zero = np.zeros(0, bool)
    if Stat.LR in ctx.run.recorded and ctx.run.by_kind[Kind.GROUP]:
        rates = ctx.run.series[Stat.LR]
        zero = (np.nan_to_num(rates) == 0).all(axis=0) & np.isfinite(rates).any(axis=0)
    groups = [len(zero) if p.group is None else p.group for p in ctx.parameters]
    return np.array([group < len(zero) and bool(zero[group]) for group in groups], bool)


def _beside_matrix(ctx: CheckContext, mask: Mask) -> Mask:
    """Parameters of a layer whose weight is named: its vectors need no naming of their own."""
    named = {ctx.layer(column) for column in np.flatnonzero(mask & ctx.matrices)}
    return np.array([p.layer in named for p in ctx.parameters], bool)
