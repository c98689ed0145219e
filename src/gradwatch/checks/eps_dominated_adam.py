"""Adam's ε is larger than the gradients, so its steps shrink with them.

What is seen: for most weights, more than `share` of the coordinates have √v̂ < ε over the
second half, while the loss is far from gone.

Why it hurts: Adam's step is about the learning rate whatever the gradient's size, but only
while √v̂ is larger than ε. Below, the step is proportional to the gradient and soon too
small to matter.

What helps: a smaller ε (1e-8 or less; OLMo 2 went from 1e-5 to 1e-8), a loss that is not
scaled down, a larger gradient (summed instead of averaged over tokens).

Threshold: half of the coordinates of half of the weights.
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, worst_first
from gradwatch.text import percent, several

NAME = "eps-dominated-adam"
NEEDS = frozenset({Stat.OPTIM_EPS_FRACTION})


def check(run: Run, *, share: float = 0.5, moved: float = 0.3, least: int = 8) -> Outcome:
    """Yield one finding; a warning only where the loss has hardly moved."""
    ctx = context(run)
    rows = ctx.rows(Stat.OPTIM_EPS_FRACTION)
    judged = ctx.weights & ~ctx.embeddings
    if len(rows) < least or not judged.any():
        return
    late = ctx.late_half(Stat.OPTIM_EPS_FRACTION, judged)
    columns = worst_first(late > share, late)
    if len(columns) < 0.5 * judged.sum():
        return
    loss = ctx.level
    hindered = loss is not None and len(loss) >= 30 and loss.progress < moved
    layers, worst = ctx.layers(columns), columns[0]
    name, last = run.names[worst], ctx.steps[rows[-1]]
    yield finding(
        NAME,
        Severity.WARNING if hindered else Severity.INFO,
        layers,
        ctx.steps[rows],
        f"in {percent(late[worst])} of the elements of {name} the gradient that Adam remembers is "
        f"smaller than its ε (limit {percent(share)})",
        Evidence(Stat.OPTIM_EPS_FRACTION, name, last, late[worst], share),
        cause=f"The gradients of {several(layers)} are smaller than Adam's ε.",
        advice=(
            "Lower eps to 1e-8 or less. It helped if the loss falls faster.",
            "Do not divide the loss by more than the batch.",
        ),
    )
