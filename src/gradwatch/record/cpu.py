"""Parameters on the CPU: one call of the kernel for all gradients of an optimizer.

Updates compare the weights with a snapshot that was taken before the step.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, Dtype
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.recorder import RING, Call, Found, Meter, Recorder, StepRows
from gradwatch.record.sampler import Change, Undoing, held_scale
from gradwatch.record.tensors import (
    DTYPES,
    PLAIN,
    Gathered,
    aligned,
    gather,
    local,
    number,
    only,
    readable_here,
    spread,
)
from gradwatch.run import HistogramTable
from gradwatch.stats import Family, State, row_dtype
from gradwatch.stats.rows import blank, empty_rows, mirrored, moment_rows, update_rows

_OTHERS = ("zeros", "nan", "pos_inf", "neg_inf")
SAMPLE = 4096
"""Coordinates per tensor where a whole copy would take too much memory."""
SHARE = 0.1
"""Of the free memory, what the copy may take."""
KEPT_TENSORS, KEPT_ELEMENTS = 64, 1024
"""Weights that are compared with what they were when the step before ended, by turns."""

_ALIGN = 64
_ITEMSIZE = np.array([Dtype(kind).itemsize for kind in sorted(Dtype)], np.int64)


_UNTOUCHED = Undoing()


class CpuMeter(Meter):
    """Reads the tensors by their addresses."""

    def __init__(self, tracked: TrackedOptimizer, recorder: Recorder) -> None:
        self._tracked = tracked
        self._recorder = recorder
        self.kernel = kernel.gradients(tracked.refs, tracked.rows, PLAIN, DTYPES)
        self._ring = iter(())
        self._snapshot = WeightSnapshot(tracked.tensors())
        self._turn = 0

    # -- gradients -------------------------------------------------------------------------------

    def gradients(self, call: Call) -> None:
        """Rows of the gradients as they are before the step, with scaling and clipping undone."""
        tracked, found, step = self._tracked, call.found, call.plan.step
        if call.skipped and tracked is call.tracked:
            found.nothing(Family.GRAD, tracked.ids, State.SKIPPED_STEP)
            return
        rows, states = self._room()
        bins = self._bins() if call.plan.full and self._recorder.histograms else None
        scaling = tracked.sampler.scaling
        held = 1.0 if call.closure else held_scale(tracked.optimizer)
        scale = 0.0 if scaling.known and held == 1.0 else held
        record, given = self.kernel.record, None
        found_out = record(rows, states, bins, given, None, scale, True)
        if found_out[1] is not None:
            given = {i: self._readable(step, i) for i in found_out[1]}
            found_out = record(rows, states, bins, given, None, scale, True)
        measured, _, kind, factor, exact, twins, outside = found_out
        undoing = _UNTOUCHED
        if kind or not measured:
            undoing = scaling.undoing(Change(kind), factor, exact)
        if not measured:
            multiplier = undoing.multiplier / held
            twins = record(rows, states, bins, given, multiplier, scale, True)[5]
            if undoing.clipped:
                states[states == State.MEASURED] = State.CLIPPED
        found.rows.append(StepRows(Family.GRAD, step, tracked.ids, rows, states))
        if bins is not None:
            table = _table(*bins)
            found.tables.append((Family.GRAD, tracked.ids[table.tensors], table))
        if tracked is call.tracked:
            cut = twins > 1 and not undoing.clipped and _mark_cut(rows, states)
            if undoing.clip_factor is not None and not cut:
                found.scalars["clip_factor"] = undoing.clip_factor
            if outside:
                self.note_outside(found, outside)

    def _room(self) -> tuple[NDArray[np.void], NDArray[np.uint8]]:
        """One slot of a ring of rows; the next ring is new, as the writer may still read this."""
        slot = next(self._ring, None)
        if slot is None:
            count = len(self._tracked.ids)
            rows = np.empty((RING, count), row_dtype(Family.GRAD))
            self._ring = iter(list(zip(rows, np.empty((RING, count), np.uint8), strict=True)))
            slot = next(self._ring)
        return slot

    def _bins(self) -> tuple[NDArray[Any], ...]:
        """Room for every bin there is. Memory that nobody writes to costs nothing."""
        count = len(self._tracked.ids)
        exponents, sizes = np.zeros((2, count), np.int64)
        counts = np.empty(count * kernel.MOST_BINS, np.uint64)
        return exponents, sizes, counts, np.zeros((count, 4), np.uint64)

    def _readable(self, step: int, index: int) -> Tensor | None:
        """A gradient that is no ordinary tensor as one that the kernel can read."""
        parameter = self._tracked.refs[index]()
        gradient = None if parameter is None else parameter.grad
        tensor = None if gradient is None else readable_here(gradient)
        if tensor is None:
            name = self._tracked.parameters[index].name
            self._recorder.report_unreadable(step, "gradient", name)
        return tensor

    # -- weights that somebody else changes ------------------------------------------------------

    def keep_weights(self) -> None:
        """Right after a step: some elements of up to 64 tensors, by turns."""
        count = len(self._tracked.ids)
        some = min(count, KEPT_TENSORS)
        each = max(KEPT_ELEMENTS // KEPT_TENSORS, min(64, KEPT_ELEMENTS // max(some, 1) // 4 * 4))
        if not self._turn:
            self._recorder.note({"weights_compared": True})
        if some:
            self.kernel.keep_weights(self._turn % count, some, each)
        self._turn += KEPT_TENSORS

    def compare_weights(self, found: Found) -> None:
        """Right before a step: whether they are what they were."""
        if outside := self.kernel.changed_weights():
            self.note_outside(found, outside)

    def note_outside(self, found: Found, outside: Sequence[tuple[int, float]]) -> None:
        """The largest change goes to a scalar, with names to `run.info`."""
        largest = max(change for _, change in outside)
        found.scalars["outside_change"] = max(largest, found.scalars.get("outside_change", 0.0))
        names = [self._tracked.parameters[i].name for i, c in outside if c >= 0.5 * largest]
        compared = min(len(self._tracked.ids), KEPT_TENSORS)
        self._recorder.note_outside(
            {"step": found.step, "change": largest, "names": names, "compared": compared}
        )

    # -- weights and updates ---------------------------------------------------------------------

    def weights(self, found: Found, *, histograms: bool) -> None:
        """Also their hashes and the spread of their rows."""
        tracked = self._tracked
        gathered = gather(tracked.tensors())
        records, bins = kernel.measure(gathered.batch, bins=histograms)
        rows, states = moment_rows(Family.WEIGHT, records, gathered.states), gathered.states
        rows["weight_row_spread"] = kernel.row_spread(gathered.batch)
        rows["weight_hash"] = kernel.hashes(gathered.batch, tracked.offsets)
        blank(Family.WEIGHT, rows, states)
        found.rows.append(StepRows(Family.WEIGHT, found.step, tracked.ids, rows, states))
        if histograms:
            others = np.stack([records[name] for name in _OTHERS], axis=1).astype(np.uint64)
            table = _table(bins.first_exponents, bins.sizes, bins.counts, others)
            found.tables.append((Family.WEIGHT, tracked.ids[table.tensors], table))
        for index in np.flatnonzero(states == State.UNSUPPORTED):
            self._recorder.report_unreadable(found.step, "weight", tracked.parameters[index].name)

    def snapshot(self) -> None:
        """Copy the weights, so that `updates` can tell what the step changed."""
        self._snapshot.take(self._tracked.tensors())

    def drop_snapshot(self) -> None:
        """Let the copy go unused: the step did not come about."""
        self._snapshot.drop()

    def is_skipped(self) -> bool:
        """Whether a fused optimizer was handed an overflow, and so will change nothing."""
        value = getattr(self._tracked.optimizer, "found_inf", None)
        return value is not None and number(value) > 0

    def updates(self, call: Call) -> None:
        """What the step changed and Adam's ratios, in one pass over memory."""
        before = self._snapshot.taken()
        if before is None:
            return
        tracked, found = self._tracked, call.found
        parameters, gradients = tracked.tensors(), tracked.gradients()
        after = self._snapshot.gather(parameters)
        held = self._snapshot.gather(_aligned(gradients, parameters))
        states = np.maximum(before.states, after.states)
        keep = (states == State.MEASURED) & (before.batch.counts == after.batch.counts)
        keep &= before.batch.dtypes == after.batch.dtypes
        states[~keep & (states == State.MEASURED)] = State.NOT_SAMPLED  # swapped during the step
        keep_gradient = keep & (held.batch.counts == after.batch.counts)
        adam = Divisors.of(tracked) if Family.OPTIM in call.plan.due else None
        seconds = None
        if adam is not None:
            seconds = self._snapshot.gather(_aligned(adam.seconds, parameters))
            fits = keep_gradient & (seconds.states == State.MEASURED)
            fits &= (seconds.batch.counts == held.batch.counts) & np.isfinite(adam.correction)
            adam.correction[~fits] = 1.0
        records, ratios = kernel.step(
            only(before.batch, keep),
            only(after.batch, keep),
            only(held.batch, keep_gradient),
            None if seconds is None else only(seconds.batch, fits),
            correction=None if adam is None else adam.correction,
            eps=None if adam is None else adam.epsilon,
        )
        states[self._snapshot.enlarge(records, parameters, after.batch.counts) & keep] = (
            State.SAMPLED
        )
        if call.skipped:
            states[:] = State.SKIPPED_STEP
        rows = update_rows(records, states)
        found.rows.append(StepRows(Family.UPDATE, found.step, tracked.ids, rows, states))
        if adam is not None and fits.any():
            # Without a gradient no ratio; one whose second moment cannot be read says so.
            without = np.where(held.states == State.MEASURED, State.UNSUPPORTED, held.states)
            own = np.where(fits | call.skipped, states, without).astype(np.uint8)
            rows = empty_rows(Family.OPTIM, len(own))
            rows["optim_ratio_rms"] = ratios["ratio_rms"]
            rows["optim_eps_fraction"] = ratios["eps_fraction"]
            blank(Family.OPTIM, rows, own)
            found.rows.append(StepRows(Family.OPTIM, found.step, tracked.ids, rows, own))


