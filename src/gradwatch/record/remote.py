"""Parameters on an accelerator: measured there, their rows written when the numbers have come over.

Moments and hashes are exact; updates are taken at 4,096 fixed coordinates per tensor and say so.
Histograms, sketches and the memory of rows there are not.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record import device_math
from gradwatch.record.coordinates import fixed_coordinates
from gradwatch.record.copies import SAMPLE
from gradwatch.record.instrument import Departure, Reading
from gradwatch.record.measuring import Measured
from gradwatch.record.optimizers import second_moments
from gradwatch.record.placement import local
from gradwatch.record.rows import blank, empty_rows, moment_rows
from gradwatch.record.scaling import Scaling
from gradwatch.record.tracks import KINDS
from gradwatch.record.transfer import Parts, Transfer
from gradwatch.record.verdict import UNKNOWN, Phase, Verdict, judge
from gradwatch.record.ward import Ward
from gradwatch.stats import Family, State

_SHIFTS = np.array([0, 16, 32, 48], np.uint64)


@dataclass
class Arrival:
    """What has come over, complete."""

    step: int
    ward: Ward | None = None
    measured: Measured | None = None
    scalars: dict[str, float] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    skipped: bool = False


@dataclass(frozen=True)
class _Pending:
    owner: object
    transfer: Transfer
    finish: Callable[[Parts], Arrival]


class Remote:
    """What is under way. Nothing waits for the device but `arrivals(wait=True)`.

    What is kept until then are host numbers only: no gradient or parameter lives longer for it.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._pending: deque[_Pending] = deque()
        self._before: dict[int, list[Tensor | None]] = {}
        self._skipped: tuple[int, Ward] | None = None
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def arrivals(self, *, wait: bool = False) -> list[Arrival]:
        """Everything that has come over, oldest first."""
        found = []
        while self._pending and (wait or self._pending[0].transfer.arrived):
            pending = self._pending.popleft()
            pending.transfer.wait()
            found.append(pending.finish(pending.transfer.parts()))
        return found

    def discard(self, owner: object) -> None:
        """Forget what was sent for this owner."""
        self._pending = deque(item for item in self._pending if item.owner is not owner)

    def _send(
        self, owner: object, parts: Sequence[Tensor], finish: Callable[[Parts], Arrival]
    ) -> None:
        if parts:
            self._pending.append(_Pending(owner, Transfer(parts), finish))

    def number(self, step: int, name: str, value: Tensor) -> None:
        """A number the user logged."""

        def finish(parts: Parts) -> Arrival:
            found = float(parts[0][0])
            scalars = {name: found}
            if name == "loss" and not isfinite(found):
                scalars["loss_nonfinite"] = 1.0
            return Arrival(step, scalars=scalars)

        self._send(None, [value.detach().reshape(-1)[:1]], finish)

    def post(self, step: int, departures: Sequence[Departure]) -> None:
        """What the instruments saw of this step, all in one transfer."""
        cuts = [0, *accumulate(len(departure.parts) for departure in departures)]
        finishers = [departure.finish for departure in departures]

        def finish(arrived: Parts) -> Arrival:
            arrival = Arrival(step)
            for last, (begin, end) in zip(finishers, pairwise(cuts), strict=True):
                found = last(arrived[begin:end])
                arrival.readings += found.readings
                arrival.scalars |= found.scalars
            return arrival

        self._send(None, [part for departure in departures for part in departure.parts], finish)

    def weights(self, owner: object, step: int, ward: Ward) -> None:
        """Moments and hashes of the weights as they are now."""
        tensors, states = _readable(ward.parameters())
        sizes = [_size(tensor) for tensor in tensors]
        kept = [tensor for tensor in tensors if tensor is not None]
        parts = [device_math.moments(t) for t in kept] + [device_math.bits_sum(t) for t in kept]

        def finish(arrived: Parts) -> Arrival:
            half = len(arrived) // 2
            rows = moment_rows(Family.WEIGHT, _records(sizes, arrived[:half]), states)
            for index, pieces in zip(np.flatnonzero(sizes), arrived[half:], strict=True):
                words = pieces.astype(np.uint64) << _SHIFTS
                rows["weight_hash"][index] = np.bitwise_or.reduce(words)
            return Arrival(step, ward, Measured(Family.WEIGHT, rows, states))

        self._send(owner, parts, finish)

    def gradients(self, owner: object, step: int, ward: Ward, *, before_step: bool) -> None:
        """The gradients as they are now; before its step a fused optimizer's are still scaled."""
        tensors, states = _readable(ward.gradients())
        sizes = [_size(tensor) for tensor in tensors]
        kept = [tensor for tensor in tensors if tensor is not None]
        if not kept:
            return
        optimizer = ward.optimizer if before_step else None
        pairs = ward.sentinel.pairs()
        steps = [torch.finfo(now.dtype).eps for _, now in pairs]
        parts = [device_math.moments(t) for t in kept]
        parts += [
            _one(getattr(optimizer, "grad_scale", None), 1.0, kept[0]),
            _one(getattr(optimizer, "found_inf", None), 0.0, kept[0]),
            _one(self._scaling.tensor, 1.0, kept[0]),
        ]
        parts += [sample for pair in pairs for sample in pair]
        count, known = len(kept), self._scaling.known

        def finish(arrived: Parts) -> Arrival:
            held, overflow, scale = (float(n[0]) for n in arrived[count : count + 3])
            samples = arrived[count + 3 :]
            was_now = zip(samples[::2], samples[1::2], steps, strict=True)
            verdict = judge(list(was_now)) if samples else UNKNOWN
            if held == 1.0 and known:
                verdict = verdict.unscaled(scale)
            arrival = Arrival(step, ward, skipped=overflow > 0)
            if arrival.skipped:
                self._skipped = (step, ward)
            final = _final(states, verdict, arrival.skipped)
            factor = 1.0 / (held * verdict.factor)
            rows = moment_rows(Family.GRAD, _records(sizes, arrived[:count]), final, factor)
            arrival.measured = Measured(Family.GRAD, rows, final)
            if verdict.phase in (Phase.RAW, Phase.SCALED) and not arrival.skipped:
                arrival.scalars["clip_factor"] = verdict.factor
            if arrival.skipped or known:
                arrival.scalars["skipped"] = float(arrival.skipped)
            return arrival

        self._send(owner, parts, finish)

    def take(self, ward: Ward) -> None:
        """Keep the fixed coordinates of the weights, on the device."""
        self._before[id(ward)] = [_pick(tensor) for tensor in _readable(ward.parameters())[0]]

    def drop(self, ward: Ward) -> None:
        """Forget them: the step they belonged to will not be compared."""
        self._before.pop(id(ward), None)

    def update(self, owner: object, step: int, ward: Ward) -> None:
        """What has changed at the fixed coordinates since `take`."""
        before = self._before.pop(id(ward), None)
        parameters, states = _readable(ward.parameters())
        if before is None or len(before) != len(parameters):
            return
        gradients = _readable(ward.gradients())[0]
        parts: list[Tensor] = []
        places: list[tuple[int, int]] = []
        for index, (old, parameter, g) in enumerate(
            zip(before, parameters, gradients, strict=True)
        ):
            new = _pick(parameter)
            if old is None or new is None or old.numel() != new.numel():
                states[index] = max(int(states[index]), int(State.NOT_SAMPLED))
                continue
            pulled = _pick(g)
            parts += [old, new, torch.zeros_like(new) if pulled is None else pulled]
            places.append((index, _size(parameter)))

        def finish(arrived: Parts) -> Arrival:
            rows = empty_rows(Family.UPDATE, len(states))
            for turn, (index, size) in enumerate(places):
                old, new, pulled = arrived[3 * turn : 3 * turn + 3]
                rows[index] = _change(old, new, pulled, size)
                if size > len(arrived[3 * turn]):
                    states[index] = State.SAMPLED
            return self._unless_skipped(step, ward, Measured(Family.UPDATE, rows, states))

        self._send(owner, parts, finish)

    def adam(self, owner: object, step: int, ward: Ward) -> None:
        """g/(√v̂+ε) of the Adam family."""
        parts, indices = [], []
        for one in second_moments(ward):
            gradient, second = local(one.gradient), local(one.second)
            count = _one(one.step, 0.0, gradient)
            parts.append(device_math.adam(gradient, second, count, one.beta, one.epsilon))
            indices.append(one.index)
        total = len(ward.tracks)

        def finish(arrived: Parts) -> Arrival:
            rows = empty_rows(Family.OPTIM, total)
            states = np.full(total, State.NO_GRADIENT, np.uint8)
            for index, (rms, share) in zip(indices, arrived, strict=True):
                rows["optim_ratio_rms"][index] = rms
                rows["optim_eps_fraction"][index] = share
                states[index] = State.MEASURED
            return self._unless_skipped(step, ward, Measured(Family.OPTIM, rows, states))

        self._send(owner, parts, finish)

    def _unless_skipped(self, step: int, ward: Ward, measured: Measured) -> Arrival:
        if self._skipped == (step, ward):
            measured.states[:] = State.SKIPPED_STEP
        return Arrival(step, ward, measured._replace(rows=blank(*measured[:3])))


