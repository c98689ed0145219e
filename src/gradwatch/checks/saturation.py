"""A hidden tanh or sigmoid sits in its flat part, or attention looks at one place only.

What is seen: the share of (unit, sample) pairs in the flat part (|tanh| > 0.97, sigmoid
outside 0.03 … 0.97) over the second half of the run, and the entropy of attention rows
divided by ln n. The output's own activation is exempt: it may be near 0 or 1 because the
data are. Where the task was solved and the start was not like this, it is only mentioned:
the network has learnt to be sure.

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

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat
from gradwatch.stats.medians import Array
from gradwatch.text import number, percent, several

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
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    hidden = np.array([not ctx.is_output(name) for name in names], bool)
    if len(ctx.rows(Stat.ACT_FLAT_FRACTION)) >= least:
        late = np.where(hidden, ctx.late(Stat.ACT_FLAT_FRACTION, 0.5), np.nan)
        yield from _said(run, ctx, late, flat, weak_flat, Stat.ACT_FLAT_FRACTION)
    if len(ctx.rows(Stat.ACT_ENTROPY)) >= least:
        late = np.where(hidden, ctx.late(Stat.ACT_ENTROPY, 0.5), np.nan)
        yield from _said(run, ctx, -late, -entropy, -weak_entropy, Stat.ACT_ENTROPY)


def _said(
    run: Run,
    ctx: CheckContext,
    values: Array,
    limit: float,
    weak: float,
    stat: Stat,
) -> Outcome:
    """Entropy comes with its sign turned, so that larger is worse for both."""
    values = np.where(np.isfinite(values), values, -np.inf)
    severity = Severity.INFO if _learnt(run, ctx, values >= limit, weak, stat) else Severity.WARNING
    if not (values >= limit).any():
        limit, severity = weak, Severity.INFO
    columns = np.flatnonzero(values >= limit)
    if not len(columns):
        return
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    order = ctx.forward_order
    columns = np.array(sorted(columns, key=lambda c: order.get(names[int(c)], 1 << 30)))
    layers = tuple(names[int(column)] for column in columns)
    worst = int(columns[np.argmax(values[columns])])
    rows = ctx.rows(stat)
    sign = -1.0 if stat is Stat.ACT_ENTROPY else 1.0
    series = sign * run.series[stat][rows, int(columns[0])]
    under = np.flatnonzero(np.isfinite(series) & (series < limit))
    onset = rows[min(int(under[-1]) + 1 if len(under) else 0, len(rows) - 1)]
    level = abs(float(values[worst]))
    yield Finding(
        check=NAME,
        severity=severity,
        layers=layers[:8],
        first_step=int(run.steps[onset]),
        last_step=int(run.steps[rows[-1]]),
        message=(
            f"attention entropy of {names[worst]} is {number(level)} of its maximum"
            if stat is Stat.ACT_ENTROPY
            else f"{percent(level)} of the outputs of {names[worst]} are in the flat part"
        ),
        evidence=(Evidence(stat, names[worst], int(run.steps[rows[-1]]), level, abs(limit)),),
        cause=f"What {several(layers)} feeds into the activation is too large.",
        advice=(
            ("Normalise queries and keys; check the 1/√d scaling.", "Lower the learning rate.")
            if stat is Stat.ACT_ENTROPY
            else (
                "Scale the inputs to about one.",
                "Use Xavier initialisation or a normalisation layer in front.",
                "Use ReLU-like activations in hidden layers.",
            )
        ),
    )


def _learnt(run: Run, ctx: CheckContext, over: Mask, weak: float, stat: Stat) -> bool:
    """A network that solved its task may have chosen to be this sure: it did not start so."""
    rows = ctx.rows(stat)
    if ctx.loss is None or not ctx.loss.converged or not over.any() or rows[0] > 0:
        return False
    sign = -1.0 if stat is Stat.ACT_ENTROPY else 1.0
    first = sign * run.series[stat][rows[0]][over]
    return bool((first < weak).all())
