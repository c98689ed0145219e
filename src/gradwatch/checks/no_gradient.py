"""A weight that should learn receives no gradient at all.

What is seen: a parameter that requires gradients whose gradient is None, or exactly zero,
on at least `share` of the recorded steps, or from some step to the end (`to_end` samples at
least). Weights of two or more dimensions are a fault; biases and single vectors are only
mentioned. Steps on which the loss is zero do not count. Where only some tensors of a layer
get none (one direction of a recurrent layer read at its last step) and the training learns,
that is mentioned too; a whole layer stays a fault, a grave one if it is a tenth of the
network or if nothing is learnt.

Why it hurts: nothing tells these weights what to do. They stay as initialised.

What helps: look for `.detach()`, `.data`, `torch.no_grad()`, `.item()` or an argmax between
this layer and the loss, for a branch that is never used, for a layer made but not called,
for dead ReLUs behind it.

Threshold: 95 % of steps, at least five of them (zero-initialised branches have no gradient
on the first), or three where the gradient is None. Ten samples to the end, unless the
weight rests often (stochastic depth, experts): with a share f of silent steps before, n in
a row are chance while f^n is above a millionth, and a rest no longer than an earlier one is
a phase of the training.
"""

import numpy as np

from gradwatch.checks import limits
from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.limits import Silence
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.text import percent, several

NAME = "no-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})
MOST_ONSETS = 8
"""Parameters that fell silent at different steps are told apart up to so many steps."""


def check(
    run: Run,
    *,
    share: float = limits.SILENT,
    least: int = limits.SILENT_STEPS,
    least_none: int = limits.NONE_STEPS,
    to_end: int = limits.SILENT_TO_END,
) -> Outcome:
    """Yield a finding for each step from which weights are silent; vectors are an information."""
    ctx = context(run)
    item = limits.silent(ctx, share=share, least=least, least_none=least_none, to_end=to_end)
    if item is None:
        return
    onsets = item.onset[item.columns]
    begins = np.unique(onsets)[:MOST_ONSETS]
    group = np.searchsorted(begins, onsets, side="right") - 1
    for index, begin in enumerate(begins):
        yield _finding(ctx, item, item.columns[group == index].tolist(), int(begin))


def _finding(ctx: CheckContext, item: Silence, columns: list[int], begin: int) -> Finding:
    # gradients flow backwards, so the layer nearest to the loss is named first
    columns.sort(key=lambda column: -ctx.position(ctx.layer(column)))
    layers, nearest = ctx.layers(columns), columns[0]
    looked = item.looked
    steps = ctx.steps[looked[looked >= begin]]
    name, part = ctx.run.names[nearest], item.fraction[nearest]
    late = begin > looked[0] and part < 1
    when = f"from step {steps[0]} to the end" if late else f"on {percent(part)} of steps"
    what = f"the gradient of {name} {'is None' if item.absent[nearest] else 'is zero'} {when}"
    whole = [layer for layer in layers if layer not in _partly(ctx, item)]
    rest = f"{several(whole)} cannot learn" if whole else _rest(ctx, item, layers[0])
    return finding(
        NAME,
        _severity(ctx, item, columns, whole),
        layers,
        steps,
        f"{what}; {rest}",
        Evidence(Stat.GRAD_NORM, name, steps[-1], 0.0, 0.0),
        cause=(
            "No parameter gets a gradient: the loss does not depend on the network."
            if item.everything
            else "The path from this layer to the loss is cut or carries nothing."
            if whole
            else "What this tensor computes does not reach the loss, by a mistake or by design."
        ),
        advice=(
            "Look for detach(), no_grad(), .data or argmax between this layer and the loss.",
            "Check that the layer is called and its output used.",
            "If it is meant to rest, set requires_grad to False and keep it from the optimizer.",
        ),
        tensors=[ctx.run.names[column] for column in columns],
    )


def _partly(ctx: CheckContext, item: Silence) -> set[str]:
    """Layers of which some weight, or all but vectors, is not silent."""
    others = ctx.trainable.copy()
    others[item.columns] = False
    weighs = others & ctx.matrices if ctx.matrices[item.columns].any() else others
    return set(ctx.layers(np.flatnonzero(weighs)))


def _rest(ctx: CheckContext, item: Silence, layer: str) -> str:
    """How much of a layer is silent, where not all of it is."""
    own = {column for column, p in enumerate(ctx.parameters) if p.layer == layer}
    silent = own.intersection(item.columns.tolist())
    elements = sum(ctx.parameters[c].count for c in silent)
    share = elements / max(1, sum(ctx.parameters[c].count for c in own))
    return (
        f"that is {len(silent)} of {len(own)} tensors of {layer or 'the model'}, "
        f"{percent(share)} of its elements, and the others get one"
    )


def _severity(ctx: CheckContext, item: Silence, columns: list[int], whole: list[str]) -> Severity:
    """By what is silent, of how much, and by whether the training learns without it."""
    if item.severity is Severity.INFO:
        return item.severity
    learns = outcome(ctx).learning >= Learning.IMPROVES
    if not whole:
        return Severity.INFO if learns else Severity.WARNING
    counts = np.array([max(p.count, 1) for p in ctx.parameters])
    share = counts[columns].sum() / counts[ctx.trainable].sum()
    return Severity.WARNING if learns and share < 0.1 else item.severity
