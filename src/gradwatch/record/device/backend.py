"""Parameters on an accelerator: measured there, their rows written when the numbers have come over.

Everything is as on the CPU but the updates, which are taken at 4,096 fixed coordinates per tensor
and say so. What is kept until the numbers are here are host numbers and places in a transfer: no
gradient or parameter lives longer for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS
from gradwatch.record.backend import Backend, OptimizerStep
from gradwatch.record.backend_cpu import SAMPLE, pick
from gradwatch.record.clipping import UNKNOWN, GradTransform, clip_scalars, transform_between
from gradwatch.record.device.gradients import GradientMemory, restoring, send_gradients
from gradwatch.record.device.statistics import (
    BITS,
    SentGroup,
    ShapeGroup,
    at_least_single,
    bins,
    cleaned,
    fingerprint,
    fingerprints_of,
    histograms_of,
    moments_of,
    pieces,
    readable,
    same_shape_groups,
    sent_records,
    spread,
    spread_of,
    supported,
    together,
    wide,
    zero_rows,
)
from gradwatch.record.device.transfer import Load
from gradwatch.record.optimizers import LossScaling, SecondMoment, second_moments
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import (
    FamilyRows,
    Parts,
    PendingRows,
    ReadyRows,
    nothing,
    ready,
)
from gradwatch.record.tensors import KERNEL_DTYPES, aligned, local, number, on_accelerator
from gradwatch.stats import Family, State
from gradwatch.stats.rows import blank, empty_rows, moment_rows


class DeviceBackend(Backend):
    """Launches operations on the device and never waits for one."""

    def __init__(self, scaling: LossScaling) -> None:
        self._scaling = scaling
        self._memory: GradientMemory | None = None
        self._before: list[ShapeGroup] | None = None
        self._skipped_step: int | None = None
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def prepare(self, tracked: TrackedOptimizer) -> None:
        """Nothing: memory on the device is taken when it is first needed."""

    def is_skipped(self, tracked: TrackedOptimizer) -> bool:
        """Not known before the gradients have come over."""
        return False

    def weights(self, tracked: TrackedOptimizer, *, histograms: bool) -> PendingRows:
        """Launch the statistics of the weights; their numbers arrive later."""
        tensors, states = readable(tracked.tensors())
        load = Load()
        groups = [
            _send_weights(load, group, histograms=histograms)
            for group in same_shape_groups(tensors)
        ]

        def finish(arrived: Parts) -> ReadyRows:
            return ReadyRows(families=[_weights(groups, states, arrived)])

        return PendingRows(load.parts, finish)

    def gradients(self, tracked: TrackedOptimizer, call: OptimizerStep) -> PendingRows:
        """Launch the statistics of the gradients; scaling is undone when they arrive."""
        tensors, states = readable(tracked.gradients())
        there = next((tensor for tensor in tensors if tensor is not None), None)
        if there is None:
            rows = moment_rows(Family.GRAD, np.zeros(len(states), MOMENTS), states)
            return ready([FamilyRows(Family.GRAD, rows, states)])
        # Before its step a fused optimizer's gradients are still scaled.
        before_step = tracked is call.tracked and not call.closure
        optimizer = tracked.optimizer if before_step else None
        if optimizer is not None:
            # On the CPU a scaler is looked for when a factor suggests one; here it comes too late.
            self._scaling.search_once(optimizer)
        pairs = tracked.sampler.pairs()
        epsilons = [torch.finfo(now.dtype).eps for _, now in pairs]
        known, overflow = self._scaling.known, getattr(optimizer, "found_inf", None)
        load = Load()
        scales = load.add(
            one_number(getattr(optimizer, "grad_scale", None), 1.0, there),
            one_number(overflow, 0.0, there),
            one_number(self._scaling.tensor, 1.0, there),
        )
        samples = load.add(*(sample for pair in pairs for sample in pair))
        rest = tracked.sampler.left_over
        left_over = load.add(*([] if rest is None else [rest]))
        if self._memory is None:
            self._memory = GradientMemory(tracked)
        sent = send_gradients(
            load,
            self._memory,
            tracked,
            tensors,
            factor=restoring(pairs) if call.histograms else None,
            void=None if overflow is None else one_number(overflow, 0.0, there),
            histograms=call.histograms,
            sketches=call.sketches,
        )
        step, cosines = call.step, call.cosines

        def finish(arrived: Parts) -> ReadyRows:
            held, found_inf, scale = (float(part[0]) for part in arrived[scales])
            scalars: dict[str, float] = {}
            if found_inf > 0:
                self._skipped_step = step
                rows = nothing(Family.GRAD, len(states), State.SKIPPED_STEP)
            else:
                transform = _transform(arrived[samples], epsilons)
                if held == 1.0 and known:
                    transform = transform.unscaled(scale)
                multiplier = 1.0 / (held * transform.factor)
                rows = sent.measured(arrived, states, transform, multiplier, cosines)
                scalars |= clip_scalars(rows, transform)
            for sample in arrived[left_over]:
                scalars["stale"] = float(sample.any())
            if found_inf > 0 or known:
                scalars["skipped"] = float(found_inf > 0)
            return ReadyRows(families=[rows], scalars=scalars, skipped=found_inf > 0)

        return PendingRows(load.parts, finish)

    def snapshot(self, tracked: TrackedOptimizer) -> None:
        """At the fixed coordinates, on the device."""
        self._before = picked(readable(tracked.tensors())[0])

    def drop_snapshot(self) -> None:
        """Let the copy go unused: the step did not come about."""
        self._before = None

    def updates(self, call: OptimizerStep) -> PendingRows:
        """Launch what compares the weights with the snapshot, and Adam's ratios."""
        tracked, step, load = call.tracked, call.step, Load()
        sent = []
        before, self._before = self._before, None
        if Family.UPDATE in call.due and before is not None:
            pulls = readable(tracked.gradients())[0]
            sent.append(send_update(load, before, *readable(tracked.tensors()), pulls))
        if Family.OPTIM in call.due:
            count = len(load.parts)
            adam = send_adam(load, second_moments(tracked), len(tracked.parameters))
            if len(load.parts) > count:
                sent.append(adam)

        def finish(arrived: Parts) -> ReadyRows:
            families = [finished(arrived) for finished in sent]
            for rows in families:
                if self._skipped_step == step:  # the step made nothing
                    rows.states[:] = State.SKIPPED_STEP
                blank(rows.family, rows.rows, rows.states)
            return ReadyRows(families=families)

        return PendingRows(load.parts, finish)


