"""A loss, gradient, weight or layer output became NaN or infinite.

What is seen: every step counts the non-finite elements of gradients and weights, of the
loss and the inputs, and of a sample of each layer's output. The first step with any of them
is the onset. The origin is the first layer, in forward order, whose input was finite and
whose output was not; where the forward pass and the loss were still finite, the last layer
(in forward order) with a bad gradient; where even the gradients were finite, the layer
whose weights turned bad in the update.

Why it hurts: one NaN reaches every weight within a step or two. What is learnt afterwards
is nothing.

What helps: look at the phase. Weights: mend how they are made or loaded. Input: clean the
batch. Forward: a division, log, sqrt or exp without a guard, or activations beyond the range
of float16. Loss: log of zero; use the fused, logit-taking loss. Backward: sqrt or norm at
zero, 0 × Inf in a masked branch. Update: learning rate too large, no clipping.

Threshold: none, one element is enough. Overflowing steps that a gradient scaler skipped do
not count, nor do infinite outputs a network shows from the first step while loss and
gradients stay finite (masks).
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

import numpy as np

from gradwatch.checks import limits
from gradwatch.checks.check import Evidence, Outcome, Run, Severity, Stat, finding
from gradwatch.checks.context import CheckContext, Mask, context
from gradwatch.checks.limits import Rule
from gradwatch.stats.medians import Array
from gradwatch.text import named, number, several

NAME = "nonfinite"
NEEDS: frozenset[str] = frozenset()


class StepPhase(StrEnum):
    """The parts of a training step, in the order of time."""

    BEFORE = "weights"
    INPUT = "input"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


_CAUSE = {
    StepPhase.BEFORE: "The weights held NaN or Inf before anything was trained.",
    StepPhase.INPUT: "The batch itself held NaN or Inf.",
    StepPhase.FORWARD: "A finite input became non-finite inside this layer.",
    StepPhase.LOSS: "All layer outputs were finite; the loss function made it.",
    StepPhase.BACKWARD: "The forward pass and the loss were finite; the derivative was not.",
    StepPhase.UPDATE: "The gradients were finite; the optimizer's step was not.",
}
_UNREAD = (
    "What this layer was fed with could not be read (its type or layout): either the batch held "
    "NaN or Inf, or the layer made it."
)
_EXP = 80.0
"""Beyond e⁸⁸ float32 is infinite; a sample of the outputs may have missed the largest."""
_ADVICE = {
    StepPhase.BEFORE: ("Look at how they are made or loaded: initialisation, checkpoint.",),
    StepPhase.INPUT: ("Look at that batch; drop or repair rows that are not finite.",),
    StepPhase.FORWARD: (
        "Look for log, sqrt, division or exp without a guard in this layer.",
        "Lower the learning rate or clip gradients if values had been growing.",
        "In float16 keep this layer in float32.",
    ),
    StepPhase.LOSS: (
        "Use the loss that takes logits, or clamp what goes into the log.",
        "Check the targets of that batch.",
    ),
    StepPhase.BACKWARD: (
        "Look for sqrt, norm or pow at zero, and for masked branches (0 × Inf).",
        "Add a small constant inside the root.",
    ),
    StepPhase.UPDATE: (
        "Lower the learning rate; clip gradients by norm.",
        "Check the optimizer's epsilon and the precision of its state.",
    ),
}


def check(run: Run, *, mask_share: float = limits.MASK) -> Outcome:
    """Yield the first non-finite value with its layer and phase."""
    ctx = context(run)
    if not ctx.went_bad:
        yield from _outputs_only(ctx, mask_share)
        return
    origin, bad = _origin(ctx, ctx.end), limits.nonfinite_cells(ctx)
    began = set(origin.layers)
    columns = np.flatnonzero(bad.any(axis=0))
    where = f" in {several(origin.layers)}" if origin.layers else ""
    phase = "forward pass" if origin.phase is StepPhase.FORWARD else origin.phase.value
    text = f"NaN or Inf first appears at step {origin.step}, in the {phase}{where}"
    if origin.phase is StepPhase.BEFORE:
        text = f"NaN or Inf was in the weights before step {origin.step}{where}"
    yield finding(
        NAME,
        limits.severity(ctx, Rule.NON_FINITE, Severity.CRITICAL),
        origin.layers,
        (origin.step, ctx.steps[ctx.nonfinite_rows][-1]),
        text,
        Evidence(origin.stat, origin.subject, origin.step, origin.measured, 0.0),
        cause=_cause(origin),
        advice=(*_ADVICE[StepPhase.INPUT] * origin.unread, *_ADVICE[origin.phase]),
        tensors=[run.names[column] for column in columns if ctx.layer(column) in began],
    )
    yield from _reached(ctx, began, bad)


def _cause(origin: "Origin") -> str:
    if origin.too_large:
        first, then = origin.layers
        return (
            f"{first} gave up to {number(origin.too_large)}, which is finite, and what was made of "
            f"it on the way to {then} is not: the exponential of more than 88 is infinite."
        )
    return _UNREAD if origin.unread else _CAUSE[origin.phase]


def _reached(ctx: CheckContext, began: set[str], bad: Mask) -> Outcome:
    """What NaN or Inf got into besides: what follows, not where it came from."""
    outputs, found = limits.nonfinite_outputs(ctx), np.flatnonzero(bad.any(axis=0))
    onset = bad[:, found].argmax(axis=0)
    by_onset: list[int] = found[np.argsort(onset, kind="stable")].tolist()
    columns = [column for column in by_onset if ctx.layer(column) not in began]
    spoilt = [ctx.layer_names[i] for i in np.flatnonzero(outputs.any(axis=0))]
    layers = tuple(dict.fromkeys([*ctx.layers(columns), *(n for n in spoilt if n not in began)]))
    if not layers:
        return
    rows = np.flatnonzero(bad[:, columns].any(axis=1) | outputs.any(axis=1))
    late = rows[rows >= ctx.end]
    steps = ctx.steps[late if len(late) else rows]
    name, step = (ctx.run.names[columns[0]] if columns else layers[0]), int(steps[0])
    yield finding(
        NAME,
        limits.severity(ctx, Rule.NON_FINITE, Severity.WARNING),
        layers,
        steps,
        f"from step {step} on NaN or Inf reached {several(layers)}",
        Evidence(Stat.GRAD_NAN, name, step, float("nan"), 0.0),
        cause="Whatever comes after the first NaN or Inf is spoilt by it.",
        advice=("Mend the layer in which it began; nothing is wrong with these.",),
        tensors=[ctx.run.names[column] for column in columns],
    )


def _outputs_only(ctx: CheckContext, mask_share: float) -> Outcome:
    """Layer outputs that are not finite while loss, gradients and weights are."""
    bad = limits.nonfinite_outputs(ctx)
    if not bad.any():
        return
    made_here = bad & ~ctx.counted(Stat.PROBE_INPUT_NONFINITE)
    row = int((made_here if made_here.any() else bad).any(axis=1).argmax())
    origin = int((made_here if made_here.any() else bad)[row].argmax())
    layers = [ctx.layer_names[i] for i in (origin, *np.flatnonzero(bad.any(axis=0)))]
    masks, step = limits.outputs_are_masks(ctx, mask_share), ctx.steps[row]
    yield finding(
        NAME,
        limits.severity(ctx, Rule.NON_FINITE, Severity.INFO if masks else Severity.WARNING),
        tuple(dict.fromkeys(layers)),
        ctx.steps[bad.any(axis=1)],
        f"{named(layers[0])} gives NaN or Inf from step {step}; loss and gradients are finite",
        Evidence(Stat.PROBE_NONFINITE, layers[0], step, bad[row].sum(), 0.0),
        cause="Looks like a mask." if masks else _CAUSE[StepPhase.FORWARD],
        advice=_ADVICE[StepPhase.FORWARD][:1],
    )


# -- where it came from --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """The first non-finite value of a run."""

    step: int
    phase: StepPhase
    layers: tuple[str, ...]
    stat: str
    subject: str | None
    measured: float
    unread: bool = False
    """Nobody knows whether the layer's input was finite."""
    too_large: float = 0.0
    """The largest output of the first layer, where an exponential of it would be infinite."""


