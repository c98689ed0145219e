"""Parameters on the CPU: one call of the kernel for all tensors of an optimizer, ready at once.

Updates compare the weights with a snapshot that was taken before the step.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, BinTable, Dtype
from gradwatch.record.backend import Backend, OptimizerStep
from gradwatch.record.clipping import GradTransform, clip_scalars
from gradwatch.record.optimizers import Divisors, LossScaling, divisors, held_scale, overflowed
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.rows import (
    FamilyRows,
    PendingRows,
    nothing,
    ready,
)
from gradwatch.record.tensors import (
    KERNEL_DTYPES,
    Gathered,
    aligned,
    fixed_coordinates,
    gather,
    local,
    only,
)
from gradwatch.run import HistogramTable
from gradwatch.stats import Family, State
from gradwatch.stats.rows import (
    RowMemory,
    SketchMemory,
    blank,
    empty_rows,
    gradient_rows,
    moment_rows,
    update_rows,
)

SAMPLE = 4096
"""Coordinates per tensor where a whole copy would take too much memory."""
SHARE = 0.1
"""Of the free memory, what the copy may take."""

_ALIGN = 64


@dataclass(frozen=True)
class BeforeAndAfter:
    """The weights before and after a step and the gradient between; `states` say what is missing.

    Entries that cannot be compared are empty in all three batches.
    """

    before: Batch
    after: Batch
    gradients: Batch
    states: NDArray[np.uint8]
    sampled: bool
    weights: Gathered
    held: Gathered
    """The weights and gradients as they were gathered: they own the memory of the batches."""

    def enlarge(self, records: NDArray[np.void], parameters: Sequence[Tensor | None]) -> None:
        """Extrapolate the records of a sample to the whole tensors."""
        if self.sampled:
            _raise_to_whole(records, self.states, parameters, self.after.counts)


class WeightSnapshot:
    """Copied before, compared after, never across two steps.

    The buffer is kept from step to step: fresh memory would cost page faults each time.
    """

    def __init__(self) -> None:
        self._buffer = np.zeros(0, np.uint8)
        self._layout = b""
        self._target = Batch.empty(0)
        self._before: Gathered | None = None
        self._sampled = False

    def plan(self, parameters: Sequence[Tensor | None]) -> None:
        """Decide between whole copies and samples; asks the system, so not on every step."""
        need = sum(p.numel() * p.itemsize for p in map(_local, parameters) if p is not None)
        self._sampled = need > max(SHARE * free_memory(), len(self._buffer))
        self._before = None

    def take(self, parameters: Sequence[Tensor | None]) -> None:
        """Copy the weights as they are now."""
        source = self._gather(parameters)
        target = self._room(source.batch)
        kernel.copy(source.batch, target)
        # Without the tensors: between the hooks nothing of ours keeps a parameter alive.
        self._before = Gathered(target, source.states, [])

    def drop(self) -> None:
        """Forget what was taken: the step it belonged to will not be compared."""
        self._before = None

    def compare(
        self, parameters: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
    ) -> BeforeAndAfter | None:
        """The weights as they were at `take` beside what they are now; None if none were taken."""
        before, self._before = self._before, None
        if before is None or len(before.batch) != len(parameters):
            return None
        after = self._gather(parameters)
        grads = self._gather(
            [
                None if p is None else aligned(g, p)
                for p, g in zip(parameters, gradients, strict=True)
            ]
        )
        old, new = before.batch, after.batch
        states = np.maximum(before.states, after.states)
        keep = (old.counts == new.counts) & (old.dtypes == new.dtypes) & (states == State.MEASURED)
        states[~keep & (states == State.MEASURED)] = State.NOT_SAMPLED  # swapped during the step
        with_gradient = keep & (grads.batch.counts == new.counts)
        return BeforeAndAfter(
            only(old, keep),
            only(new, keep),
            only(grads.batch, with_gradient),
            states,
            self._sampled,
            after,
            grads,
        )

    def _gather(self, tensors: Sequence[Tensor | None]) -> Gathered:
        gathered = gather(tensors)
        if not self._sampled:
            return gathered
        picked = gather([None if t is None else pick(t) for t in gathered.tensors])
        return Gathered(picked.batch, gathered.states, picked.tensors)

    def _room(self, batch: Batch) -> Batch:
        layout = batch.counts.tobytes() + batch.dtypes.tobytes()
        if layout != self._layout:
            self._layout, self._target = layout, self._laid_out(batch)
        return self._target

    def _laid_out(self, batch: Batch) -> Batch:
        sizes = batch.counts * _ITEMSIZE[batch.dtypes]
        starts = np.concatenate([[0], np.cumsum(-(-sizes // _ALIGN) * _ALIGN)])
        if starts[-1] > len(self._buffer):
            self._buffer = np.empty(int(starts[-1]), np.uint8)
        pointers = (starts[:-1] + self._buffer.ctypes.data).astype(np.uint64)
        return Batch(np.where(sizes > 0, pointers, 0), batch.counts, batch.dtypes, batch.rows)


def cpu_engine() -> dict[str, str]:
    """What measures on the CPU, as `run.info["engines"]` has it: the kernel in C or in numpy."""
    return {"cpu": "numpy" if kernel.instruction_set == kernel.NUMPY else "kernel"}


def free_memory() -> float:
    """Bytes of memory that are free for use; 0 where the system does not say."""
    try:
        with Path("/proc/meminfo").open("rb") as lines:
            for line in lines:
                if line.startswith(b"MemAvailable:"):
                    return float(line.split()[1]) * 1024
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def pick(tensor: Tensor) -> Tensor:
    """The tensor at its fixed coordinates; a small one whole."""
    if tensor.numel() <= SAMPLE:
        return tensor
    return tensor.detach().take(fixed_coordinates(tensor.numel(), SAMPLE, tensor.device))


def _raise_to_whole(
    records: NDArray[np.void],
    states: NDArray[np.uint8],
    parameters: Sequence[Tensor | None],
    counts: NDArray[np.int64],
) -> None:
    """Norms of a sample as estimates of the whole tensors', and marked as such."""
    whole = np.array([0 if p is None else p.numel() for p in map(_local, parameters)], float)
    larger = np.sqrt(whole / np.maximum(counts, 1))
    records["update_norm"] *= larger
    records["before_norm"] *= larger
    states[(states == State.MEASURED) & (whole > counts)] = State.SAMPLED


