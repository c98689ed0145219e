"""A hidden tanh or sigmoid sits in its flat part, or attention looks at one place only.

What is seen: the share of (unit, sample) pairs in the flat part (|tanh| > 0.97, sigmoid
outside 0.03 … 0.97) over the second half of the run, and the entropy of attention rows
divided by ln n. The output's own activation is exempt: it may be near 0 or 1 because the
data are. Where the loss falls and the start was not like this, it is only mentioned: the
network has learnt to be sure, or to look at the one place that matters.

Why it hurts: the derivative there is almost zero, so neither this layer nor those before it
learn. In attention it means logits have grown until the softmax is a hard choice.

What helps: smaller weights or a standard initialisation, inputs scaled to about one,
normalisation in front of the activation; for attention, QK normalisation, a lower learning
rate, 1/√d scaling.

Thresholds: half of the pairs, or entropy at or below 0.15 (a quarter and 0.35 are
mentioned). In one trial of each healthy family of the zoo the largest flat share was 5 %,
the lowest entropy 0.9.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context, since
from gradwatch.stats.medians import Array
from gradwatch.text import percent, several

NAME = "saturation"
NEEDS = frozenset({Stat.ACT_FLAT_FRACTION})


def check(
    run: Run,
    *,
    flat: float = 0.5,
    weak_flat: float = 0.25,
    entropy: float = 0.15,
    weak_entropy: float = 0.35,
    least: int = 3,
) -> Outcome:
    """Yield a finding for flat activations and one for collapsed attention."""
    ctx = context(run)
    hidden = np.array([not ctx.is_output(name) for name in ctx.layer_names], bool)
    if len(ctx.rows(Stat.ACT_FLAT_FRACTION)) >= least:
        late = np.where(hidden, ctx.late(Stat.ACT_FLAT_FRACTION, 0.5), np.nan)
        yield from _beyond(ctx, late, flat, weak_flat, Stat.ACT_FLAT_FRACTION)
    if len(ctx.rows(Stat.ACT_ENTROPY)) >= least:
        late = np.where(hidden, ctx.late(Stat.ACT_ENTROPY, 0.5), np.nan)
        yield from _beyond(ctx, -late, -entropy, -weak_entropy, Stat.ACT_ENTROPY)


def _beyond(ctx: CheckContext, values: Array, limit: float, weak: float, stat: Stat) -> Outcome:
    """Entropy comes with its sign turned, so that larger is worse for both."""
    attention = stat is Stat.ACT_ENTROPY
    sign = -1.0 if attention else 1.0
    rows = ctx.rows(stat)
    values = np.where(np.isfinite(values), values, -np.inf)
    severity = Severity.WARNING
    if not (values >= limit).any():
        limit, severity = weak, Severity.INFO
    names = ctx.layer_names
    columns = sorted(np.flatnonzero(values >= limit), key=lambda c: ctx.position(names[c]))
    if not columns:
        return
    layers = [names[column] for column in columns]
    worst = columns[np.argmax(values[columns])]
    series = sign * ctx.run.at(stat, rows, columns[0])
    below = np.isfinite(series) & (series < limit)
    level, steps = abs(values[worst]), ctx.steps[rows[since(~below) :]]
    yield finding(
        NAME,
        severity,
        layers,
        steps,
        f"the attention of {names[worst]} looks at hardly more than one place: its entropy is "
        f"{percent(level)} of the highest possible (limit {percent(abs(limit))}) "
        f"since step {steps[0]}"
        if attention
        else f"{percent(level)} of the outputs of {names[worst]} are in the flat part of the "
        f"activation (limit {percent(limit)}) since step {steps[0]}",
        Evidence(stat, names[worst], ctx.steps[rows[-1]], level, abs(limit)),
        cause=f"What {several(layers)} feeds into the activation is too large.",
        advice=(
            (
                "Normalise queries and keys; check the 1/√d scaling. "
                "It helped if the entropy rises.",
                "Lower the learning rate.",
            )
            if attention
            else (
                "Scale the inputs to about one. It helped if fewer outputs are flat.",
                "Use Xavier initialisation or a normalisation layer in front.",
                "Use ReLU-like activations in hidden layers.",
            )
        ),
    )
