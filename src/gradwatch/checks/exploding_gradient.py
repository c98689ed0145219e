"""Gradients are so large that one step can throw the weights anywhere.

What is seen: the norm of one parameter's gradient (before clipping) above `huge` on three
steps, above `enormous` once, or the late median `growth` times the early one and above ten.
Named first is the layer whose weights amplify most, else the one whose gradient left the
others first.

Why it hurts: with plain SGD the step is proportional to the gradient; with Adam the second
moment is poisoned for hundreds of steps. Usually followed by a spike, divergence or NaN.

What helps: clip the gradient norm, lower the learning rate, use a standard initialisation,
normalisation layers or shorter back-propagation through time; scale inputs and targets to
about one.

Thresholds: 1e3 and 1e6 as in the published rules (SageMaker Debugger, DeepDiagnosis,
torchmortem differ between 10 and 1e6), held against one trial of each healthy family of the
zoo, where the largest norm was 8. A summed loss makes gradients large without harm: where
loss and gradient are large together from the start, the loss falls and updates stay small,
only an information is given.
"""

import numpy as np

from gradwatch.checks.check import Outcome, finding
from gradwatch.checks.context import CheckContext, Mask, Rows, context
from gradwatch.finding import Evidence, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import Array, medians
from gradwatch.text import number, several

NAME = "exploding-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(
    run: Run,
    *,
    huge: float = 1e3,
    enormous: float = 1e6,
    growth: float = 1e3,
    large: float = 100.0,
) -> Outcome:
    """Yield one finding for all parameters whose gradient explodes."""
    ctx = context(run)
    rows = ctx.rows(Stat.GRAD_NORM)
    if not len(rows):
        return
    norms = np.nan_to_num(ctx.values(Stat.GRAD_NORM, rows))
    norms[ctx.skipped[rows]] = 0.0
    grown = _grown(norms, growth)
    strong = ((norms > huge).sum(axis=0) >= 3) | (norms > enormous).any(axis=0) | grown
    limit, severity = huge, Severity.WARNING
    if not strong.any():
        strong, limit, severity = (norms > large).sum(axis=0) >= 3, large, Severity.INFO
    elif _summed_loss(ctx, norms):
        severity = Severity.INFO
    elif grown.any() or norms.max() > enormous:
        severity = Severity.CRITICAL
    if not strong.any():
        return
    columns = list(dict.fromkeys(_culprits(ctx, np.flatnonzero(strong), norms, limit)))
    layers = ctx.layers(columns)
    row, peak = (int(i) for i in np.unravel_index(int(norms.argmax()), norms.shape))
    over = np.flatnonzero((norms[:, strong] > limit).any(axis=1))
    step, highest = ctx.steps[rows[row]], norms[row, peak]
    yield finding(
        NAME,
        severity,
        layers,
        ctx.steps[rows[over if len(over) else [row]]],
        f"gradient norm {number(highest)} in {ctx.layer(peak)} at step {step}; "
        f"{int(strong.sum())} parameters above {number(limit)}",
        Evidence(Stat.GRAD_NORM, run.names[peak], step, highest, limit),
        cause=f"Amplified on the way back; look at {several(layers)} first.",
        advice=(
            "Clip the gradient norm to about 1.",
            "Lower the learning rate by ten.",
            "Use a standard initialisation and normalisation layers.",
        ),
        tensors=[run.names[column] for column in columns],
    )


def _grown(norms: Array, growth: float) -> Mask:
    """Late median far above the early one, and not small."""
    if len(norms) < 20:
        return np.zeros(norms.shape[1], bool)
    fifth = max(5, len(norms) // 5)
    early, late = medians(norms[:fifth]), medians(norms[-fifth:])
    return np.asarray((late > 10) & (late >= growth * np.maximum(early, 1e-12)) & (early > 0), bool)


def _summed_loss(ctx: CheckContext, norms: Array) -> bool:
    """Large because the loss is a sum, not because anything grows."""
    loss = ctx.loss
    if loss is None or len(loss) < 10 or loss.start < 30 or loss.progress < 0.5:
        return False
    if Stat.UPDATE_RATIO in ctx.run.recorded:
        ratio = ctx.late(Stat.UPDATE_RATIO, 1.0)[ctx.weights]
        if np.isfinite(ratio).any() and float(np.nanmax(ratio)) > 0.1:
            return False
    typical = float(np.median(np.sqrt((norms**2).sum(axis=1))))
    return typical < 3 * float(np.median(loss.values)) and loss.chance is None


def _culprits(ctx: CheckContext, columns: Rows, norms: Array, limit: float) -> list[int]:
    """Over-amplifying weights first, then by onset, then by size."""
    gains = ctx.gains
    typical = float(np.nanmedian(gains)) if np.isfinite(gains).any() else np.nan
    loud = np.flatnonzero(np.nan_to_num(gains) > max(4.0, 4 * np.nan_to_num(typical)))
    over = norms[:, columns] > limit
    onset = np.where(over.any(axis=0), over.argmax(axis=0), len(norms))
    rest = sorted(range(len(columns)), key=lambda i: (onset[i], -norms[:, columns[i]].max()))
    loudest = sorted((int(c) for c in loud), key=lambda c: -float(gains[c]))
    return loudest[:2] + [int(columns[i]) for i in rest]
