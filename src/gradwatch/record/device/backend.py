"""Parameters on an accelerator: measured there, their rows written when the numbers have come over.

Everything is as on the CPU but the updates, which are taken at 4,096 fixed coordinates per tensor
and say so. What is kept until the numbers are here are host numbers and places in a transfer: no
gradient or parameter lives longer for it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS
from gradwatch.record.backend import Backend, OptimizerStep
from gradwatch.record.clipping import UNKNOWN, GradTransform, clip_scalars, transform_between
from gradwatch.record.device import updates
from gradwatch.record.device.gradients import GradientMemory, restoring, send_gradients
from gradwatch.record.device.groups import ShapeGroup, readable, same_shape_groups, supported
from gradwatch.record.device.statistics import (
    SentGroup,
    bins,
    fingerprint,
    fingerprints_of,
    histograms_of,
    moments_of,
    sent_records,
    spread,
    spread_of,
    zero_rows,
)
from gradwatch.record.device.transfer import Load
from gradwatch.record.optimizers import second_moments
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import (
    FamilyRows,
    Parts,
    PendingRows,
    ReadyRows,
    blank,
    moment_rows,
    nothing,
    ready,
)
from gradwatch.record.scaling import LossScaling
from gradwatch.stats import Family, State


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
        self._before = updates.picked(readable(tracked.tensors())[0])

    def drop_snapshot(self) -> None:
        self._before = None

    def updates(self, call: OptimizerStep) -> PendingRows:
        tracked, step, load = call.tracked, call.step, Load()
        sent = []
        before, self._before = self._before, None
        if Family.UPDATE in call.due and before is not None:
            pulls = readable(tracked.gradients())[0]
            sent.append(updates.update(load, before, *readable(tracked.tensors()), pulls))
        if Family.OPTIM in call.due:
            count = len(load.parts)
            adam = updates.adam(load, second_moments(tracked), len(tracked.parameters))
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