def _origin(ctx: CheckContext, row: int) -> Origin:
    """What made loss, gradients or weights of this row non-finite, the earliest phase first."""
    if first := _bad_parameters(ctx, 0, Stat.WEIGHT_NAN, Stat.WEIGHT_INF):
        stat, count = _count(ctx, 0, first[0], Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
        name, layers = ctx.run.names[first[0]], ctx.layers(first)[:3]
        return Origin(int(ctx.steps[0]), StepPhase.BEFORE, layers, stat, name, count)
    for earlier in (row - 1, row):  # the probes may have seen it a step before it reached the loss
        origin = _input_or_forward(ctx, earlier) if earlier >= 0 else None
        if origin is not None:
            return origin
    weights = _bad_parameters(ctx, row, Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
    if weights:  # bad before this step's forward: the update of the step before
        name, layers = ctx.run.names[weights[0]], ctx.layers(weights)[:3]
        step = int(ctx.steps[max(row - 1, 0)])
        stat, count = _count(ctx, row, weights[0], Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
        return Origin(step, StepPhase.UPDATE, layers, stat, name, count)
    step = int(ctx.steps[row])
    if _scalar(ctx, "loss_nonfinite", row) or not np.isfinite(_scalar(ctx, "loss", row)):
        return Origin(step, StepPhase.LOSS, ctx.output_layer, "loss", None, float("nan"))
    gradients = _bad_parameters(ctx, row, Stat.GRAD_NAN, Stat.GRAD_INF)
    if not gradients:
        return Origin(step, StepPhase.BACKWARD, (), Stat.GRAD_NAN, None, float("nan"))
    column = gradients[-1]  # gradients flow backwards: the last layer is where it began
    stat, count = _count(ctx, row, column, Stat.GRAD_NAN, Stat.GRAD_INF)
    name, layers = ctx.run.names[column], ctx.layers([column])
    return Origin(step, StepPhase.BACKWARD, layers, stat, name, count)


def _scalar(ctx: CheckContext, name: str, row: int) -> float:
    values = ctx.run.scalars.get(name)
    return 0.0 if values is None or np.isnan(values[row]) else float(values[row])


def _input_or_forward(ctx: CheckContext, row: int) -> Origin | None:
    """The input or the layer in which the probes of this row saw something begin."""
    step = int(ctx.steps[row])
    if count := _scalar(ctx, "input_nonfinite", row):
        return Origin(step, StepPhase.INPUT, ctx.input_layer, "input_nonfinite", None, count)
    weights_bad = ctx.bad(Stat.WEIGHT_NAN, Stat.WEIGHT_INF)[row]
    if Stat.PROBE_NONFINITE not in ctx.run.recorded or weights_bad:
        return None
    outputs = np.nan_to_num(ctx.run.at(Stat.PROBE_NONFINITE, row))
    inputs = np.nan_to_num(ctx.run.at(Stat.PROBE_INPUT_NONFINITE, row))
    if not (outputs > 0).any():
        return None
    made_here = np.flatnonzero((outputs > 0) & ~(inputs > 0))
    candidates = made_here if len(made_here) else np.flatnonzero(outputs > 0)
    column = min(candidates, key=lambda column: ctx.position(ctx.layer_names[column]))
    layer = ctx.layer_names[column]
    extreme = None if len(made_here) else _extreme(ctx, row, layer, outputs)
    layers = (layer,) if len(made_here) else _between(ctx, layer, outputs)
    layers, too_large = extreme or (layers, 0.0)
    count, unread = float(outputs[column]), _scalar(ctx, "probe_input_unread", row) > 0
    stat = Stat.PROBE_NONFINITE
    return Origin(step, StepPhase.FORWARD, layers, stat, layer, count, unread, too_large)


def _extreme(
    ctx: CheckContext, row: int, layer: str, outputs: Array
) -> tuple[tuple[str, ...], float] | None:
    """The one feeding layer, and this, whose finite output has no finite exponential any more."""
    graph = ctx.run.graph
    if graph.assumed or Stat.ACT_ABS_MAX not in ctx.run.recorded:
        return None
    feeding = set(graph.predecessors.get(layer, ()))
    known = zip(ctx.layer_names, ctx.run.at(Stat.ACT_ABS_MAX, row), outputs, strict=True)
    large = [(name, float(size)) for name, size, bad in known if size > _EXP and not bad]
    large = [(name, size) for name, size in large if name in feeding]
    return ((large[0][0], layer), large[0][1]) if len(large) == 1 else None


def _between(ctx: CheckContext, layer: str, outputs: Array) -> tuple[str, ...]:
    """No layer made it of a finite input: it was made between two, in a layer that holds both."""
    finite = [n for n, bad in zip(ctx.layer_names, outputs, strict=True) if not bad]
    before = [name for name in finite if ctx.position(name) < ctx.position(layer)]
    if not before:
        return (layer,)
    pairs = zip(layer.split("."), max(before, key=ctx.position).split("."), strict=False)
    shared = [mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return (".".join(shared), layer) if shared else (layer,)


def _bad_parameters(ctx: CheckContext, row: int, *stats: Stat) -> list[int]:
    """Parameters with a positive count in this row, in forward order."""
    return ctx.in_forward_order(ctx.counted(*stats)[row])


def _count(ctx: CheckContext, row: int, column: int, *stats: Stat) -> tuple[Stat, float]:
    """The first of these counters that is above zero there, and its count."""
    counts = ((stat, float(ctx.run.at(stat, row, column))) for stat in stats)
    return next(pair for pair in counts if pair[1] > 0)
