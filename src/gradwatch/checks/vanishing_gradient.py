"""Some layers learn nothing, because their gradients fade on the way back.

What is seen: the RMS of each weight's gradient, as a median over the part of the run that
has not yet converged, compared with the largest such median; a layer at or below `ratio` of
it is starved. Embeddings, biases, frozen weights and weights whose gradient is exactly zero
are left out (the last have a check of their own, no-gradient).

Why it hurts: the starved layers stay as they were initialised, and everything behind them
works on noise.

What helps: normalisation layers, residual connections, ReLU-like instead of sigmoid or tanh
activations, He or Xavier initialisation, fewer layers.

Threshold: 1e-4 of the strongest layer. Absolute limits in published tools differ by five
decades; in one trial of each healthy family of the zoo the smallest ratio was 6e-3
(branches that start at zero), the median 0.3. In a network that has learnt (a tenth of its
starting loss left) it is only mentioned.
"""

import numpy as np

from gradwatch.checks.check import Outcome, finding
from gradwatch.checks.context import CheckContext, Rows, context, worst_first
from gradwatch.finding import Evidence, Severity
from gradwatch.run import Run
from gradwatch.stats import Stat
from gradwatch.stats.medians import medians, thinned
from gradwatch.text import number, several

NAME = "vanishing-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(run: Run, *, ratio: float = 1e-4, weak: float = 1e-2, least: int = 8) -> Outcome:
    """Yield one finding for all starved layers, the most starved first."""
    ctx = context(run)
    rows = _before_convergence(ctx)
    judged = ctx.weights & ~ctx.embeddings
    if len(rows) < least or judged.sum() < 2:
        return
    typical = medians(ctx.values(Stat.GRAD_NORM, thinned(rows))) * ctx.rms_gradient
    typical[~judged | (typical == 0)] = np.nan
    if not np.isfinite(typical).any():
        return
    best = int(np.nanargmax(typical))
    strongest = typical[best]
    relative = typical / strongest
    loss = ctx.loss
    learnt = loss is not None and len(loss) >= 10 and loss.late <= 0.1 * loss.start
    limit, severity = ratio, Severity.INFO if learnt else Severity.WARNING
    if not (relative <= ratio).any():
        limit, severity = weak, Severity.INFO
    starved = worst_first(relative <= limit, -relative)
    if not len(starved):
        return
    layers, worst = ctx.layers(starved), starved[0]
    norm, least_norm = np.array([typical[worst], limit * strongest]) / ctx.rms_gradient[worst]
    yield finding(
        NAME,
        severity,
        layers,
        ctx.steps[rows],
        f"gradient RMS {number(typical[worst])} in {layers[0]}, "
        f"{number(relative[worst])} of the {number(strongest)} in {ctx.layer(best)}",
        Evidence(Stat.GRAD_NORM, run.names[worst], ctx.steps[rows[-1]], norm, least_norm),
        cause=f"The signal from the loss fades before it reaches {several(layers)}.",
        advice=(
            "Use ReLU-like activations or put normalisation layers between.",
            "Add residual connections.",
            "Use He or Xavier initialisation.",
        ),
        tensors=[run.names[column] for column in starved],
    )


def _before_convergence(ctx: CheckContext) -> Rows:
    """Gradient rows up to where the loss has fallen to a tenth; all of them when it never does."""
    rows = ctx.rows(Stat.GRAD_NORM)
    rows = rows[~ctx.skipped[rows]]
    loss = ctx.loss
    if loss is None or len(loss) < 10:
        return rows
    low = loss.values <= 0.1 * loss.start
    if low.mean() < 0.2 or loss.start <= 0:
        return rows
    step = loss.steps[int(low.argmax())]
    return rows[ctx.steps[rows] <= max(int(step), int(loss.steps[min(20, len(loss) - 1)]))]
