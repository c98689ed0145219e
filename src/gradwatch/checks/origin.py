"""Where the first NaN or Inf came from: step, phase and layer."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradwatch.checks.context import CheckContext, context
from gradwatch.run import Run
from gradwatch.stats import Kind, Stat


class StepPhase(StrEnum):
    """The parts of a training step, in the order of time."""

    INPUT = "input"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Origin:
    """The first non-finite value of a run."""

    step: int
    phase: StepPhase
    layers: tuple[str, ...]
    stat: str
    subject: str | None
    measured: float


def origin(run: Run) -> Origin | None:
    """The origin of what made loss, gradients or weights non-finite; None in a finite run."""
    ctx = context(run)
    if ctx.end >= len(run.steps):
        return None
    row = ctx.end
    early = _input_or_forward(run, row)
    if early is not None:
        return early
    weights = _first_bad(run, ctx, row, (Stat.WEIGHT_NAN, Stat.WEIGHT_INF))
    if weights is not None:  # bad before this step's forward: the update of the step before
        return _update(run, ctx, row, weights)
    if _scalar(run, "loss_nonfinite", row) or not np.isfinite(_scalar(run, "loss", row)):
        step = int(run.steps[row])
        last = ctx.output_layer
        return Origin(step, StepPhase.LOSS, (last,) if last else (), "loss", None, float("nan"))
    return _backward(run, ctx, row)


def _scalar(run: Run, name: str, row: int) -> float:
    values = run.scalars.get(name)
    return 0.0 if values is None or np.isnan(values[row]) else float(values[row])


def _input_or_forward(run: Run, row: int) -> Origin | None:
    """The forward pass of this step or the one before it, when its probes saw something."""
    for at in (row - 1, row):
        if at < 0:
            continue
        step = int(run.steps[at])
        if count := _scalar(run, "input_nonfinite", at):
            first = context(run).input_layer
            entry = (first,) if first else ()
            return Origin(step, StepPhase.INPUT, entry, "input_nonfinite", None, count)
        if Stat.PROBE_NONFINITE not in run.recorded or _weights_bad(run, at):
            continue
        out = np.nan_to_num(run.series[Stat.PROBE_NONFINITE][at])
        came = np.nan_to_num(run.series[Stat.PROBE_INPUT_NONFINITE][at])
        if (out > 0).any():
            born = np.flatnonzero((out > 0) & ~(came > 0))
            column = _earliest(run, born, out)
            layer = run.by_kind[Kind.LAYER][column].name
            layers = (layer,) if len(born) else _between(run, column, out)
            measured = float(out[column])
            return Origin(step, StepPhase.FORWARD, layers, Stat.PROBE_NONFINITE, layer, measured)
    return None


def _weights_bad(run: Run, row: int) -> bool:
    return any(
        stat in run.recorded and bool((np.nan_to_num(run.series[stat][row]) > 0).any())
        for stat in (Stat.WEIGHT_NAN, Stat.WEIGHT_INF)
    )


def _earliest(run: Run, columns: NDArray[np.intp], out: NDArray[np.float64]) -> int:
    """The first of these layers in forward order; among all bad ones where none had clean input."""
    if not len(columns):
        columns = np.flatnonzero(out > 0)
    order = context(run).forward_order
    names = run.by_kind[Kind.LAYER]
    return int(min(columns, key=lambda column: order.get(names[column].name, 1 << 30)))


def _between(run: Run, column: int, out: NDArray[np.float64]) -> tuple[str, ...]:
    """No layer made it of a finite input: it was made between two, in a layer that holds both."""
    names = [subject.name for subject in run.by_kind[Kind.LAYER]]
    order = context(run).forward_order
    here = order.get(names[column], 0)
    before = [n for n, bad in zip(names, out, strict=True) if not bad and order.get(n, here) < here]
    if not before:
        return (names[column],)
    last = max(before, key=lambda name: order[name]).split(".")
    shared = []
    for one, other in zip(last, names[column].split("."), strict=False):
        if one != other:
            break
        shared.append(one)
    return (".".join(shared), names[column]) if shared else (names[column],)


def _first_bad(
    run: Run, ctx: CheckContext, row: int, stats: tuple[Stat, ...]
) -> NDArray[np.intp] | None:
    """Parameters with a positive count in this row, in forward order."""
    found = np.zeros(len(run.names), bool)
    for stat in stats:
        if stat in run.recorded:
            found |= np.nan_to_num(run.series[stat][row]) > 0
    columns = np.flatnonzero(found)
    if not len(columns):
        return None
    keys = [ctx.forward_order.get(ctx.layer(int(c)), 1 << 30) for c in columns]
    return columns[np.argsort(keys, kind="stable")]


def _update(run: Run, ctx: CheckContext, row: int, columns: NDArray[np.intp]) -> Origin:
    """Bad weights: their gradient was bad (backward, not seen in its own row) or the step was."""
    column = int(columns[0])
    layers = ctx.layers(columns)[:3]
    step = int(run.steps[max(row - 1, 0)])
    name = run.names[column]
    return Origin(step, StepPhase.UPDATE, layers, Stat.WEIGHT_NAN, name, 1.0)


def _backward(run: Run, ctx: CheckContext, row: int) -> Origin:
    """Gradients flow backwards, so the last layer in forward order is where it began."""
    columns = _first_bad(run, ctx, row, (Stat.GRAD_NAN, Stat.GRAD_INF))
    step = int(run.steps[row])
    if columns is None:
        return Origin(step, StepPhase.BACKWARD, (), Stat.GRAD_NAN, None, float("nan"))
    column = int(columns[-1])
    measured = float(np.nan_to_num(run.series[Stat.GRAD_NAN][row, column]))
    layer = ctx.layer(column)
    return Origin(step, StepPhase.BACKWARD, (layer,), Stat.GRAD_NAN, run.names[column], measured)
