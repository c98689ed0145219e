"""The model always predicts the class that most of its targets have.

What is seen: on the second half of the looks at least `strong` of the predictions are one
class, some classes are never predicted, that class is also what most targets of the first
steps are, and the loss has stopped where it would be if only the shares of the classes were
known. The targets are read from the gradient of the output, which only for its own class
asks for more.

Why it hurts: accuracy looks good and the rare classes, which are usually what one is after,
are not learnt at all.

What helps: weigh the loss by the inverse share of the classes, or draw rare ones more often;
watch the recall of each class instead of the accuracy.

Thresholds: 95 % of the predictions; above 80 % it is mentioned. A model that predicts rare
classes now and then, or whose loss is well below that of the shares, is left alone.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.outcome import agreement
from gradwatch.text import number, percent

NAME = "class-imbalance"
NEEDS = frozenset({"predicted_share", "loss"})
_KINDS = ("cross_entropy", "nll", "bce", "bce_logits")
_KNOWN = 30
"""Targets that must have been seen before their shares are believed."""
_LEARNT = 0.6
"""Below this part of the loss that the shares alone give, something was learnt."""
_STOPPED = 0.05
"""Relative fall within the second half of the run,"""
_FALLING = 0.7
"""if so many pairs of an early and a late value of it agree: few rare targets make much noise."""


def check(run: Run, *, strong: float = 0.95, weak: float = 0.8, least: int = 4) -> Outcome:
    """Yield a finding for the whole run."""
    ctx = context(run)
    loss, classes = ctx.loss, run.info.get("classes")
    if loss is None or run.info.get("loss_kind") not in _KINDS or not isinstance(classes, int):
        return
    predicted, share, distinct = (
        run.scalars[name][: ctx.end]
        for name in ("predicted_class", "predicted_share", "predicted_classes")
    )
    rows = np.flatnonzero(np.isfinite(share))
    late = rows[len(rows) // 2 :]
    known = _targets(ctx)
    if len(late) < least or known is None or distinct[late].max() >= classes:
        return
    often, (most, of_targets) = float(np.median(share[late])), known
    alone = -of_targets * np.log(of_targets) - (1 - of_targets) * np.log(1 - of_targets)
    same = float(np.mean(predicted[late] == most))
    if often < weak or of_targets < weak or same < strong:
        return
    falls = loss.gain(0.5) > _STOPPED and agreement(-loss.values[len(loss) // 2 :]) > _FALLING
    if loss.late < _LEARNT * alone or falls:
        return
    yield finding(
        NAME,
        Severity.WARNING if often >= strong else Severity.INFO,
        (),
        ctx.steps[late],
        f"{percent(often)} of the predictions are class {most}, as {percent(of_targets)} of the "
        f"targets are, and {classes - int(distinct[late].max())} of {classes:,} classes are never "
        f"predicted; the loss stands at {number(loss.late)}, knowing only the shares gives "
        f"{number(alone)}",
        Evidence("predicted_share", None, ctx.steps[late[-1]], often, strong),
        cause="One class outweighs the others: to predict it always is the easiest way down.",
        advice=(
            "Weigh the loss by the inverse share of each class (weight= or pos_weight=), or draw "
            "rare classes more often.",
            "Log the recall of the rare classes: it should leave zero.",
        ),
    )


def _targets(ctx: CheckContext) -> tuple[int, float] | None:
    """The class of most targets and its share; None where too few are known or all have it."""
    seen = ctx.run.info.get("target_classes")
    match seen:
        case {"seen": int(count), "most": int(most), "share": float(share)} if count >= _KNOWN:
            return (most, share) if 0 < share < 1 else None
    return None
