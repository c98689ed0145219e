"""A BatchNorm layer trains in evaluation mode.

What is seen: a BatchNorm whose gain is trainable was in evaluation mode on at least `share`
of the training steps, so that its running statistics never changed. With a frozen gain this
is deliberate (fine-tuning).

Why it hurts: the layer uses statistics of other data (or 0 and 1 from its making); nothing
is normalised.

What helps: `model.train()` before the training loop and after each validation.

Threshold: 90 % of steps.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context
from gradwatch.checks.eval_mode_in_training import share_in_evaluation
from gradwatch.text import percent, several

NAME = "norm-misuse"
NEEDS = frozenset({Stat.PROBE_TRAINING})


def check(run: Run, *, share: float = 0.9, least: int = 3) -> Outcome:
    """Yield one finding for all BatchNorm layers in the wrong mode."""
    ctx = context(run)
    gains = {p.layer for p in ctx.parameters if "BatchNorm" in p.module and not p.frozen}
    in_evaluation = share_in_evaluation(ctx, gains, least)
    layers = sorted((n for n, often in in_evaluation.items() if often >= share), key=ctx.position)
    if not layers:
        return
    rows = ctx.rows(Stat.PROBE_TRAINING)
    yield finding(
        NAME,
        Severity.WARNING,
        layers,
        ctx.steps[rows],
        f"{several(layers)} {'was' if len(layers) == 1 else 'were'} in evaluation mode on "
        f"{percent(in_evaluation[layers[0]])} of training steps",
        Evidence(Stat.PROBE_TRAINING, layers[0], ctx.steps[rows[-1]], 0.0, share),
        cause="The model was put into eval() and not back.",
        advice=("Call model.train() before the loop and after each validation.",),
    )
