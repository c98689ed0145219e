"""Parameters on an accelerator: measured there, their rows written when the numbers have come over.

Everything is as on the CPU but the updates, which are taken at 4,096 fixed coordinates per tensor
where copies would take too much memory, and say so. What is kept until the numbers are here are
host numbers and places in a transfer: no gradient or parameter lives longer for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import frexp, isfinite
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import ADAM, MOMENTS, UPDATE, Bins, BinTable
from gradwatch.record.backend import Backend, OptimizerStep
from gradwatch.record.clipping import (
    TOLERANCE,
    UNKNOWN,
    GradTransform,
    clip_scalars,
    transform_between,
)
from gradwatch.record.device.engine import (
    DeviceDivisors,
    DeviceMeasurement,
    DeviceSteps,
    Engine,
    Places,
    RowTimes,
    Sent,
    Snapshot,
    Wanted,
)
from gradwatch.record.device.torch_engine import TorchEngine, readable
from gradwatch.record.device.transfer import Load, cleaned, wide
from gradwatch.record.optimizers import LossScaling, second_moments
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import FamilyRows, Parts, PendingRows, ReadyRows, nothing, ready
from gradwatch.record.tensors import number, on_accelerator
from gradwatch.run import HistogramTable
from gradwatch.stats import Family, State
from gradwatch.stats.rows import blank, empty_rows, fill_sketches, moment_rows, update_rows

_CLOSE = 1e-3
_Result = TypeVar("_Result")
ByDevice = dict[torch.device, list[Tensor | None]]
"""Of each device all tensors, None where one lies elsewhere."""


class DeviceBackend(Backend):
    """Has engines launch operations on the devices and never waits for one."""

    def __init__(
        self,
        scaling: LossScaling,
        make_engine: Callable[[torch.device], Engine] = TorchEngine,
    ) -> None:
        self._scaling = scaling
        self._make_engine = make_engine
        self._engines: dict[torch.device, Engine] = {}
        self._rows: dict[torch.device, RowTimes] = {}
        self._before: dict[torch.device, Snapshot] | None = None
        self._skipped_step: int | None = None
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def prepare(self, tracked: TrackedOptimizer) -> None:
        """Nothing: memory on the device is taken when it is first needed."""

    def is_skipped(self, tracked: TrackedOptimizer) -> bool:
        """Not known before the gradients have come over."""
        return False

    def _engine(self, device: torch.device) -> Engine:
        if device not in self._engines:
            self._engines[device] = self._make_engine(device)
        return self._engines[device]

    def weights(self, tracked: TrackedOptimizer, *, histograms: bool) -> PendingRows:
        """Launch the statistics of the weights; their numbers arrive later."""
        tensors, states = readable(tracked.tensors())
        placed, load = by_device(tensors), Load()
        if any(capturing(device) for device in placed):
            return ready([nothing(Family.WEIGHT, len(states), State.NOT_SAMPLED)])
        wanted = Wanted(histograms=histograms, hashes=True)
        sent = {
            device: _send(load, self._engine(device).measure(some, _places(tracked), wanted))
            for device, some in placed.items()
        }
        sizes, whose = _sizes(tensors), _whose(placed)

        def finish(arrived: Parts) -> ReadyRows:
            found = _together(whose, {d: one(arrived) for d, one in sent.items()})
            _leave_out(states, sizes, found.records["count"] > 0)
            rows = moment_rows(Family.WEIGHT, found.records, states)
            if found.hashes is not None and found.spreads is not None:
                rows["weight_hash"], rows["weight_row_spread"] = found.hashes, found.spreads
            weights = blank(Family.WEIGHT, rows, states)
            return ReadyRows(
                families=[FamilyRows(Family.WEIGHT, weights, states, _histograms(found))]
            )

        return PendingRows(load.parts, finish)

    def gradients(self, tracked: TrackedOptimizer, call: OptimizerStep) -> PendingRows:
        """Launch the statistics of the gradients; scaling is undone when they arrive."""
        tensors, states = readable(tracked.gradients())
        placed, load = by_device(tensors), Load()
        if any(capturing(device) for device in placed):
            return ready([nothing(Family.GRAD, len(states), State.NOT_SAMPLED)])
        if not placed:
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
        held = _number(load, getattr(optimizer, "grad_scale", None), 1.0)
        found_inf = _number(load, overflow, 0.0)
        scale = _number(load, self._scaling.tensor, 1.0)
        samples = load.add(*(sample for pair in pairs for sample in pair))
        rest = tracked.sampler.left_over
        left_over = load.add(*([] if rest is None else [rest]))
        factor = restoring(pairs) if call.histograms else None
        wanted = Wanted(histograms=call.histograms, sketches=call.sketches)
        applied = load.add(*([] if factor is None else [factor]))
        sent = {}
        for device, some in placed.items():
            here = replace(
                wanted,
                rows=self._rows_on(device, tracked, some),
                factor=None if factor is None else one_number(factor, device),
                void=None if overflow is None else one_number(overflow, device),
            )
            sent[device] = _send(load, self._engine(device).measure(some, _places(tracked), here))
        step, cosines, last = call.step, call.cosines, tracked.last_sketch
        sizes, whose = _sizes(tensors), _whose(placed)

        def finish(arrived: Parts) -> ReadyRows:
            overflowed = found_inf(arrived) > 0
            scalars: dict[str, float] = {}
            found = _together(whose, {d: one(arrived) for d, one in sent.items()})
            if overflowed:
                self._skipped_step = step
                rows = nothing(Family.GRAD, len(states), State.SKIPPED_STEP)
            else:
                transform = _transform(arrived[samples], epsilons)
                if held(arrived) == 1.0 and known:
                    transform = transform.unscaled(scale(arrived))
                multiplier = 1.0 / (held(arrived) * transform.factor)
                _leave_out(states, sizes, found.records["count"] > 0)
                if not transform.undoable:
                    states[states == State.MEASURED] = State.CLIPPED
                done = float(arrived[applied][0][0]) if factor is not None else 1.0
                rows = _gradient_rows(found, states, multiplier, done, last, cosines=cosines)
                scalars |= clip_scalars(rows, transform)
            for sample in arrived[left_over]:
                scalars["stale"] = float(sample.any())
            if overflowed or known:
                scalars["skipped"] = float(overflowed)
            return ReadyRows(families=[rows], scalars=scalars, skipped=overflowed)

        return PendingRows(load.parts, finish)

    def _rows_on(
        self, device: torch.device, tracked: TrackedOptimizer, gradients: Sequence[Tensor | None]
    ) -> RowTimes:
        """The memory of rows on this device; begun anew where a tensor has become another."""
        times = self._rows.get(device)
        if times is None:
            there = [p is not None and p.device == device for p in readable(tracked.tensors())[0]]
            times = RowTimes(np.where(there, tracked.rows, 0).tolist(), device)
        now = np.array([len(g) if g is not None and g.dim() > 1 else 0 for g in gradients])
        changed = (now > 0) & (now != times.rows)
        if changed.any():
            times = RowTimes(np.where(changed, now, times.rows).tolist(), device)
        self._rows[device] = times
        return times

    def snapshot(self, tracked: TrackedOptimizer) -> None:
        """On the device, as much of the weights as its engine takes."""
        placed = by_device(readable(tracked.tensors())[0])
        if any(capturing(device) for device in placed):
            return
        self._before = {d: self._engine(d).snapshot(some) for d, some in placed.items()}

    def drop_snapshot(self) -> None:
        """Let the copy go unused: the step did not come about."""
        self._before = None

    def updates(self, call: OptimizerStep) -> PendingRows:
        """Launch what compares the weights with the snapshot, and Adam's ratios."""
        tracked, step, load = call.tracked, call.step, Load()
        before, self._before = self._before, None
        tensors, states = readable(tracked.tensors())
        gradients, _ = readable(tracked.gradients())
        placed, pulls = by_device(tensors), by_device(gradients)
        if any(capturing(device) for device in placed):
            due = [family for family in (Family.UPDATE, Family.OPTIM) if family in call.due]
            return ready([nothing(family, len(states), State.NOT_SAMPLED) for family in due])
        if Family.UPDATE not in call.due:
            before = None
        divisors = _divisors(tracked, gradients) if Family.OPTIM in call.due else None
        none: list[Tensor | None] = [None] * len(tensors)
        sent: dict[torch.device, Callable[[Parts], DeviceSteps]] = {}
        for device, some in placed.items():
            old = None if before is None else before.get(device)
            if old is not None or divisors is not None:
                held = pulls.get(device, none)
                sent[device] = _send(load, self._engine(device).step(old, some, held, divisors))

        sizes, whose, compares = _sizes(tensors), _whose(placed), before is not None
        divided = None if divisors is None else _sizes(divisors.seconds) > 0

        def finish(arrived: Parts) -> ReadyRows:
            families = []
            found = {device: one(arrived) for device, one in sent.items()}
            if compares:
                families.append(_update_rows(whose, found, states, sizes))
            if divided is not None:
                families.append(_adam_rows(whose, found, divided))
            for rows in families:
                if self._skipped_step == step:  # the step made nothing
                    rows.states[:] = State.SKIPPED_STEP
                blank(rows.family, rows.rows, rows.states)
            return ReadyRows(families=families)

        return PendingRows(load.parts, finish)


