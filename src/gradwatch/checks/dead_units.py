"""Half of a layer's units never fire, or half of an embedding's rows are never used.

What is seen: a unit in front of a ReLU that fires for no sample has a row of exact zeros in
its weight gradient; a row zero on every step of the recorder's window (64 steps) is dead.
The share of dead rows late in the run is compared with `share`, and must not exceed the
share of zeros behind the ReLU, so that a gradient that is zero for another reason is not
mistaken for death. In an embedding, rows that never got a gradient count, unless new rows
are still being met or every step uses the same ones (a table of positions longer than the
sequences). Rows that a task never uses (the second type of token in tasks with one sentence,
most of a vocabulary in fine-tuning) are an information, unless they are more than a tenth of
a network that starts anew; and they are never the reason why a training does not learn.

Why it hurts: a dead unit gets no gradient, so it never comes back. The layer is as narrow
as what is left.

What helps: a lower learning rate, leaky or smooth activations, normalisation in front of
the ReLU, biases that do not start far below zero; for embeddings, a vocabulary that fits
the data.

Threshold: half of the rows (a fifth is mentioned). Healthy ReLU layers are half silent *per
sample*, yet in one trial of each healthy family of the zoo the largest share of dead rows
was a quarter, the median 6 %.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import CheckContext, Mask, Rows, context, since, worst_first
from gradwatch.stats.medians import Array, thinned
from gradwatch.text import named, percent, several

NAME = "dead-units"
NEEDS = frozenset({Stat.GRAD_DEAD_ROWS})
_UNITS = (
    "Lower the learning rate. It helped if fewer units are silent at the end.",
    "Use LeakyReLU, GELU or SiLU, or a normalisation layer in front.",
    "Check the biases and the scale of the inputs.",
)
_ROWS = (
    "Nothing, if the data have no use for these rows.",
    "Else check how tokens are numbered: compare the largest index with the size of the table.",
)
_CLEAR = ("Norm", "Dropout", "Identity", "Pool", "Flatten")


def check(run: Run, *, share: float = 0.5, weak: float = 0.2, least: int = 20) -> Outcome:
    """Yield a finding for ReLU layers and one for embeddings."""
    ctx = context(run)
    if len(ctx.rows(Stat.GRAD_DEAD_ROWS)) < least:
        return
    heights = np.array([float(p.shape[0]) if p.shape else np.nan for p in ctx.parameters])
    dead = _silent(ctx) / heights
    gates = _gates(ctx)
    dead[~ctx.weights | ctx.embeddings | ~np.isfinite(gates)] = np.nan
    dead[dead > gates + 0.1] = np.nan
    yield from _dead_rows(ctx, dead, share, weak, Stat.GRAD_DEAD_ROWS, heights)
    if Stat.ACT_GATE_ZERO_FRACTION not in run.recorded:
        yield Skipped(NAME, "activations were not recorded, so what feeds a ReLU is unknown")
    if Stat.GRAD_UNTOUCHED_ROWS in run.recorded and ctx.embeddings.any():
        unused = _unused(ctx, heights)
        yield from _dead_rows(ctx, unused, share, weak, Stat.GRAD_UNTOUCHED_ROWS, heights)


def _dead_rows(
    ctx: CheckContext, fraction: Array, share: float, weak: float, stat: Stat, heights: Array
) -> Outcome:
    values = np.nan_to_num(fraction)
    limit = share if (values >= share).any() else weak
    columns = worst_first(values >= limit, values)
    if not len(columns):
        return
    layers, worst = ctx.layers(columns), columns[0]
    rows, recorded = ctx.rows(stat), ctx.run.recorded
    never = stat is Stat.GRAD_UNTOUCHED_ROWS
    each = Stat.GRAD_ZERO_ROWS if not never and Stat.GRAD_ZERO_ROWS in recorded else stat
    series = ctx.run.at(each, rows, worst) / heights[worst]
    steps = ctx.steps[rows[since(np.nan_to_num(series) >= limit) :]]
    rows_of = f"{heights[worst]:.0f} rows of {named(layers[0])}"
    units_of = f"{heights[worst]:.0f} units of {named(layers[0])}"
    what = f"{rows_of} got no gradient" if never else f"{units_of} fired for no sample"
    more = f"; {len(layers)} layers in all" if len(layers) > 1 else ""
    measured, most = values[worst] * heights[worst], limit * heights[worst]
    borne = never and not _wasteful(ctx, values, columns)
    yield finding(
        NAME,
        Severity.WARNING if limit == share and not borne else Severity.INFO,
        layers,
        steps,
        f"{percent(values[worst])} of the {what} since step {steps[0]} "
        f"(limit {percent(limit)}){more}",
        Evidence(stat, ctx.run.names[worst], steps[-1], measured, most),
        cause=(
            f"The batches hold nothing that these rows of {several(layers)} stand for."
            if never
            else f"Units of {several(layers)} fire for no sample and get no gradient to recover by."
        ),
        advice=_ROWS if never else _UNITS,
    )


def _wasteful(ctx: CheckContext, unused: Array, columns: Rows) -> bool:
    """Whether unused rows are a tenth of what is trained, in a network that starts anew."""
    counts = np.array([float(p.count) for p in ctx.parameters])
    share = (unused * counts)[columns].sum() / max(counts[ctx.trainable].sum(), 1.0)
    return bool(share >= 0.1) and not (ctx.loss is not None and ctx.loss.trained_before)


def _silent(ctx: CheckContext) -> Array:
    """Rows without a gradient late in the run: over the window, or, where the last quarter is
    shorter than the window, the fewest that were zero on any of its steps."""
    dead = ctx.last(Stat.GRAD_DEAD_ROWS)
    rows = ctx.rows(Stat.GRAD_ZERO_ROWS)
    tail = rows[-max(10, len(rows) // 4) :]
    if Stat.GRAD_ZERO_ROWS not in ctx.run.recorded or len(tail) >= 64:
        return dead
    values = ctx.values(Stat.GRAD_ZERO_ROWS, tail)
    fewest = np.min(np.where(np.isfinite(values), values, np.inf), axis=0)
    return np.where(np.isfinite(fewest), fewest, dead)


def _gates(ctx: CheckContext) -> Array:
    """Share of zeros behind the ReLU each parameter's layer feeds; NaN where it feeds none."""
    shares = np.full(len(ctx.parameters), np.nan)
    if Stat.ACT_GATE_ZERO_FRACTION not in ctx.run.recorded:
        return shares
    graph = ctx.run.graph
    late = ctx.late(Stat.ACT_GATE_ZERO_FRACTION)
    zeros = dict(zip(ctx.layer_names, late.tolist(), strict=True))
    kinds = {node.layer: node.kind for node in graph.nodes}
    for relu in (layer for layer, kind in kinds.items() if kind.startswith("ReLU")):
        feeders = graph.predecessors[relu]  # several where branches are added in front of it
        measured = [zeros[f] for f in feeders if np.isfinite(zeros.get(f, np.nan))]
        for feeder in feeders if measured else ():
            zeros[feeder] = measured[0]
    for column, parameter in enumerate(ctx.parameters):
        if "Transpose" in parameter.module:
            continue
        layer: str | None = parameter.layer
        for _ in range(4):  # through normalisation and dropout to the ReLU
            if layer is None or np.isfinite(zeros.get(layer, np.nan)):
                break
            following = [
                n for n in graph.successors.get(layer, ()) if any(w in kinds[n] for w in _CLEAR)
            ]
            layer = following[0] if len(following) == 1 else None
        if layer is not None:
            shares[column] = zeros.get(layer, np.nan)
    return shares


