"""The training runs in evaluation mode: dropout is off.

What is seen: dropout layers that leave something out in training were in evaluation mode on
at least `share` of the training steps. Those of a part whose parameters are all frozen rest
on purpose. BatchNorm in evaluation mode is norm-misuse; other normalisation layers do the
same in both modes.

Why it hurts: nothing breaks, and the training loss even falls faster, but the regularisation
that was asked for never happens. Usual reasons: a validation that leaves the model in eval(),
or a model that was loaded, which some libraries hand over in evaluation mode.

What helps: `model.train()` before the training loop and after each validation.

Threshold: 90 % of steps.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.stats import Kind
from gradwatch.text import percent, several

NAME = "eval-mode-in-training"
NEEDS = frozenset({Stat.PROBE_TRAINING})


def check(run: Run, *, share: float = 0.9, least: int = 3) -> Outcome:
    """Yield one finding for all dropout layers that are off."""
    ctx = context(run)
    often = share_in_evaluation(ctx, _dropouts(ctx), least)
    layers = sorted((name for name, part in often.items() if part >= share), key=ctx.position)
    if not layers:
        return
    rows, whole = ctx.rows(Stat.PROBE_TRAINING), len(layers) == len(often)
    typical = min(often[name] for name in layers)
    which = "dropout, everywhere in the model," if whole else several(layers)
    verb = "was" if whole or len(layers) == 1 else "were"
    yield finding(
        NAME,
        Severity.WARNING,
        () if whole else layers,
        ctx.steps[rows],
        f"{which} {verb} in evaluation mode on {percent(typical)} of the training steps: nothing "
        "is dropped",
        Evidence(Stat.PROBE_TRAINING, layers[0], ctx.steps[rows[-1]], 1.0 - typical, 1.0 - share),
        cause="The model, or a part of it, was put into eval() and not back, or was loaded so.",
        advice=(
            "Call model.train() before the loop and after each validation; "
            f"print({'model' if whole else 'layer'}.training) in the loop should say True.",
            "If it is meant, set the dropout rate to 0.",
        ),
    )


def _dropouts(ctx: CheckContext) -> set[str]:
    return {s.name for s in ctx.run.by_kind[Kind.LAYER] if "Drop" in s.module}


def share_in_evaluation(ctx: CheckContext, layers: set[str], least: int) -> dict[str, float]:
    """Share of the steps on which each of these layers was in evaluation mode."""
    rows = ctx.rows(Stat.PROBE_TRAINING)
    if not layers or len(rows) < least:
        return {}
    modes = ctx.values(Stat.PROBE_TRAINING, rows)
    return {
        name: float((column[np.isfinite(column)] == 0).mean())
        for name, column in zip(ctx.layer_names, modes.T, strict=True)
        if name in layers and np.isfinite(column).sum() >= least
    }
