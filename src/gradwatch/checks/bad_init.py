"""The network starts where it can hardly learn.

What is seen, at the very beginning: constant weights still symmetric after ten steps; the
spread of layer outputs differs by more than `scales` between layers; the first loss is more
than `times` what a constant guess would give; hidden tanh or sigmoid units start in their
flat part.

Why it hurts: signals that grow or shrink from layer to layer give gradients that do the
same; a first loss far above chance means confident nonsense that the first hundred steps
only undo.

What helps: He initialisation for ReLU, Xavier for tanh, small output layers, inputs scaled
to about one.

Thresholds: 1e3 between layers, ten times chance, half of the units flat; in one trial of
each healthy family of the zoo the ratio between layers was at most 17 and the first loss at
most 1.2 times chance. Exactly constant outputs (branches that start at zero on purpose) are
left out. For a squared error, chance is what the outputs' own mean square leaves of the
first loss.
"""

import numpy as np

from gradwatch.checks.check import Outcome
from gradwatch.checks.context import CheckContext, context
from gradwatch.finding import Evidence, Finding, Severity
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat
from gradwatch.text import number, percent

NAME = "bad-init"
NEEDS: frozenset[str] = frozenset()
_ADVICE = (
    "Initialise with He (ReLU) or Xavier (tanh); leave custom scales out.",
    "Scale inputs and targets to about one.",
    "Start the output layer small.",
)


def check(
    run: Run, *, scales: float = 1e3, weak_scales: float = 50.0, times: float = 10.0,
    weak_times: float = 4.0, flat: float = 0.5, spread: float = 1e-4,
) -> Outcome:  # fmt: skip
    """Yield a finding for each kind of bad start, the clearest first."""
    ctx = context(run)
    yield from _constant(run, ctx, spread)
    yield from _first_loss(run, ctx, times, weak_times)
    if Stat.ACT_STD in run.recorded and _at_start(ctx, Stat.ACT_STD):
        yield from _scales(run, ctx, scales, weak_scales)
    if Stat.ACT_FLAT_FRACTION in run.recorded and _at_start(ctx, Stat.ACT_FLAT_FRACTION):
        yield from _flat(run, ctx, flat)


def _finding(
    run: Run,
    severity: Severity,
    layers: tuple[str, ...],
    message: str,
    evidence: Evidence,
    cause: str,
) -> Finding:
    step = int(run.steps[0])
    return Finding(NAME, severity, layers[:4], step, step, message, (evidence,), cause, _ADVICE)


def _at_start(ctx: CheckContext, stat: Stat) -> bool:
    rows = ctx.rows(stat)
    return len(rows) > 0 and rows[0] == 0


def _constant(run: Run, ctx: CheckContext, spread: float) -> Outcome:
    rows = ctx.rows(Stat.WEIGHT_ROW_SPREAD)
    later = rows[ctx.steps[rows] >= 10] if len(rows) else rows
    if not len(later) or Stat.WEIGHT_STD not in run.recorded:
        return
    std, size = ctx.first(Stat.WEIGHT_STD), ctx.first(Stat.WEIGHT_NORM) * ctx.rms_gradient
    constant = (std <= 1e-6 * np.maximum(size, 1e-30)) & ctx.weights
    wide = np.array([len(p.shape) >= 2 and p.shape[0] > 1 for p in ctx.parameters], bool)
    still = ctx.values(Stat.WEIGHT_ROW_SPREAD, later[:1])[0] <= spread
    columns = np.flatnonzero(constant & wide & still)
    if not len(columns):
        return
    layers = ctx.layers(columns)
    name = run.names[int(columns[0])]
    yield _finding(
        run,
        Severity.CRITICAL,
        layers,
        f"{name} starts constant and its units are still equal at step {ctx.steps[later[0]]}",
        Evidence(Stat.WEIGHT_STD, name, int(run.steps[0]), float(std[columns[0]]), None),
        "Equal weights get equal gradients.",
    )


