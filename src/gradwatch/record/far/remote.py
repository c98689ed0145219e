"""Parameters on an accelerator: measured there, their rows written when the numbers have come over.

Everything is as on the CPU but the updates, which are taken at 4,096 fixed coordinates per tensor
and say so.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.kernel import MOMENTS
from gradwatch.record.far import changes, weights
from gradwatch.record.far.alike import Alike
from gradwatch.record.far.gradients import FarGradients, Sent
from gradwatch.record.far.steps import picked
from gradwatch.record.far.tensors import one_number, readable
from gradwatch.record.far.transfer import Load, Parts, Transfer
from gradwatch.record.far.verdict import restoring
from gradwatch.record.measuring import Measured, mark_cut, nothing
from gradwatch.record.optimizers import second_moments
from gradwatch.record.rows import blank, moment_rows
from gradwatch.record.scaling import Scaling
from gradwatch.record.signal import PendingReadings, Reading
from gradwatch.record.verdict import UNKNOWN, Phase, Verdict, judge
from gradwatch.record.ward import Ward
from gradwatch.stats import Family, State


@dataclass
class Arrival:
    """What has come over, complete."""

    step: int
    ward: Ward | None = None
    measured: Measured | None = None
    ids: NDArray[np.uint32] | None = None
    """Of the rows: those of the ward when they were measured. It may have grown since."""
    scalars: dict[str, float] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    skipped: bool = False


@dataclass(frozen=True)
class _Pending:
    owner: object
    transfer: Transfer
    finish: Callable[[Parts], Arrival]
    ids: NDArray[np.uint32] | None


class Remote:
    """What is under way. Nothing waits for the device but `arrivals(wait=True)`.

    What is kept until then are host numbers only: no gradient or parameter lives longer for it.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._pending: deque[_Pending] = deque()
        self._gradients = FarGradients()
        self._searched = False
        self._before: dict[int, list[Alike]] = {}
        self._skipped: tuple[int, Ward] | None = None
        """The last step whose gradients said that they overflowed; they come before its updates."""

    def arrivals(self, *, wait: bool = False) -> list[Arrival]:
        """Everything that has come over, oldest first."""
        found = []
        while self._pending and (wait or self._pending[0].transfer.arrived):
            pending = self._pending.popleft()
            pending.transfer.wait()
            found.append(pending.finish(pending.transfer.parts()))
            found[-1].ids = pending.ids
        return found

    def discard(self, owner: object) -> None:
        """Forget what was sent for this owner."""
        self._pending = deque(item for item in self._pending if item.owner is not owner)

    def _send(
        self,
        owner: object,
        parts: Sequence[Tensor],
        finish: Callable[[Parts], Arrival],
        ids: NDArray[np.uint32] | None = None,
    ) -> None:
        self._pending.append(_Pending(owner, Transfer(parts), finish, ids))

    def number(self, step: int, name: str, value: Tensor) -> None:
        """A number the user logged."""

        def finish(parts: Parts) -> Arrival:
            found = float(parts[0][0])
            scalars = {name: found}
            if name == "loss" and not isfinite(found):
                scalars["loss_nonfinite"] = 1.0
            return Arrival(step, scalars=scalars)

        self._send(None, [value.detach().reshape(-1)[:1]], finish)

    def post(self, step: int, pending: Sequence[PendingReadings]) -> None:
        """What the signals saw of this step, all in one transfer."""
        cuts = [0, *accumulate(len(readings.parts) for readings in pending)]
        finishers = [readings.finish for readings in pending]

        def finish(arrived: Parts) -> Arrival:
            arrival = Arrival(step)
            for last, (begin, end) in zip(finishers, pairwise(cuts), strict=True):
                found = last(arrived[begin:end])
                arrival.readings += found.readings
                arrival.scalars |= found.scalars
            return arrival

        self._send(None, [part for readings in pending for part in readings.parts], finish)

    def weights(self, owner: object, step: int, ward: Ward, *, histograms: bool = False) -> None:
        """Everything about the weights as they are now."""
        self.weigh(step, ward, histograms=histograms)(owner)

    def weigh(self, step: int, ward: Ward, *, histograms: bool) -> Callable[[object], None]:
        """The same, measured now and sent when what this gives is called with the owner."""
        tensors, states = readable(ward.parameters())
        load = Load()
        sent = weights.send(load, tensors, histograms=histograms)

        def finish(arrived: Parts) -> Arrival:
            return Arrival(step, ward, weights.measured(sent, states, arrived))

        ids = ward.ids
        return lambda owner: self._send(owner, load.parts, finish, ids)

    def gradients(
        self,
        owner: object,
        step: int,
        ward: Ward,
        *,
        before_step: bool,
        histograms: bool = False,
        sketches: bool = True,
        cosines: bool = True,
    ) -> None:
        """The gradients as they are now; before its step a fused optimizer's are still scaled."""
        tensors, states = readable(ward.gradients())
        there = next((tensor for tensor in tensors if tensor is not None), None)
        if there is None:
            if ward.tracks:
                rows = moment_rows(Family.GRAD, np.zeros(len(states), MOMENTS), states)
                measured = Measured(Family.GRAD, rows, states)
                self._send(owner, [], lambda arrived: Arrival(step, ward, measured), ward.ids)
            return
        optimizer = ward.optimizer if before_step else None
        if optimizer is not None and not self._searched:
            # On the CPU a scaler is looked for when a factor suggests one; here it comes too late.
            self._searched = True
            self._scaling.search(optimizer)
        pairs = ward.sentinel.pairs()
        steps = [torch.finfo(now.dtype).eps for _, now in pairs]
        known, overflow = self._scaling.known, getattr(optimizer, "found_inf", None)
        load = Load()
        scales = load.add(
            one_number(getattr(optimizer, "grad_scale", None), 1.0, there),
            one_number(overflow, 0.0, there),
            one_number(self._scaling.tensor, 1.0, there),
        )
        samples = load.add(*(sample for pair in pairs for sample in pair))
        rest = ward.sentinel.left_over
        left_over = load.add(*([] if rest is None else [rest]))
        sent = self._gradients.send(
            load,
            ward,
            tensors,
            factor=restoring(pairs) if histograms else None,
            void=None if overflow is None else one_number(overflow, 0.0, there),
            histograms=histograms,
            sketches=sketches,
        )

        def finish(arrived: Parts) -> Arrival:
            held, found_inf, scale = (float(part[0]) for part in arrived[scales])
            seen = arrived[samples]
            verdict = (
                judge(list(zip(seen[::2], seen[1::2], steps, strict=True))) if seen else UNKNOWN
            )
            if held == 1.0 and known:
                verdict = verdict.unscaled(scale)
            arrival = Arrival(step, ward, skipped=found_inf > 0)
            if arrival.skipped:
                self._skipped = (step, ward)
                arrival.measured = nothing(Family.GRAD, len(states), State.SKIPPED_STEP)
            else:
                self._measured(arrival, sent, arrived, states, verdict, held, cosines)
            for sample in arrived[left_over]:
                arrival.scalars["stale"] = float(sample.any())
            if arrival.skipped or known:
                arrival.scalars["skipped"] = float(arrival.skipped)
            return arrival

        self._send(owner, load.parts, finish, ward.ids)

    def _measured(
        self,
        arrival: Arrival,
        sent: Sent,
        arrived: Parts,
        states: NDArray[np.uint8],
        verdict: Verdict,
        held: float,
        cosines: bool,
    ) -> None:
        """The rows of the gradients of a step that was not skipped."""
        multiplier = 1.0 / (held * verdict.factor)
        measured = sent.measured(arrived, states, verdict, multiplier, cosines)
        arrival.measured = measured
        cut = verdict.undoable and mark_cut(measured)
        if verdict.phase in (Phase.RAW, Phase.SCALED) and not cut:
            arrival.scalars["clip_factor"] = verdict.factor

    def take(self, ward: Ward) -> None:
        """Keep the fixed coordinates of the weights, on the device."""
        self._before[id(ward)] = picked(readable(ward.parameters())[0])

    def drop(self, ward: Ward) -> None:
        """Forget them: the step they belonged to will not be compared."""
        self._before.pop(id(ward), None)

    def update(self, owner: object, step: int, ward: Ward) -> None:
        """What has changed at the fixed coordinates since `take`."""
        before = self._before.pop(id(ward), None)
        if before is not None:
            load = Load()
            pulls = readable(ward.gradients())[0]
            sent = changes.update(load, before, *readable(ward.parameters()), pulls)
            self._send(
                owner, load.parts, lambda arrived: self._made(step, ward, sent(arrived)), ward.ids
            )

    def adam(self, owner: object, step: int, ward: Ward) -> None:
        """g/(√v̂+ε) of the Adam family."""
        load = Load()
        sent = changes.adam(load, second_moments(ward), len(ward.tracks))
        if load.parts:
            self._send(
                owner, load.parts, lambda arrived: self._made(step, ward, sent(arrived)), ward.ids
            )

    def _made(self, step: int, ward: Ward, measured: Measured) -> Arrival:
        """What a step made, unless it made nothing."""
        if self._skipped == (step, ward):
            measured.states[:] = State.SKIPPED_STEP
        return Arrival(step, ward, measured._replace(rows=blank(*measured[:3])))
