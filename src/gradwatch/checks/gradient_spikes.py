"""Single steps whose gradient is many times larger than those around it.

What is seen: the norm over all parameters at least `times` the median of the 30 steps
before, back under three times within five steps. It is a fault when the step is not small
against the beginning of the run, is isolated (nowhere more than `crowd` such steps
together) and stands out of the usual spread of the logarithm by `deviations`: where tiny
batches, a converged network or full-batch descent at the edge of stability make the
gradient jump by factors now and then, a large factor is only mentioned.

Why it hurts: each spike is one large step in a direction that one batch decided, and it
spoils Adam's second moment for a while. Often the first sign of a bad batch or of an
unstable layer.

What helps: look at the batch of that step, clip the gradient norm, lower β2 or the learning
rate.

Threshold: 20 × the rolling median; in one trial of each healthy family of the zoo the
median of the largest ratios was 2.8, but four converged ones reached 27 to 47, hence the
further conditions. Needs every step: where recording was stretched the check says so.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Skipped, Stat, finding
from gradwatch.checks.context import context, worst_first
from gradwatch.checks.outcome import Learning, outcome
from gradwatch.stats.medians import Array, medians, rolling_median
from gradwatch.text import number, several

NAME = "gradient-spikes"
NEEDS = frozenset({Stat.GRAD_NORM})


def check(
    run: Run,
    *,
    times: float = 20.0,
    back: float = 3.0,
    within: int = 5,
    deviations: float = 6.0,
    crowd: int = 3,
) -> Outcome:
    """Yield one finding for all spikes."""
    ctx = context(run)
    rows = np.flatnonzero(np.isfinite(ctx.total_gradient))
    if len(rows) < 15:
        return
    if ctx.stride(Stat.GRAD_NORM) > 1:
        yield Skipped(NAME, f"gradients were recorded every {ctx.stride(Stat.GRAD_NORM)} steps")
        return
    values = ctx.total_gradient[rows]
    before = rolling_median(values, 30)
    ratio = np.divide(values, before, out=np.zeros_like(values), where=before > 0)
    spikes = [
        row
        for row in np.flatnonzero(ratio >= times).tolist()
        if (values[row + 1 : row + 1 + within] < back * before[row]).any()
    ]
    if not spikes:
        return
    clear = _clear(values, ratio, spikes, deviations, crowd)
    if outcome(ctx).learning is Learning.WORKS:  # one hard sample is as large as all were at first
        clear = [row for row in clear if values[row] >= 3 * values[:30].max()]
    worst = max(clear or spikes, key=lambda row: ratio[row])
    norms = run.at(Stat.GRAD_NORM, rows[worst])
    usual = medians(run.at(Stat.GRAD_NORM, rows[max(0, worst - 30) : worst]))
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = np.where((usual > 0) & ctx.matrices, norms / usual, np.nan)
    order = worst_first(np.nan_to_num(jump) >= 0.3 * np.nanmax(jump, initial=0.0), jump)
    order = order if len(order) else np.argsort(-np.nan_to_num(norms))
    layers = [layer for layer in ctx.layers(order) if layer][:3]
    column = order[0]
    step, limit = run.steps[rows[worst]], times * np.nan_to_num(usual[column])
    yield finding(
        NAME,
        Severity.WARNING if clear else Severity.INFO,
        layers,
        run.steps[rows[spikes]],
        f"{len(spikes)} {'step' if len(spikes) == 1 else 'steps'} with a gradient norm of up to "
        f"{number(ratio[worst])} times the median of the 30 steps before, worst at step {step} "
        f"in {several(layers, 1)}",
        Evidence(Stat.GRAD_NORM, run.names[column], step, norms[column], limit),
        cause="One batch, or one unstable layer, gave a far larger gradient than the rest.",
        advice=(
            "Look at the batches of those steps: log(batch=ids) names them.",
            "Clip the gradient norm at a few times its usual value. "
            "It helped if the loss stays level.",
            "Lower the learning rate or Adam's β2.",
        ),
    )


def _clear(
    values: Array, ratio: Array, spikes: list[int], deviations: float, crowd: int
) -> list[int]:
    """Those that are not small, not one of many and far out of the usual spread."""
    begin, end = (np.searchsorted(spikes, np.add(spikes, far)) for far in (-10.5, 10.5))
    if (end - begin > crowd).any():
        return []
    early = float(np.median(values[:30]))
    return [
        row
        for row in spikes
        if values[row] >= early
        and np.log(ratio[row]) > deviations * _spread(values[max(0, row - 60) : row])
    ]


def _spread(values: Array) -> float:
    """Robust standard deviation of the logarithm."""
    logs = np.log(values[values > 0])
    return 1.48 * float(np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