def loudest(ctx: CheckContext) -> tuple[str, ...]:
    """The layer whose weights amplify far more (or less) than usual, else nothing."""
    gains = np.where(ctx.weights, ctx.gains, np.nan)
    odd = np.abs(np.log(np.where(gains > 0, gains, np.nan)))
    columns = np.flatnonzero(np.nan_to_num(odd) > np.log(4))
    return ctx.layers(columns[np.argsort(-odd[columns], kind="stable")])


def _first_loss(run: Run, ctx: CheckContext, times: float, weak: float) -> Outcome:
    loss = ctx.loss
    if loss is None or loss.steps[0] > run.steps[0] + 1:
        return
    first = float(loss.values[0])
    chance = loss.chance or _chance_of_squares(run, ctx, first)
    if chance is None or first < weak * chance:
        return
    strong = first >= times * chance
    output = ctx.output_layer
    layers = tuple(dict.fromkeys((*loudest(ctx), *((output,) if output else ()))))
    yield _finding(
        run,
        Severity.WARNING if strong else Severity.INFO,
        layers,
        f"the first loss is {number(first)}; a constant guess would give about {number(chance)}",
        Evidence("loss", None, int(loss.steps[0]), first, (times if strong else weak) * chance),
        "The first outputs are large and wrong.",
    )


def _chance_of_squares(run: Run, ctx: CheckContext, first: float) -> float | None:
    """Mean square of the targets: first loss minus mean square of outputs still unrelated."""
    if run.info.get("loss_kind") != "mse" or not _at_start(ctx, Stat.ACT_STD):
        return None
    names = {subject.name: i for i, subject in enumerate(run.by_kind[Kind.LAYER])}
    column = names.get(ctx.output_layer or "")
    if column is None:
        return None
    spread, mean = (float(run.series[s][0, column]) for s in (Stat.ACT_STD, Stat.ACT_MEAN))
    own = spread**2 + mean**2
    return max(first - own, 0.03 * first) if own < 1.2 * first else None


def _scales(run: Run, ctx: CheckContext, limit: float, weak: float) -> Outcome:
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    spreads = run.series[Stat.ACT_STD][0]
    rows = [i for i, name in enumerate(names) if name in ctx.weighty and spreads[i] > 1e-12]
    if len(rows) < 2:
        return
    rows.sort(key=lambda i: ctx.forward_order.get(names[i], 1 << 30))
    values = spreads[rows]
    ratio = float(values.max() / values.min())
    if not ratio > weak:
        return
    steps = np.abs(np.diff(np.log(values)))
    at = names[rows[int(steps.argmax()) + 1]]
    layers = tuple(dict.fromkeys((*loudest(ctx), at)))
    yield _finding(
        run,
        Severity.WARNING if ratio > limit else Severity.INFO,
        layers,
        f"layer outputs differ in spread by {number(ratio)} at the first step "
        f"({number(float(values.min()))} to {number(float(values.max()))})",
        Evidence(Stat.ACT_STD, names[rows[int(values.argmax())]], int(run.steps[0]), ratio, limit),
        f"The signal grows or fades from layer to layer, most at {at}.",
    )


def _flat(run: Run, ctx: CheckContext, limit: float) -> Outcome:
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    values = np.nan_to_num(run.series[Stat.ACT_FLAT_FRACTION][0])
    found = [n for n, v in zip(names, values, strict=True) if v >= limit and not ctx.is_output(n)]
    if not found:
        return
    found.sort(key=lambda name: ctx.forward_order.get(name, 1 << 30))
    value = float(values[names.index(found[0])])
    yield _finding(
        run,
        Severity.WARNING,
        tuple(found),
        f"{percent(value)} of the outputs of {found[0]} are in the flat part at the first step",
        Evidence(Stat.ACT_FLAT_FRACTION, found[0], int(run.steps[0]), value, limit),
        "Inputs or weights are so large that the activation starts saturated.",
    )