def _unused(ctx: CheckContext, heights: Array) -> Array:
    """Embedding rows that never got a gradient; NaN while new rows are still being met."""
    rows = ctx.rows(Stat.GRAD_UNTOUCHED_ROWS)
    ends = np.array([rows[2 * len(rows) // 3], rows[-1]])
    then, now = ctx.values(Stat.GRAD_UNTOUCHED_ROWS, ends) / heights
    met = (then - now) >= 0.01 * (1 - now)
    judged = ctx.embeddings & ctx.trainable & ~met & ~_same_rows(ctx)
    return np.where(judged, now, np.nan)


def _same_rows(ctx: CheckContext) -> Mask:
    """Tables of positions, longer than the sequences: every step uses the same rows."""
    if Stat.GRAD_ZERO_ROWS not in ctx.run.recorded:
        return np.zeros(len(ctx.parameters), bool)
    rows = thinned(ctx.rows(Stat.GRAD_UNTOUCHED_ROWS))
    never, zero = (ctx.values(s, rows) for s in (Stat.GRAD_UNTOUCHED_ROWS, Stat.GRAD_ZERO_ROWS))
    same = np.mean(never == zero, axis=0) >= 0.99
    named = [any(word in p.name.lower() for word in ("pos", "wpe")) for p in ctx.parameters]
    return np.asarray(same & np.array(named), bool)