def _mark_cut(rows: NDArray[np.void], states: NDArray[np.uint8]) -> bool:
    """Mark gradients cut off at a value, which a sample may have missed; whether there are any.

    Where several tensors have the same largest and, negated, smallest element, to the bit, they
    were cut there; no two gradients agree in both by chance.
    """
    top, both = rows["grad_abs_max"], mirrored(rows)
    limits, counts = np.unique(top[both], return_counts=True)
    cut = np.isin(top, limits[counts > 1]) & both & (states == State.MEASURED)
    states[cut] = State.CLIPPED
    return bool(cut.any())


def _table(
    exponents: NDArray[np.int64],
    sizes: NDArray[np.int64],
    counts: NDArray[np.uint64],
    others: NDArray[np.uint64],
) -> HistogramTable:
    """Of all tensors that have elements: bins from an exponent on, and what is in no bin."""
    there = np.flatnonzero((sizes > 0) | others.any(axis=1))
    bins = counts[: 2 * int(sizes.sum())].copy()  # both signs
    return HistogramTable(there, exponents[there], sizes[there], bins, others[there])


def cpu_engine() -> dict[str, str]:
    """What measures on the CPU, as `run.info["engines"]` has it: the kernel in C or in numpy."""
    return {"cpu": "numpy" if kernel.instruction_set == kernel.NUMPY else "kernel"}