def _local(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else local(tensor)


_ITEMSIZE = np.array([Dtype(kind).itemsize for kind in sorted(Dtype)], np.int64)


class CpuBackend(Backend):
    """Reads the tensors by their addresses."""

    def __init__(self, scaling: LossScaling) -> None:
        self._scaling = scaling
        self._snapshot = WeightSnapshot()
        self._memory = RowMemory(())
        self._room = Batch.empty(0)
        self._places = kernel.places_of(self._room, ())

    def prepare(self, tracked: TrackedOptimizer) -> None:
        """Decide how much of the weights a snapshot copies, and begin to follow their rows."""
        self._snapshot.plan(tracked.tensors())
        self._memory = RowMemory(tracked.rows)
        self._room = Batch.empty(len(tracked.parameters))
        self._places = kernel.places_of(self._room, tracked.seeds, tracked.offsets, tracked.wholes)

    def weights(self, tracked: TrackedOptimizer, *, histograms: bool) -> PendingRows:
        """Also their hashes and the spread of their rows."""
        gathered = gather(tracked.tensors())
        records, bins, _ = kernel.measure(gathered.batch, bins=histograms)
        rows = moment_rows(Family.WEIGHT, records, gathered.states)
        rows["weight_row_spread"] = kernel.row_spread(gathered.batch)
        rows["weight_hash"] = kernel.hashes(gathered.batch, tracked.offsets)
        weights = FamilyRows(
            Family.WEIGHT,
            blank(Family.WEIGHT, rows, gathered.states),
            gathered.states,
            _histograms(records, bins, gathered.batch.counts, 0) if histograms else None,
        )
        return ready([weights])

    def gradients(self, tracked: TrackedOptimizer, call: OptimizerStep) -> PendingRows:
        """Rows of the gradients as they are before the step, with scaling and clipping undone."""
        if tracked is not call.tracked:  # no optimizer is given these
            return ready([self._gradients(tracked, call)[0]])
        if call.skipped:
            return ready([nothing(Family.GRAD, len(tracked.parameters), State.SKIPPED_STEP)])
        held = 1.0 if call.closure else held_scale(tracked.optimizer)
        transform = self._transform(tracked, held)
        gradients, suspects = self._gradients(
            tracked,
            call,
            multiplier=1.0 / (held * transform.factor),
            clipped=not transform.undoable,
        )
        return ready([gradients], clip_scalars(gradients, transform, suspects))

    def _transform(self, tracked: TrackedOptimizer, held: float) -> GradTransform:
        transform = tracked.sampler.transform()
        return transform if held != 1.0 else self._scaling.explain(transform, tracked.optimizer)

    def _gradients(
        self,
        tracked: TrackedOptimizer,
        call: OptimizerStep,
        *,
        multiplier: float = 1.0,
        clipped: bool = False,
    ) -> tuple[FamilyRows, int]:
        """The gradients as they are in memory, times `multiplier`: what makes them raw.

        Also how many of them are mirrored, which a clipping by value may have done.
        """
        grads = tracked.gradients()
        gathered = gather(grads, self._room)
        touched = self._memory.fresh(gathered.batch.rows)
        records, bins, sketch = kernel.measure(
            gathered.batch,
            bins=call.histograms,
            touched=touched,
            places=self._places if call.sketches else None,
        )
        states = gathered.states.copy()
        if State.UNSUPPORTED in states.tobytes():
            for index in np.flatnonzero(states == State.UNSUPPORTED):
                self._measure_sparse(int(index), grads[index], records, states)
        if clipped:
            states[states == State.MEASURED] = State.CLIPPED
        sketches = None
        if sketch is not None:
            # without elements there is no gradient, or a large sparse one
            counts = gathered.batch.counts
            sketches = SketchMemory(sketch, tracked.last_sketch, counts, call.cosines)
        rows, suspects = gradient_rows(records, states, multiplier, self._memory, sketches)
        histograms = _raw(gathered, records, bins, multiplier) if call.histograms else None
        return FamilyRows(Family.GRAD, rows, states, histograms), suspects

    def _measure_sparse(
        self,
        index: int,
        gradient: Tensor | None,
        records: NDArray[np.void],
        states: NDArray[np.uint8],
    ) -> None:
        """Fill in a sparse gradient that is too large to be made dense."""
        if gradient is not None and (sparse := sparse_record(gradient)) is not None:
            records[index], rows = sparse
            self._memory.mark(index, rows)
            states[index] = State.MEASURED

    def snapshot(self, tracked: TrackedOptimizer) -> None:
        """Copy the weights, so that `updates` can tell what the step changed."""
        self._snapshot.take(tracked.tensors())

    def drop_snapshot(self) -> None:
        """Let the copy go unused: the step did not come about."""
        self._snapshot.drop()

    def is_skipped(self, tracked: TrackedOptimizer) -> bool:
        """Whether a fused optimizer was handed an overflow, and so will change nothing."""
        return overflowed(tracked.optimizer)

    def updates(self, call: OptimizerStep) -> PendingRows:
        """Rows of what the step changed, and of Adam's ratios, where they are due."""
        families = self._updates(
            call.tracked, update=Family.UPDATE in call.due, adam=Family.OPTIM in call.due
        )
        if call.skipped:
            families = [
                nothing(rows.family, len(rows.states), State.SKIPPED_STEP) for rows in families
            ]
        return ready(families)

    def _updates(self, tracked: TrackedOptimizer, *, update: bool, adam: bool) -> list[FamilyRows]:
        """Both in one pass over memory where both are due."""
        parameters, gradients = tracked.tensors(), tracked.gradients()
        pair = self._snapshot.compare(parameters, gradients) if update else None
        divided = divisors(tracked) if adam else None
        if divided is not None and not any(second is not None for second in divided.seconds):
            divided = None
        if pair is None:
            return [] if divided is None else _adam_alone(divided, gradients)
        if divided is None or pair.sampled:
            records, _ = kernel.step(pair.before, pair.after, pair.gradients)
            pair.enlarge(records, parameters)
            updates = [_update_family(records, pair.states)]
            return updates if divided is None else updates + _adam_alone(divided, gradients)
        return _both(pair, divided, parameters)


def _both(
    pair: BeforeAndAfter, divided: Divisors, parameters: Sequence[Tensor | None]
) -> list[FamilyRows]:
    second = gather(
        [
            None if p is None else aligned(v, p)
            for p, v in zip(parameters, divided.seconds, strict=True)
        ]
    )
    states = _states(divided, pair.held, second)
    gone = (pair.gradients.counts == 0) & (states == State.MEASURED)
    states[gone & (second.batch.counts > 0)] = State.NOT_SAMPLED  # swapped during the step
    fits = states == State.MEASURED
    records, ratios = kernel.step(
        pair.before,
        pair.after,
        pair.gradients,
        only(second.batch, fits),
        correction=np.where(fits, divided.correction, 1.0),
        eps=divided.epsilon,
    )
    return [_update_family(records, pair.states), *_adam_rows(ratios, states)]


def _adam_alone(divided: Divisors, gradients: Sequence[Tensor | None]) -> list[FamilyRows]:
    held = gather(
        [g if v is None else aligned(g, v) for g, v in zip(gradients, divided.seconds, strict=True)]
    )
    second = gather(divided.seconds)
    states = _states(divided, held, second)
    fits = states == State.MEASURED
    _, ratios = kernel.step(
        None,
        None,
        only(held.batch, fits),
        only(second.batch, fits),
        correction=np.where(fits, divided.correction, 1.0),
        eps=divided.epsilon,
    )
    return _adam_rows(ratios, states)


def _states(divided: Divisors, gradients: Gathered, seconds: Gathered) -> NDArray[np.uint8]:
    states = gradients.states.copy()
    unfit = (
        (seconds.states != State.MEASURED)
        | (gradients.batch.counts != seconds.batch.counts)
        | ~np.isfinite(divided.correction)
    )
    states[unfit & (states == State.MEASURED)] = State.UNSUPPORTED
    return states


def _update_family(records: NDArray[np.void], states: NDArray[np.uint8]) -> FamilyRows:
    return FamilyRows(Family.UPDATE, update_rows(records, states), states)


def _adam_rows(ratios: NDArray[np.void], states: NDArray[np.uint8]) -> list[FamilyRows]:
    """One family, or none where no tensor had a second moment."""
    if not (states == State.MEASURED).any():
        return []
    rows = empty_rows(Family.OPTIM, len(states))
    rows["optim_ratio_rms"] = ratios["ratio_rms"]
    rows["optim_eps_fraction"] = ratios["eps_fraction"]
    return [FamilyRows(Family.OPTIM, blank(Family.OPTIM, rows, states), states)]


def _raw(
    gathered: Gathered, records: NDArray[np.void], bins: BinTable, multiplier: float
) -> HistogramTable:
    """The histograms of gradients that have to be multiplied to be raw."""
    mantissa, exponent = frexp(multiplier)
    counts = gathered.batch.counts
    if mantissa == 0.5:  # a power of two moves the bins
        return _histograms(records, bins, counts, exponent - 1)
    scaled = _scaled(gathered, multiplier)  # named, so that its memory lives through the call
    return _histograms(records, kernel.measure(scaled.batch, bins=True).bins, counts, 0)


def _scaled(gathered: Gathered, multiplier: float) -> Gathered:
    """Copies in raw units: a histogram's bins cannot be multiplied by just any number."""
    scaled: list[Tensor | None] = [
        None
        if tensor is None
        else tensor.detach().float().mul(multiplier)
        if tensor.itemsize < 8
        else tensor.detach().mul(multiplier)
        for tensor in gathered.tensors
    ]
    return gather(scaled)


def _histograms(
    records: NDArray[np.void], bins: BinTable, counts: NDArray[np.int64], shift: int
) -> HistogramTable:
    """Of all tensors that have elements, with all exponents raised by `shift`."""
    there = np.flatnonzero(counts)
    others = [records[name][there] for name in ("zeros", "nan", "pos_inf", "neg_inf")]
    return HistogramTable(
        there,
        bins.first_exponents[there] + shift,
        bins.sizes[there],
        bins.counts,  # an empty tensor has no bins
        np.stack(others, axis=1).astype(np.uint64),
    )


def sparse_record(gradient: Tensor) -> tuple[np.void, NDArray[np.int64]] | None:
    """The record of the whole tensor and the rows that are not zero; None for other layouts.

    Exact: the statistics of the entries, summed where they repeat, merged with those of the zeros.
    """
    gradient = local(gradient).detach()
    if gradient.layout is not torch.sparse_coo or not gradient.is_cpu:
        return None
    if gradient.dtype not in KERNEL_DTYPES:
        return None
    whole = gradient.coalesce()
    values = whole.values()
    held = gather([values.reshape(-1)])
    (entries,) = kernel.measure(held.batch).records
    zeros = np.zeros((), kernel.MOMENTS)
    zeros["count"] = zeros["zeros"] = whole.numel() - values.numel()
    zeros["skewness"] = zeros["kurtosis"] = np.nan
    parts = [part for part in (entries, zeros) if part["count"]] or [zeros]
    record = kernel.merge(np.array(parts, kernel.MOMENTS))
    other = (values.reshape(values.shape[0], -1) != 0).any(1)
    rows = np.unique(whole.indices()[0][other].numpy())
    if whole.dim() > 1:
        record["zero_rows"] = whole.shape[0] - len(rows)
    return record, rows
