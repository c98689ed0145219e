"""The loss does not depend on one of the model's inputs.

What is seen: the model is given several tensors of floats, and one of them goes nowhere. Either
no layer is called with it and no operation outside of layers could have taken it; or the only
layer that is called with it has no weights and gives nothing but zeros; or no layer that is
called with it gets any gradient, while others do.

Why it hurts: the model has to guess what this input would have told.

What helps: follow the input through the forward: a branch that was switched off while looking
for a bug, a detach(), a name that was mistyped.

Threshold: none. The first three recorded steps decide, of gradients all. Masks and other inputs
that an operation takes outside of layers are left alone, and so are whole numbers and frozen
branches.
"""

from typing import Any

import numpy as np

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.limits import silent
from gradwatch.text import number, several

NAME = "unused-input"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(run: Run) -> Outcome:
    """Yield one finding for each input that goes nowhere, if another does not."""
    ctx = context(run)
    entries = run.info.get("inputs")
    if not isinstance(entries, list) or not len(run.steps):
        return
    reasons = [_reason(ctx, entry) for entry in entries]
    if all(reasons):
        return
    for entry, reason in zip(entries, reasons, strict=True):
        if reason:
            yield _finding(ctx, entry, reason)


def _reason(ctx: CheckContext, entry: dict[str, Any]) -> str:
    """Why nothing depends on this input; empty where something may."""
    takers, blocking = entry["layers"], entry["blocked_by"]
    if takers:
        alone = not blocking and _without_gradient(ctx, takers)
        return f"goes into no layer but {several(takers)}, without a gradient" if alone else ""
    if blocking:
        return f"goes into no layer but {several(blocking)}, which gives only zeros"
    return "goes into no layer and no operation" if entry["sure"] else ""


def _without_gradient(ctx: CheckContext, layers: list[str]) -> bool:
    """Whether each of these layers has weights to train, none of which ever got a gradient."""
    item = silent(ctx)
    if item is None or item.everything:
        return False
    rests = np.zeros(len(ctx.parameters), bool)
    rests[item.columns] = item.fraction[item.columns] == 1.0
    return all(
        any(mine) and all(rests[column] for column in mine)
        for mine in (
            [c for c in np.flatnonzero(ctx.weights) if ctx.layer(c) == layer] for layer in layers
        )
    )


def _finding(ctx: CheckContext, entry: dict[str, Any], reason: str) -> Finding:
    name = f" (`{entry['name']}`)" if entry["name"] else ""
    layers = tuple(entry["layers"] or entry["blocked_by"])
    loss = ctx.loss
    return finding(
        NAME,
        Severity.WARNING,
        layers,
        ctx.steps,
        f"input number {entry['number']}{name} of the model {reason}: the loss does not learn from "
        "it",
        Evidence("loss", None, ctx.steps[0], loss.start if loss else float("nan"), None),
        cause="The forward does not use this input, or cuts it off from the loss.",
        advice=(
            f"Follow input number {entry['number']}{name} through the forward: look for a branch "
            "that is switched off, a detach() or a mistyped name.",
            *((f"It helped if the loss falls below {number(loss.late)}.",) if loss else ()),
        ),
    )
