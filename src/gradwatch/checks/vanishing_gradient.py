"""Some layers learn nothing, because their gradients fade on the way back.

What is seen: the RMS of each weight's gradient, as a median over the part of the run that
has not yet converged (or over its second half), compared with the largest such median; a
layer at or below `ratio` of it is starved. Where even the largest is at or below `faint`,
all of them are. A layer fades where its last samples are at or below `fade` of its first
ones (and of one) although the loss has not fallen, or none was logged. Embeddings, biases,
frozen weights and weights whose gradient is exactly zero are left out (the last have a
check of their own, no-gradient).

Why it hurts: the starved layers stay as they were initialised, and everything behind them
works on noise.

What helps: normalisation layers, residual connections, ReLU-like instead of sigmoid or tanh
activations, He or Xavier initialisation, fewer layers.

Thresholds: 1e-4 of the strongest layer. Absolute limits in published tools differ by five
decades; in one trial of each healthy family of the zoo the smallest ratio was 6e-3
(branches that start at zero), the median 0.3. In a network that has learnt (a tenth of its
starting loss left) it is only mentioned. 1e-20 for all: squared it is no normal number of
float32, so that neither Adam nor SGD moves a weight; small networks and unscaled gradients
of float16 are far above. 1e-8 of their beginning: rounding stops a float32 network that
merely converges at about 1e-7; where the loss fell by a tenth, fading is right and nothing
is said.
"""

import numpy as np

from gradwatch.checks import limits
from gradwatch.checks.check import Evidence, Outcome, Run, Stat, finding
from gradwatch.checks.context import CheckContext, context
from gradwatch.checks.limits import Judgement, Rule
from gradwatch.text import named, number, several

NAME = "vanishing-gradient"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(
    run: Run,
    *,
    ratio: float = limits.STARVED,
    weak: float = limits.WEAK,
    faint: float = limits.FAINT,
    fade: float = limits.FADED,
    least: int = limits.FEWEST,
) -> Outcome:
    """Yield one finding for all starved or faint layers and one for those that fade."""
    ctx = context(run)
    for item in limits.vanishing(ctx, ratio=ratio, weak=weak, faint=faint, fade=fade, least=least):
        message, cause = _words(ctx, item)
        worst = item.columns[0]
        norm = item.levels[worst] / ctx.rms_gradient[worst]
        step, limit = ctx.steps[item.rows[-1]], item.limits[worst]
        yield finding(
            NAME,
            item.severity,
            ctx.layers(item.columns),
            ctx.steps[item.rows],
            message,
            Evidence(Stat.GRAD_NORM, run.names[worst], step, norm, limit),
            cause=cause,
            advice=(
                "Use ReLU-like activations or put normalisation layers between. It helped if the "
                "gradients of the first and last layers come within a factor of 100.",
                "Add residual connections.",
                "Use He or Xavier initialisation.",
            ),
            tensors=[run.names[column] for column in item.columns],
        )


def _words(ctx: CheckContext, item: Judgement) -> tuple[str, str]:
    """What is seen, and why, in a sentence for each rule."""
    layers = ctx.layers(item.columns)
    worst = item.columns[0]
    highest = limits.strongest_beside(ctx, item.levels)[worst]
    strongest = int(np.flatnonzero(item.levels == highest)[0])
    level, most = number(item.levels[worst]), number(highest)
    weakest, loudest = named(layers[0]), named(ctx.layer(strongest))
    if item.rule is Rule.FAINT:
        return (
            f"all gradients are next to nothing: the largest RMS is {most}, "
            f"in {loudest}; no step of that size changes a weight",
            f"Nothing of the loss reaches {several(layers)}.",
        )
    if item.rule is Rule.FADED:
        together = len(item.columns) == (ctx.weights & ~ctx.embeddings).sum()
        who = "all gradients fade together" if together else f"the gradient of {weakest} fades"
        loss = "although the loss has not fallen"
        if ctx.loss is None:
            few = "loss" in ctx.run.scalars
            loss = "and too few losses were logged" if few else "and no loss was logged"
        return (
            f"{who}, to an RMS of {level} in {weakest}, {loss}",
            f"The signal from the loss dies out in {several(layers)} as the training goes on.",
        )
    share = number(item.levels[worst] / item.levels[strongest])
    return (
        f"gradient RMS {level} in {weakest}, {share} of the {most} in {loudest}",
        f"The signal from the loss fades before it reaches {several(layers)}.",
    )
