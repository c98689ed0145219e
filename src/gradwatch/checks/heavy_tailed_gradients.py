"""A few elements carry almost the whole gradient.

What is seen: the excess kurtosis of a weight's gradient above `kurtosis` over the second
half. Embeddings, whose gradients are sparse by nature, are left out.

Why it hurts: clipping and SGD react to the few, Adam's moments of the others are noise.
Common in language models with rare tokens, so it is only mentioned.

What helps: clipping by value or per layer, Adam instead of SGD, a larger batch.

Threshold: 1,000 (a Gaussian has 0).
"""

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import context, worst_first
from gradwatch.text import number, several

NAME = "heavy-tailed-gradients"
NEEDS = frozenset({Stat.GRAD_KURTOSIS})


def check(run: Run, *, kurtosis: float = 1000.0, least: int = 20) -> Outcome:
    """Yield one information for all heavy-tailed weights."""
    ctx = context(run)
    rows = ctx.rows(Stat.GRAD_KURTOSIS)
    late = ctx.late_half(Stat.GRAD_KURTOSIS, ctx.weights & ~ctx.embeddings)
    columns = worst_first(late > kurtosis, late)
    if len(rows) < least or not len(columns):
        return
    layers, worst = ctx.layers(columns), columns[0]
    name, last = run.names[worst], ctx.steps[rows[-1]]
    yield finding(
        NAME,
        Severity.INFO,
        layers,
        ctx.steps[rows[len(rows) // 2 :]],
        f"the gradient of {name} has a kurtosis of {number(late[worst])} (a Gaussian has 0, limit "
        f"{number(kurtosis)})",
        Evidence(Stat.GRAD_KURTOSIS, name, last, late[worst], kurtosis),
        cause=f"A few elements of {several(layers)} carry almost all of the gradient.",
        advice=("Clip per layer or by value.", "Use Adam and a larger batch."),
    )