# -- devices -----------------------------------------------------------------------------------


def by_device(tensors: Sequence[Tensor | None]) -> ByDevice:
    """The tensors of each device there is."""
    devices = dict.fromkeys(tensor.device for tensor in tensors if tensor is not None)
    return {
        device: [one if one is not None and one.device == device else None for one in tensors]
        for device in devices
    }


def _sizes(tensors: Sequence[Tensor | None]) -> NDArray[np.int64]:
    """How many elements each has; what waits for numbers keeps these and no tensor."""
    return np.array([0 if tensor is None else tensor.numel() for tensor in tensors], np.int64)


def _whose(placed: ByDevice) -> dict[torch.device, NDArray[np.bool_]]:
    """Of each device, which tensors lie on it."""
    return {device: _sizes(tensors) > 0 for device, tensors in placed.items()}


def capturing(device: torch.device) -> bool:
    """Whether what is launched now would become part of a graph of the user's."""
    asked = getattr(getattr(torch, device.type, None), "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


def _places(tracked: TrackedOptimizer) -> Places:
    return Places(tracked.seeds, tracked.offsets, tracked.wholes)


def _send(load: Load, sent: Sent[_Result]) -> Callable[[Parts], _Result]:
    place = load.add(*sent.parts)
    return lambda arrived: sent.finish(arrived[place])


def _together(
    whose: dict[torch.device, NDArray[np.bool_]], found: dict[torch.device, DeviceMeasurement]
) -> DeviceMeasurement:
    """One measurement of all tensors, whichever device they are on."""
    if len(found) == 1:
        return next(iter(found.values()))
    count = len(next(iter(whose.values())))
    whole = DeviceMeasurement(np.zeros(count, MOMENTS))
    for device, part in found.items():
        mine = whose[device]
        whole.records[mine] = part.records[mine]
        for name in ("sketches", "dead_rows", "untouched_rows", "hashes", "spreads"):
            if (numbers := getattr(part, name)) is not None:
                if (target := getattr(whole, name)) is None:
                    whole = whole._replace(**{name: numbers})
                else:
                    target[mine] = numbers[mine]
    tables = {device: list(part.bins) for device, part in found.items() if part.bins is not None}
    if not tables:
        return whole
    empty = Bins(0, np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    bins = [empty] * count
    for device, table in tables.items():
        for index in np.flatnonzero(whose[device]).tolist():
            bins[index] = table[index]
    return whole._replace(
        bins=BinTable(
            np.array([one.first_exponent for one in bins]),
            np.array([len(one.negative) for one in bins]),
            np.concatenate([side for one in bins for side in one[1:]]),
        )
    )


def _leave_out(
    states: NDArray[np.uint8], sizes: NDArray[np.int64], seen: NDArray[np.bool_]
) -> None:
    """Mark the tensors that are left for the next recorded step: there were too many for one."""
    states[(sizes > 0) & ~seen & (states == State.MEASURED)] = State.NOT_SAMPLED


def _number(load: Load, value: Any, default: float) -> Callable[[Parts], float]:
    """A number that may be on a device and then comes over with the rest."""
    if not on_accelerator(value):
        known = default if value is None else number(value)
        return lambda _: known
    place = load.add(value.detach().reshape(-1)[:1])
    return lambda arrived: float(arrived[place][0][0])


def one_number(value: Any, device: torch.device) -> Tensor:
    """One number as a tensor on a device, without asking what it is."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)[:1].to(device, non_blocking=True)
    return torch.full((1,), float(value), device=device)


# -- rows --------------------------------------------------------------------------------------


def _gradient_rows(
    found: DeviceMeasurement,
    states: NDArray[np.uint8],
    multiplier: float,
    applied: float,
    last_sketch: NDArray[np.float32],
    *,
    cosines: bool,
) -> FamilyRows:
    """As the kernel would have given them; histograms were taken after a factor was `applied`."""
    rows = moment_rows(Family.GRAD, found.records, states, multiplier)
    if found.dead_rows is not None and found.untouched_rows is not None:
        rows["grad_dead_rows"] = found.dead_rows
        rows["grad_untouched_rows"] = found.untouched_rows
    if found.sketches is not None:
        seen = np.asarray(~np.isnan(found.sketches).all(axis=1))
        fill_sketches(rows, found.sketches, multiplier, seen, last_sketch, cosines=cosines)
    shift = shift_to_raw(multiplier, applied)
    histograms = None if shift is None else _histograms(found, shift)
    return FamilyRows(Family.GRAD, blank(Family.GRAD, rows, states), states, histograms)


def _histograms(found: DeviceMeasurement, shift: int = 0) -> HistogramTable | None:
    """With all exponents raised by `shift`; without those of which an element left the range."""
    bins, records = found.bins, found.records
    if bins is None:
        return None
    ends = np.concatenate([[0], np.cumsum(2 * bins.sizes)])
    running = np.concatenate([[0], np.cumsum(bins.counts.astype(np.int64))])
    counted = running[ends[1:]] - running[ends[:-1]]
    others = np.stack([records[name] for name in ("zeros", "nan", "pos_inf", "neg_inf")], axis=1)
    whole = (records["count"] > 0) & (counted + others.sum(axis=1) == records["count"])
    there = np.flatnonzero(whole)
    return HistogramTable(
        there,
        bins.first_exponents[there] + shift,
        bins.sizes[there],
        bins.counts[np.repeat(whole, 2 * bins.sizes)],
        others[there].astype(np.uint64),
    )


def _transform(samples: Parts, epsilons: list[float]) -> GradTransform:
    if not samples:
        return UNKNOWN
    return transform_between(list(zip(samples[::2], samples[1::2], epsilons, strict=True)))


def restoring(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor | None:
    """By what the gradients must be multiplied to be what backward left; 1 where nothing fits.

    Needed on the device before the samples of `GradientSampler` have come over. As in
    `clipping.transform_between`, only that here all samples are one.
    """
    if not pairs:
        return None
    device = pairs[0][1].device
    kind = wide(device)
    here = [pair for pair in pairs if pair[1].device == device]
    was, now = (cleaned(torch.cat(side)).to(kind) for side in zip(*here, strict=True))
    tolerance = max(TOLERANCE, *(2 * torch.finfo(pair[1].dtype).eps for pair in here))
    factor = (was * now).sum() / (was * was).sum()
    rest = torch.linalg.vector_norm(now - factor * was)
    fits = rest <= tolerance * torch.linalg.vector_norm(now)
    fits = fits & (factor > 0) & (was != now).any()
    return torch.where(fits, 1 / factor, 1.0)


def shift_to_raw(multiplier: float, applied: float) -> int | None:
    """By how many powers of two bins are moved that were taken after `applied`.

    `multiplier` is what the samples say would have been right. None where they differ by more
    than powers of two, which no moving of bins can mend.
    """
    rest = multiplier / applied if applied else 0.0
    if not isfinite(rest) or rest <= 0:
        return None
    mantissa, exponent = frexp(rest)
    if abs(mantissa / 0.5 - 1) < _CLOSE:
        return exponent - 1
    return exponent if abs(mantissa - 1) < _CLOSE else None


def _update_rows(
    whose: dict[torch.device, NDArray[np.bool_]],
    found: dict[torch.device, DeviceSteps],
    states: NDArray[np.uint8],
    sizes: NDArray[np.int64],
) -> FamilyRows:
    """Norms of a sample as estimates of the whole tensors', and marked as such."""
    records = np.zeros(len(states), UPDATE)
    compared = np.zeros(len(states), np.int64)
    for device, steps in found.items():
        mine = whose[device]
        if steps.updates is not None:
            records[mine], compared[mine] = steps.updates[mine], steps.compared[mine]
    gone = (compared == 0) & (sizes > 0)
    states[gone] = np.maximum(states[gone], State.NOT_SAMPLED)
    records["update_norm"] *= np.sqrt(sizes / np.maximum(compared, 1))
    records["before_norm"] *= np.sqrt(sizes / np.maximum(compared, 1))
    states[(compared > 0) & (compared < sizes)] = State.SAMPLED
    return FamilyRows(Family.UPDATE, update_rows(records, states), states)


def _divisors(
    tracked: TrackedOptimizer, gradients: Sequence[Tensor | None]
) -> DeviceDivisors | None:
    """The second moments of the tensors that have one; None where none has."""
    count = len(gradients)
    seconds: list[Tensor | None] = [None] * count
    steps: list[float | Tensor] = [1.0] * count
    betas, epsilons = np.zeros(count), np.zeros(count)
    for moment in second_moments(tracked):
        index = moment.index
        (second,), _ = readable([moment.second])
        gradient = gradients[index]
        if second is None or gradient is None or second.device != gradient.device:
            continue
        seconds[index] = second
        # A count that lives on the device stays there; others are numbers already.
        steps[index] = moment.step if on_accelerator(moment.step) else number(moment.step)
        betas[index], epsilons[index] = moment.beta, moment.epsilon
    if all(second is None for second in seconds):
        return None
    return DeviceDivisors(seconds, steps, betas, epsilons)


def _adam_rows(
    whose: dict[torch.device, NDArray[np.bool_]],
    found: dict[torch.device, DeviceSteps],
    divided: NDArray[np.bool_],
) -> FamilyRows:
    """The ratios of the tensors that have a second moment."""
    ratios = np.full(len(divided), np.nan, ADAM)
    for device, steps in found.items():
        if steps.ratios is not None:
            ratios[whose[device]] = steps.ratios[whose[device]]
    rows = empty_rows(Family.OPTIM, len(divided))
    rows["optim_ratio_rms"] = ratios["ratio_rms"]
    rows["optim_eps_fraction"] = ratios["eps_fraction"]
    states = np.where(divided, State.NOT_SAMPLED, State.NO_GRADIENT).astype(np.uint8)
    states[~np.isnan(ratios["eps_fraction"])] = State.MEASURED
    return FamilyRows(Family.OPTIM, rows, states)
