"""Weight decay pulls norm gains or biases towards zero.

What is seen: the gain of a normalisation layer, or a bias, is in a parameter group with weight
decay, and rate times decay, added up over the run, is large enough to be felt.

Why it hurts: mostly it does not. A gain or bias has nothing to overfit with, and decay draws it
away from where the data wants it; strong decay can hold gains near zero.

What helps: two parameter groups, one of them without decay for everything that has fewer than two
dimensions.

Threshold: without a gradient they would shrink by a hundredth over the run. An information, never
more.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.ownership import optimizers
from gradwatch.stats import Kind
from gradwatch.text import number, percent, several

NAME = "weight-decay-on-norms"
NEEDS = frozenset({Stat.LR})


def check(run: Run, *, felt: float = 0.01) -> Outcome:
    """Yield one finding for the whole run."""
    ctx = context(run)
    decays = {
        group.get("group"): float(decay)
        for item in optimizers(run)
        for group in item["groups"]
        if isinstance(decay := group.get("weight_decay"), int | float) and decay > 0
    }
    if not decays or not len(ctx.rows(Stat.LR)):
        return
    rates = _summed_rates(ctx)
    shrinks = np.array([rates.get(p.group, 0.0) * decays.get(p.group, 0.0) for p in ctx.parameters])
    biases = np.array([p.name.endswith("bias") for p in ctx.parameters], bool)
    columns = ctx.in_forward_order((ctx.norm_gains | biases) & ctx.trainable & (shrinks >= felt))
    if not columns:
        return
    worst = max(columns, key=lambda column: float(shrinks[column]))
    decay = decays[ctx.parameters[worst].group]
    gains = int(ctx.norm_gains[columns].sum())
    counts = (gains, "norm gain", "norm gains"), (len(columns) - gains, "bias", "biases")
    what = [f"{n} {one if n == 1 else many}" for n, one, many in counts if n]
    steps = ctx.steps[ctx.rows(Stat.LR)]
    yield finding(
        NAME,
        Severity.INFO,
        (),
        steps,
        f"weight decay of {number(decay)} acts on {' and '.join(what)} "
        f"({several(ctx.layers(columns))}): over {int(steps[-1] - steps[0]) + 1} steps it takes "
        f"{percent(1 - float(np.exp(-shrinks[worst])))} of what has no gradient",
        Evidence(Stat.LR, _group_name(run, ctx.parameters[worst].group), int(steps[-1]), decay),
        cause="One parameter group with decay holds every parameter.",
        advice=(
            "Make two groups: decay for p.ndim >= 2, weight_decay=0 for the rest; then the norms "
            "of the gains stay where the data puts them.",
        ),
        tensors=[run.names[column] for column in columns],
    )


def _summed_rates(ctx: CheckContext) -> dict[int | None, float]:
    """By number of the group: its learning rate added up over the steps."""
    rows = ctx.rows(Stat.LR)
    lengths = np.diff(ctx.steps[rows], append=ctx.steps[rows[-1]] + 1)
    sums = lengths @ np.nan_to_num(ctx.values(Stat.LR, rows))
    groups = ctx.run.by_kind[Kind.GROUP]
    return {group.group: float(total) for group, total in zip(groups, sums, strict=True)}


def _group_name(run: Run, number_of_group: int | None) -> str:
    return next(g.name for g in run.by_kind[Kind.GROUP] if g.group == number_of_group)