def _readable(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], NDArray[np.uint8]]:
    """The pieces torch can compute with, and why others are left out."""
    states = np.zeros(len(tensors), np.uint8)
    kept: list[Tensor | None] = []
    for index, tensor in enumerate(tensors):
        piece = None if tensor is None else local(tensor).detach()
        if piece is None:
            states[index] = State.NO_GRADIENT
        elif piece.is_meta or piece.layout is not torch.strided or piece.dtype not in KINDS:
            states[index], piece = State.UNSUPPORTED, None
        kept.append(piece if _size(piece) else None)
    return kept, states


def _final(states: NDArray[np.uint8], verdict: Verdict, skipped: bool) -> NDArray[np.uint8]:
    final = states.copy()
    if skipped:
        final[:] = State.SKIPPED_STEP
    elif not verdict.undoable:
        final[final == State.MEASURED] = State.CLIPPED
    return final


def _records(sizes: Sequence[int], arrived: Parts) -> NDArray[np.void]:
    records = np.zeros(len(sizes), kernel.MOMENTS)
    counts = np.array(sizes, np.uint64)
    for index, numbers in zip(np.flatnonzero(counts), arrived, strict=True):
        records["count"][index] = counts[index]
        for name, value in zip(device_math.MOMENTS, numbers, strict=True):
            records[name][index] = value
    return records


def _change(
    old: NDArray[np.float64], new: NDArray[np.float64], pulled: NDArray[np.float64], size: int
) -> tuple[float, float, float]:
    """Norm of the change (of the whole, as estimated), its ratio to the weight, the lost share."""
    change, weight = float(np.linalg.norm(new - old)), float(np.linalg.norm(old))
    moved = np.count_nonzero(pulled)
    lost = np.count_nonzero((pulled != 0) & (new == old))
    return (
        change * float(np.sqrt(size / len(old))),
        change / weight if weight else float("nan"),
        lost / moved if moved else float("nan"),
    )


def _pick(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return tensor.take(fixed_coordinates(tensor.numel(), SAMPLE, tensor.device))


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel()


def _one(value: Any, default: float, like: Tensor) -> Tensor:
    """One number as a tensor on the device of `like`, without asking what it is."""
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)[:1].to(like.device, non_blocking=True)
    return torch.full((1,), float(default if value is None else value), device=like.device)
