"""A weight does not change, although it should.

What is seen: a parameter whose bits (their hash) are the same at the end as before the
first update, although it receives gradients, or because no optimizer was given it; or a
frozen parameter that was handed to the optimizer. Frozen and not in the optimizer is
deliberate and not mentioned.

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
from numpy.typing import NDArray

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.finding import Evidence, Finding, Severity, Skipped
from gradwatch.run import Run
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
    same = _unchanged(run, ctx, least)
    if same is None:
        yield Skipped(NAME, "neither weights nor updates were recorded on enough steps")
        same = np.zeros(len(run.names), bool)
    for reason in _reasons(run, ctx, same):
        columns = np.flatnonzero(reason.mask)
        if not len(columns):
            continue
        order = ctx.forward_order
        columns = np.array(sorted(columns, key=lambda c: order.get(ctx.layer(int(c)), 1 << 30)))
        layers = ctx.layers(columns)
        last = int(run.steps[max(ctx.end - 1, 0)])
        yield Finding(
            check=NAME,
            severity=reason.severity,
            layers=layers[:8],
            first_step=int(run.steps[0]),
            last_step=last,
            message=f"no change in {several(layers)}: {reason.what}",
            evidence=(Evidence(Stat.UPDATE_NORM, run.names[int(columns[0])], last, 0.0, None),),
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


def _reasons(run: Run, ctx: CheckContext, same: Mask) -> list[_Reason]:
    owned = np.array([p.group is not None for p in ctx.parameters], bool)
    somebody = owned.any()
    unknown = ~owned & ctx.trainable & somebody
    frozen = ~ctx.trainable & owned & same
    gradient = _has_gradient(run, ctx)
    rested = same & ctx.trainable & owned & gradient
    rate_zero = rested & _rate_zero(run, ctx)
    silent = same & ctx.trainable & owned & ~gradient & ctx.matrices
    return [
        _Reason(
            unknown & (ctx.matrices | ~_any_matrix_in_layer(ctx, unknown)),
            "no optimizer was given it",
            _why_unknown(run),
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
            rested & ~rate_zero & ~_reached(ctx, rested & ~rate_zero),
            "bit-identical at the end although it has gradients",
            "The optimizer's step leaves it as it is, or its update is lost in rounding.",
            (
                "Check that optimizer.step() is reached and holds this very tensor.",
                "In bfloat16 or float16 keep float32 master weights.",
            ),
        ),
        _Reason(
            frozen,
            "frozen, but handed to the optimizer",
            "requires_grad is False, yet an optimizer group holds it.",
            (
                "Set requires_grad to True if it should learn.",
                "Else leave it out: [p for p in model.parameters() if p.requires_grad].",
            ),
            Severity.WARNING,
        ),
        _Reason(
            silent,
            "its gradient is zero",
            "Nothing to follow: see no-gradient.",
            (),
            Severity.INFO,
        ),
    ]


def _unchanged(run: Run, ctx: CheckContext, least: int) -> Mask | None:
    """Whether each parameter's bits are what they were; None when that cannot be told."""
    rows = ctx.rows(Stat.WEIGHT_HASH)
    if len(rows) >= 2 and ctx.steps[rows[-1]] - ctx.steps[rows[0]] >= least:
        bits = run.integers(Stat.WEIGHT_HASH)[rows]
        there = run.measured(Stat.WEIGHT_HASH)[rows]
        first, last = there.argmax(axis=0), len(rows) - 1 - there[::-1].argmax(axis=0)
        columns = np.arange(bits.shape[1])
        equal: NDArray[np.bool_] = bits[first, columns] == bits[last, columns]
        found: Mask = np.logical_and(equal, last > first)
        return found
    rows = ctx.rows(Stat.UPDATE_NORM)
    if len(rows) >= least:
        values = ctx.values(Stat.UPDATE_NORM, rows)
        enough = np.isfinite(values).sum(axis=0) >= least
        rested: Mask = np.logical_and(enough, np.all(np.nan_to_num(values) == 0, axis=0))
        return rested
    return None


def _has_gradient(run: Run, ctx: CheckContext) -> Mask:
    """A gradient that would move the weight: for vectors, more than a rounding error's worth."""
    if Stat.GRAD_NORM not in run.recorded:
        return np.zeros(len(run.names), bool)
    typical = ctx.whole(Stat.GRAD_NORM)
    found: Mask = np.nan_to_num(typical) > 0
    strongest = np.nanmax(typical) if np.isfinite(typical).any() else 0.0
    return found & (ctx.matrices | (np.nan_to_num(typical) > 1e-5 * strongest))


def _rate_zero(run: Run, ctx: CheckContext) -> Mask:
    if Stat.LR not in run.recorded or not run.by_kind[Kind.GROUP]:
        return np.zeros(len(run.names), bool)
    rates = run.series[Stat.LR]
    zero = (np.nan_to_num(rates) == 0).all(axis=0) & np.isfinite(rates).any(axis=0)
    return np.array(
        [
            p.group is not None and p.group < len(zero) and bool(zero[p.group])
            for p in ctx.parameters
        ],
        bool,
    )


def _reached(ctx: CheckContext, mask: Mask) -> Mask:
    """Vectors of a layer whose weight is already named need no naming of their own."""
    named = {ctx.layer(int(c)) for c in np.flatnonzero(mask & ctx.matrices)}
    return np.array(
        [not m and p.layer in named for p, m in zip(ctx.parameters, ctx.matrices, strict=True)],
        bool,
    )


def _any_matrix_in_layer(ctx: CheckContext, mask: Mask) -> Mask:
    named = {ctx.layer(int(c)) for c in np.flatnonzero(mask & ctx.matrices)}
    return np.array([p.layer in named for p in ctx.parameters], bool)
