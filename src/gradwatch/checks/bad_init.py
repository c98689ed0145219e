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
first loss. Between four and ten times chance it is a warning where the first loss is ten nats
above chance (many classes make chance itself large) and the run does not end well below it.
"""

import numpy as np

from gradwatch.checks.check import Evidence, Finding, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, context, worst_first
from gradwatch.text import number, percent

NAME = "bad-init"
NEEDS: frozenset[str] = frozenset()
_NATS = 10.0
"""Above chance: the right class is given a probability of e^-10 of a guess's."""
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
    yield from _constant(ctx, spread)
    yield from _first_loss(ctx, times, weak_times)
    if _at_start(ctx, Stat.ACT_STD):
        yield from _scales(ctx, scales, weak_scales)
    if _at_start(ctx, Stat.ACT_FLAT_FRACTION):
        yield from _flat(ctx, flat)


def _bad_start(
    ctx: CheckContext,
    severity: Severity,
    layers: tuple[str, ...],
    message: str,
    evidence: Evidence,
    cause: str,
) -> Finding:
    names, steps = tuple(dict.fromkeys(layers))[:4], ctx.steps[:1]
    return finding(NAME, severity, names, steps, message, evidence, cause=cause, advice=_ADVICE)


def _at_start(ctx: CheckContext, stat: Stat) -> bool:
    """Whether the statistic was measured on the very first step."""
    return bool((ctx.rows(stat)[:1] == 0).any())


def _constant(ctx: CheckContext, spread: float) -> Outcome:
    rows = ctx.rows(Stat.WEIGHT_ROW_SPREAD)
    later = rows[ctx.steps[rows] >= 10]
    if not len(later) or Stat.WEIGHT_STD not in ctx.run.recorded:
        return
    std, size = ctx.first(Stat.WEIGHT_STD), ctx.first(Stat.WEIGHT_NORM) * ctx.rms_gradient
    constant = (std <= 1e-6 * np.maximum(size, 1e-30)) & ctx.weights & ctx.several_rows
    still = ctx.values(Stat.WEIGHT_ROW_SPREAD, later[:1])[0] <= spread
    columns = np.flatnonzero(constant & still)
    if not len(columns):
        return
    name = ctx.run.names[columns[0]]
    yield _bad_start(
        ctx,
        Severity.CRITICAL,
        ctx.layers(columns),
        f"{name} starts constant and its units are still equal at step {ctx.steps[later[0]]}",
        Evidence(Stat.WEIGHT_STD, name, ctx.steps[0], std[columns[0]], None),
        "Equal weights get equal gradients.",
    )


def _loudest(ctx: CheckContext) -> tuple[str, ...]:
    """The layer whose weights amplify far more (or less) than usual, else nothing."""
    gains = np.where(ctx.weights, ctx.gains, np.nan)
    odd = np.abs(np.log(np.where(gains > 0, gains, np.nan)))
    return ctx.layers(worst_first(np.nan_to_num(odd) > np.log(4), odd))


def _first_loss(ctx: CheckContext, times: float, weak: float) -> Outcome:
    loss = ctx.level
    if loss is None or loss.steps[0] > ctx.steps[0] + 1:
        return
    first = float(loss.values[0])
    chance = loss.chance or _chance_of_squares(ctx, first)
    if chance is None or first < weak * chance:
        return
    strong = first >= times * chance or _confident(ctx, first, chance)
    classes = ctx.run.info.get("classes")
    among = f" among {classes:,} classes" if loss.chance and isinstance(classes, int) else ""
    yield _bad_start(
        ctx,
        Severity.WARNING if strong else Severity.INFO,
        (*_loudest(ctx), *ctx.output_layer),
        f"the first loss is {number(first)}, {number(first / chance)} times what a constant guess"
        f"{among} would give ({number(chance)})",
        Evidence("loss", None, loss.steps[0], first, weak * chance),
        "The first outputs are large and wrong.",
    )


def _confident(ctx: CheckContext, first: float, chance: float) -> bool:
    """Many classes make chance itself large: there the distance counts, if it was not made up."""
    loss = ctx.loss
    if loss is None or loss.chance is None:
        return False
    return first - chance >= _NATS and loss.late > 0.7 * chance


def _chance_of_squares(ctx: CheckContext, first: float) -> float | None:
    """Mean square of the targets: first loss minus mean square of outputs still unrelated."""
    if ctx.run.info.get("loss_kind") != "mse" or not _at_start(ctx, Stat.ACT_STD):
        return None
    outputs = [i for i, name in enumerate(ctx.layer_names) if name in ctx.output_layer]
    if not outputs:
        return None
    spread, mean = (
        float(ctx.run.series[stat][0, outputs[-1]]) for stat in (Stat.ACT_STD, Stat.ACT_MEAN)
    )
    mean_square = spread**2 + mean**2
    return max(first - mean_square, 0.03 * first) if mean_square < 1.2 * first else None


def _scales(ctx: CheckContext, limit: float, weak: float) -> Outcome:
    measured = dict(zip(ctx.layer_names, ctx.run.series[Stat.ACT_STD][0], strict=True))
    names = [name for name in ctx.layers_with_weights if measured.get(name, 0.0) > 1e-12]
    if len(names) < 2:
        return
    spreads = np.array([measured[name] for name in names])
    least, most = float(spreads.min()), float(spreads.max())
    ratio = most / least
    if not ratio > weak:
        return
    jump = names[int(np.abs(np.diff(np.log(spreads))).argmax()) + 1]
    yield _bad_start(
        ctx,
        Severity.WARNING if ratio > limit else Severity.INFO,
        (*_loudest(ctx), jump),
        f"layer outputs differ in spread by {number(ratio)} at the first step "
        f"({number(least)} to {number(most)})",
        Evidence(Stat.ACT_STD, names[int(spreads.argmax())], ctx.steps[0], ratio, limit),
        f"The signal grows or fades from layer to layer, most at {jump}.",
    )


def _flat(ctx: CheckContext, limit: float) -> Outcome:
    shares = np.nan_to_num(ctx.run.series[Stat.ACT_FLAT_FRACTION][0])
    flat = {n: share for n, share in zip(ctx.layer_names, shares, strict=True) if share >= limit}
    layers = sorted((name for name in flat if not ctx.is_output(name)), key=ctx.position)
    if not layers:
        return
    name = layers[0]
    yield _bad_start(
        ctx,
        Severity.WARNING,
        tuple(layers),
        f"{percent(flat[name])} of the outputs of {name} are in the flat part at the first step",
        Evidence(Stat.ACT_FLAT_FRACTION, name, ctx.steps[0], flat[name], limit),
        "Inputs or weights are so large that the activation starts saturated.",
    )