def one_number(value: Any, default: float, like: Tensor) -> Tensor:
    """One number as a tensor on the device of `like`, without asking what it is."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)[:1].to(like.device, non_blocking=True)
    return torch.full((1,), float(default if value is None else value), device=like.device)


def _transform(samples: Parts, epsilons: list[float]) -> GradTransform:
    if not samples:
        return UNKNOWN
    return transform_between(list(zip(samples[::2], samples[1::2], epsilons, strict=True)))


# -- weights -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WeightGroup(SentGroup):
    hashes: slice
    zero_rows: slice
    spread: slice


def _send_weights(load: Load, group: ShapeGroup, *, histograms: bool) -> _WeightGroup:
    device = group.matrix.device
    counts = supported("histograms", device, lambda: bins(group)) if histograms else None
    spreads = (
        supported("spreads of rows", device, lambda: spread(group)) if group.rows > 1 else None
    )
    return _WeightGroup(
        list(group.indices),
        [piece.shape[1] for piece in group.pieces],
        load.add(*moments_of(group)),
        load.add(*(counts or ())),
        load.add(fingerprint(group)),
        load.add(*([zero_rows(group)] if group.rows else [])),
        load.add(*([] if spreads is None else [spreads])),
    )


def _weights(groups: list[_WeightGroup], states: NDArray[np.uint8], arrived: Parts) -> FamilyRows:
    records = sent_records(groups, len(states), arrived)
    for group in groups:
        for counts in arrived[group.zero_rows]:
            records["zero_rows"][group.indices] = counts
    rows = moment_rows(Family.WEIGHT, records, states)
    for group in groups:
        rows["weight_hash"][group.indices] = fingerprints_of(arrived[group.hashes][0])
        for numbers in arrived[group.spread]:
            rows["weight_row_spread"][group.indices] = spread_of(numbers)
    return FamilyRows(Family.WEIGHT, rows, states, histograms_of(groups, arrived, records))


_UPDATE = ("update_norm", "update_ratio", "update_lost_fraction")
_OPTIM = ("optim_ratio_rms", "optim_eps_fraction")


def send_update(
    load: Load,
    before: Sequence[ShapeGroup],
    parameters: Sequence[Tensor | None],
    states: NDArray[np.uint8],
    pulls: Sequence[Tensor | None],
) -> Callable[[Parts], FamilyRows]:
    """What has changed at the coordinates picked before; `pulls` are the gradients."""
    groups: list[tuple[slice, list[int], NDArray[np.float64], int]] = []
    compared = np.zeros(len(parameters), bool)
    for old in fitting(before, parameters):
        indices = list(old.indices)
        sizes = [p.numel() for index in indices if (p := parameters[index]) is not None]
        place = load.add(change(old, parameters, pulls))
        groups.append((place, indices, np.array(sizes, float), old.matrix.shape[1]))
        compared[indices] = True
    empty = (states == State.MEASURED) & np.array([p is None for p in parameters], bool)
    gone = ~compared & ~empty
    states[gone] = np.maximum(states[gone], State.NOT_SAMPLED)

    def finish(arrived: Parts) -> FamilyRows:
        rows = empty_rows(Family.UPDATE, len(states))
        rows["update_norm"][empty] = 0.0
        for place, indices, sizes, seen in groups:
            columns = changes_of(arrived[place][0], sizes, seen)
            for name, column in zip(_UPDATE, columns.T, strict=True):
                rows[name][indices] = column
            states[np.array(indices)[sizes > seen]] = State.SAMPLED
        return FamilyRows(Family.UPDATE, rows, states)

    return finish


def send_adam(
    load: Load, moments: Sequence[SecondMoment], total: int
) -> Callable[[Parts], FamilyRows]:
    """The ratio of every parameter that has a second moment."""
    gradients: list[Tensor | None] = [None] * total
    by_index = {moment.index: moment for moment in moments}
    labels: dict[tuple[Any, ...], int] = {}
    apart = np.zeros(total, np.int64)
    for index, moment in by_index.items():
        gradient = local(moment.gradient).detach()
        if gradient.layout is not torch.strided or gradient.dtype not in KERNEL_DTYPES:
            continue
        if gradient.numel() and not gradient.is_meta:
            gradients[index] = gradient
            # A count that lives on the device stays there; others are numbers already.
            count = None if on_accelerator(moment.step) else number(moment.step)
            key = count, moment.beta, moment.epsilon, moment.second.dtype
            apart[index] = labels.setdefault(key, len(labels))
    groups = []
    for group in same_shape_groups(gradients, apart):
        parts = adam_ratio(group, [by_index[i] for i in group.indices], gradients)
        groups.append((load.add(*parts), list(group.indices), group.matrix.shape[1]))

    def finish(arrived: Parts) -> FamilyRows:
        rows = empty_rows(Family.OPTIM, total)
        states = np.full(total, State.NO_GRADIENT, np.uint8)
        for place, indices, size in groups:
            columns = ratios_of(size, arrived[place])
            for name, column in zip(_OPTIM, columns.T, strict=True):
                rows[name][indices] = column
            states[indices] = State.MEASURED
        return FamilyRows(Family.OPTIM, rows, states)

    return finish


def picked(tensors: Sequence[Tensor | None]) -> list[ShapeGroup]:
    """The fixed coordinates of the tensors, copied."""
    groups = same_shape_groups([None if tensor is None else _pick(tensor) for tensor in tensors])
    # A tensor that is alone in its group is not copied by being put there.
    return [
        group if len(group.indices) > 1 else ShapeGroup(group.indices, group.matrix.clone(), 0)
        for group in groups
    ]


def _pick(tensor: Tensor) -> Tensor:
    """In the order of indices, which is the same for a weight and its gradient."""
    return pick(tensor.detach()).reshape(-1)


def fitting(before: Sequence[ShapeGroup], parameters: Sequence[Tensor | None]) -> list[ShapeGroup]:
    """What was picked, without tensors that have gone or become others since."""
    groups = []
    for old in before:
        fits = [
            index < len(parameters)
            and (now := parameters[index]) is not None
            and now.device == old.matrix.device
            and now.dtype is old.matrix.dtype
            and min(now.numel(), SAMPLE) == old.matrix.shape[1]
            for index in old.indices
        ]
        if all(fits):
            groups.append(old)
        elif any(fits):
            lines = [line for line, fit in enumerate(fits) if fit]
            indices = tuple(old.indices[line] for line in lines)
            groups.append(ShapeGroup(indices, torch.stack([old.matrix[line] for line in lines]), 0))
    return groups


def change(
    old: ShapeGroup, parameters: Sequence[Tensor | None], pulls: Sequence[Tensor | None]
) -> Tensor:
    """[4, tensor]: norm of the change and of the weight, coordinates pulled at, and lost ones."""
    kind = wide(old.matrix.device)
    new = together([_pick(p) for i in old.indices if (p := parameters[i]) is not None])
    nothing = new.new_zeros(new.shape[1])
    pulled = together([nothing if (g := pulls[i]) is None else _pick(g) for i in old.indices])
    moved = pulled != 0
    away = new.to(kind) - old.matrix.to(kind)
    return torch.stack(
        [
            torch.linalg.vector_norm(cleaned(away), 2, dim=1),
            torch.linalg.vector_norm(cleaned(old.matrix), 2, dim=1, dtype=kind),
            moved.sum(1, dtype=kind),
            (moved & (_bits(new) == _bits(old.matrix))).sum(1, dtype=kind),
        ]
    )


def _bits(matrix: Tensor) -> Tensor:
    """To compare NaN with NaN, and to tell −0 from 0."""
    return matrix.view(BITS[matrix.itemsize])


def changes_of(
    numbers: NDArray[np.float64], sizes: NDArray[np.float64], seen: int
) -> NDArray[np.float64]:
    """[tensor, 3]: norm of the change (of the whole, as estimated), its ratio, the lost share."""
    moved_by, weight, moved, lost = numbers.reshape(4, -1)
    with np.errstate(all="ignore"):
        ratio = np.where(weight > 0, moved_by / weight, np.nan)
        return np.stack([moved_by * np.sqrt(sizes / seen), ratio, lost / moved], axis=1)


def adam_ratio(
    group: ShapeGroup, moments: Sequence[SecondMoment], gradients: Sequence[Tensor | None]
) -> list[Tensor]:
    """Of each piece [3, tensor]: norm of the finite g/(√v̂+ε), how many are not, √v̂ below ε.

    `moments` are those of the tensors of the group, whose steps were all corrected alike.
    """
    kind, first = wide(group.matrix.device), moments[0]
    correction: float | Tensor
    if on_accelerator(first.step):
        counts = torch.stack([moment.step.detach().reshape(1) for moment in moments])
        correction = 1 - torch.pow(first.beta, counts)
    else:
        correction = 1.0 - first.beta ** number(first.step)
    pairs = [(moment.second.detach(), gradients[moment.index]) for moment in moments]
    seconds = [aligned(second, g) for second, g in pairs if g is not None]
    matrix = together([second for second in seconds if second is not None])
    sums = []
    for g, v in zip(group.pieces, pieces(matrix), strict=True):
        root = (at_least_single(v) / correction).sqrt_()
        small = (root < first.epsilon).sum(1, dtype=kind)
        ratio = at_least_single(g) / root.add_(first.epsilon)
        finite = cleaned(ratio)
        norm = torch.linalg.vector_norm(finite, 2, dim=1, dtype=kind)
        sums.append(torch.stack([norm, (finite != ratio).sum(1, dtype=kind), small]))
    return sums


def ratios_of(size: int, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[tensor, 2]: RMS of the ratio, share of coordinates with √v̂ < ε."""
    norms, bad, small = np.stack([piece.reshape(3, -1) for piece in parts], axis=1)
    with np.errstate(all="ignore"):
        rms = np.sqrt((norms**2).sum(0) / (size - bad.sum(0)))
    return np.stack([rms, small.sum(0) / size], axis=1)