# -- the weights before a step ---------------------------------------------------------------------


class WeightSnapshot:
    """Copied before, compared after, never across two steps.

    The buffer is kept from step to step: fresh memory would cost page faults each time.
    """

    def __init__(self, parameters: Sequence[Tensor | None]) -> None:
        need = sum(local(p).numel() * p.itemsize for p in parameters if p is not None)
        self._sampled = need > SHARE * free_memory()
        """The copy would take too much memory: some coordinates have to do."""
        self._buffer = np.zeros(0, np.uint8)
        self._layout = b""
        self._target = Batch.empty(0)
        self._before: Gathered | None = None

    def take(self, parameters: Sequence[Tensor | None]) -> None:
        """Copy the weights as they are now."""
        source = self.gather(parameters)
        target = self._room(source.batch)
        kernel.copy(source.batch, target)
        # Without the tensors: between the hooks nothing of ours keeps a parameter alive.
        self._before = Gathered(target, source.states, [])

    def drop(self) -> None:
        """Forget what was taken: the step it belonged to will not be compared."""
        self._before = None

    def taken(self) -> Gathered | None:
        """What was taken, once; None if nothing was."""
        before, self._before = self._before, None
        return before

    def gather(self, tensors: Sequence[Tensor | None]) -> Gathered:
        """The tensors, or the coordinates of them that are compared."""
        gathered = gather(tensors)
        if not self._sampled:
            return gathered
        picked = gather([None if t is None else spread(t, SAMPLE) for t in gathered.tensors])
        return Gathered(picked.batch, gathered.states, picked.tensors)

    def enlarge(
        self,
        records: NDArray[np.void],
        parameters: Sequence[Tensor | None],
        counts: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Extrapolate norms of a sample to the whole tensors; which were only sampled."""
        if not self._sampled:
            return np.zeros(len(counts), bool)
        whole = np.array([0 if p is None else local(p).numel() for p in parameters], float)
        larger = np.sqrt(whole / np.maximum(counts, 1))
        records["update_norm"] *= larger
        records["before_norm"] *= larger
        sampled: NDArray[np.bool_] = whole > counts
        return sampled

    def _room(self, batch: Batch) -> Batch:
        layout = batch.counts.tobytes() + batch.dtypes.tobytes()
        if layout != self._layout:
            sizes = batch.counts * _ITEMSIZE[batch.dtypes]
            starts = np.concatenate([[0], np.cumsum(-(-sizes // _ALIGN) * _ALIGN)])
            if starts[-1] > len(self._buffer):
                self._buffer = np.empty(int(starts[-1]), np.uint8)
            pointers = (starts[:-1] + self._buffer.ctypes.data).astype(np.uint64)
            pointers[sizes == 0] = 0
            self._layout = layout
            self._target = Batch(pointers, batch.counts, batch.dtypes, batch.rows)
        return self._target


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


def _aligned(
    tensors: Sequence[Tensor | None], like: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Each in the memory order of its parameter; up to two dimensions there is only one order."""
    return [
        t if t is None or p is None or p.dim() < 3 else aligned(t, p)
        for t, p in zip(tensors, like, strict=True)
    ]


@dataclass(frozen=True)
class Divisors:
    """Of every parameter of an optimizer: what Adam's step divided by, None where nothing is."""

    seconds: list[Tensor | None]
    correction: NDArray[np.float64]
    """v̂ = v / correction; NaN where the count of steps makes no sense."""
    epsilon: NDArray[np.float64]

    @classmethod
    def of(cls, tracked: TrackedOptimizer) -> "Divisors | None":
        """None for an optimizer without second moments.

        Adam, AdamW, NAdam and RAdam keep `exp_avg_sq`; with amsgrad the step divides by its
        maximum. How many steps were made is a number, or a tensor, maybe on a device (capturable).
        """
        optimizer = tracked.optimizer
        groups = [g for g in optimizer.param_groups if "betas" in g] if optimizer else []
        if optimizer is None or not groups:
            return None
        own = {
            id(p): (number(g["betas"][1]), number(g.get("eps", 0.0)))
            for g in groups
            for p in g["params"]
        }
        count = len(tracked.parameters)
        divided = cls([None] * count, np.ones(count), np.zeros(count))
        for index, parameter in enumerate(tracked.tensors()):
            if parameter is None or id(parameter) not in own or parameter.grad is None:
                continue
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
            if isinstance(second, Tensor):
                beta, epsilon = own[id(parameter)]
                decay = beta ** number(state.get("step"))
                divided.seconds[index] = second
                divided.correction[index] = 1.0 - decay if decay < 1.0 else np.nan
                divided.epsilon[index] = epsilon
        return divided
