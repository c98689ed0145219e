"""Parameters on the CPU: one call of the kernel for all gradients of an optimizer.

Updates compare the weights with a snapshot that was taken before the step.
"""

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, BinTable, Dtype
from gradwatch.record.parameters import TrackedOptimizer
from gradwatch.record.recorder import RING, Call, Found, Meter, Recorder, StepRows
from gradwatch.record.sampler import Change
from gradwatch.record.tensors import DTYPES, PLAIN, Gathered, gather, local, number, readable_here
from gradwatch.run import HistogramTable
from gradwatch.stats import Family, State, row_dtype
from gradwatch.stats.rows import blank, empty_rows, mirrored, moment_rows, update_rows

SAMPLE = 4096
"""Coordinates per tensor where a whole copy would take too much memory."""
SHARE = 0.1
"""Of the free memory, what the copy may take."""
KEPT_TENSORS, KEPT_ELEMENTS = 64, 1024
"""Weights that are compared with what they were when the step before ended, by turns."""

MOST_OUTSIDE = 16
"""Changes by somebody else that are told of with names."""
_ALIGN = 64
_ITEMSIZE = np.array([Dtype(kind).itemsize for kind in sorted(Dtype)], np.int64)


class CpuMeter(Meter):
    """Reads the tensors by their addresses."""

    def __init__(self, tracked: TrackedOptimizer, recorder: Recorder) -> None:
        self._tracked = tracked
        self._recorder = recorder
        self.kernel = kernel.gradients(tracked.refs, tracked.rows, PLAIN, DTYPES)
        self._ring: list[tuple[NDArray[np.void], NDArray[np.uint8]]] = []
        """Room for rows; the next ring is new, as the writer may still read the last."""
        self._turn = 0
        weights = tracked.tensors()
        self._sizes = np.array([0 if p is None else local(p).numel() for p in weights])
        need = sum(local(p).nbytes for p in weights if p is not None)
        self._most = SAMPLE if need > SHARE * free_memory() else None
        """Where a copy of the weights would take too much memory: elements that have to do."""
        self._buffer = np.zeros(0, np.uint8)
        self._before: Gathered | None = None

    # -- gradients -------------------------------------------------------------------------------

    def gradients(self, call: Call) -> None:
        """Rows of the gradients as they are before the step, with scaling and clipping undone."""
        tracked, found, step = self._tracked, call.found, call.plan.step
        if call.skipped and tracked is call.tracked:
            found.nothing(Family.GRAD, tracked.ids, State.SKIPPED_STEP)
            return
        count = len(tracked.ids)
        if not self._ring:
            rings = np.empty((RING, count), row_dtype(Family.GRAD)), np.empty((RING, count), "u1")
            self._ring = list(zip(*rings, strict=True))
        rows, states = self._ring.pop()
        bins = None
        if call.plan.full and self._recorder.histograms:
            # Room for every bin there is. Memory that nobody writes to costs nothing.
            room = np.empty(count * kernel.MOST_BINS, np.uint64)
            bins = *np.zeros((2, count), np.int64), room, np.zeros((count, 4), np.uint64)
        # A fused optimizer takes the loss scale out itself: until then gradients are multiplied.
        held = getattr(tracked.optimizer, "grad_scale", None) if not call.closure else None
        scale = 1.0 if held is None else number(held)
        scaling = tracked.sampler.scaling
        trust = 0.0 if scaling.known and scale == 1.0 else scale
        record, given = self.kernel.record, None
        seen = record(rows, states, bins, given, None, trust, True)
        outside = seen[6]  # compared once
        if seen[1] is not None:
            given = {i: self._readable(step, i) for i in seen[1]}
            seen = record(rows, states, bins, given, None, trust, True)
        measured, _, kind, factor, exact, twins, _ = seen
        clip = 1.0 if kind == Change.NONE else nan
        if kind == Change.SCALED:
            clip = scaling.clip_factor(factor, exact)
        known = clip == clip
        if not measured:
            multiplier = 1.0 / (scale * (clip if known else 1.0))
            twins = record(rows, states, bins, given, multiplier, trust, True)[5]
            if not known:
                states[states == State.MEASURED] = State.CLIPPED
        found.rows.append(StepRows(Family.GRAD, step, tracked.ids, rows, states))
        if bins is not None:
            self._add_bins(found, Family.GRAD, BinTable(*bins[:3]), bins[3])
        if tracked is call.tracked:
            cut = twins > 1 and _mark_cut(rows, states)
            if known and not cut:
                found.scalars["clip_factor"] = clip
            if outside:
                self._note_outside(found, outside)

    def _readable(self, step: int, index: int) -> Tensor | None:
        """A gradient that is no ordinary tensor as one that the kernel can read."""
        gradient = getattr(self._tracked.refs[index](), "grad", None)
        tensor = None if gradient is None else readable_here(gradient)
        if tensor is None:
            self._recorder.report_unreadable(step, "gradient", self._tracked.parameters[index].name)
        return tensor

    def _add_bins(self, found: Found, family: Family, bins: BinTable, others: NDArray[Any]) -> None:
        """Of all tensors that have elements: bins from an exponent on, and what is in no bin."""
        there = np.flatnonzero((bins.sizes > 0) | others.any(axis=1))
        counts = bins.counts[: 2 * int(bins.sizes.sum())].copy()  # both signs
        exponents, sizes = bins.first_exponents[there], bins.sizes[there]
        table = HistogramTable(there, exponents, sizes, counts, others[there])
        found.tables.append((family, self._tracked.ids[there], table))

    # -- weights that somebody else changes ------------------------------------------------------

    def keep_weights(self) -> None:
        """Right after a step: some elements of up to 64 tensors, by turns."""
        if not self._turn:
            self._recorder.note({"weights_compared": True})
        if count := len(self._tracked.ids):
            # Of few tensors more elements each, in runs of four.
            each = min(64, KEPT_ELEMENTS // min(count, KEPT_TENSORS) // 4 * 4)
            self.kernel.keep_weights(self._turn % count, KEPT_TENSORS, each)
        self._turn += KEPT_TENSORS

    def compare_weights(self, found: Found) -> None:
        """Right before a step: whether they are what they were."""
        if outside := self.kernel.changed_weights():
            self._note_outside(found, outside)

    def _note_outside(self, found: Found, outside: Sequence[tuple[int, float]]) -> None:
        """The largest change goes to a scalar, with names to `run.info`."""
        largest = max(change for _, change in outside)
        found.scalars["outside_change"] = max(largest, found.scalars.get("outside_change", 0.0))
        # Matrices tell that a layer was set anew; its bias may have been zero and be so again.
        rows = self._tracked.rows
        outside = [(i, c) for i, c in outside if rows[i] or not any(rows)] or outside
        names = [self._tracked.parameters[i].name for i, c in outside if c >= 0.5 * largest]
        if len(kept := self._recorder.outside) < MOST_OUTSIDE:
            compared = min(len(rows) - rows.count(0) or len(rows), KEPT_TENSORS)
            each = {"step": found.step, "change": largest, "names": names, "compared": compared}
            kept.append(each)
            self._recorder.note({"outside_changes": list(kept)})

    # -- weights and updates ---------------------------------------------------------------------

    def weights(self, found: Found, *, histograms: bool) -> None:
        """Also their hashes and the spread of their rows."""
        tracked = self._tracked
        batch, states, _owners = gather(tracked.tensors())  # these have to live until the end
        records, bins = kernel.measure(batch, bins=histograms)
        rows = moment_rows(Family.WEIGHT, records, states)
        rows["weight_row_spread"] = kernel.row_spread(batch)
        rows["weight_hash"] = kernel.hashes(batch, tracked.offsets)
        blank(Family.WEIGHT, rows, states)
        found.rows.append(StepRows(Family.WEIGHT, found.step, tracked.ids, rows, states))
        if histograms:
            names = "zeros", "nan", "pos_inf", "neg_inf"
            others = np.stack([records[name] for name in names], axis=1)
            self._add_bins(found, Family.WEIGHT, bins, others)
        for index in np.flatnonzero(states == State.UNSUPPORTED):
            self._recorder.report_unreadable(found.step, "weight", tracked.parameters[index].name)

    def snapshot(self) -> None:
        """Copy the weights, so that `updates` can tell what the step changed."""
        batch, states, _owners = gather(self._tracked.tensors(), most=self._most)
        ends = np.cumsum(-(-batch.counts * _ITEMSIZE[batch.dtypes] // _ALIGN) * _ALIGN)
        # The buffer is kept from step to step: fresh memory would cost page faults each time.
        if len(ends) and ends[-1] > len(self._buffer):
            self._buffer = np.empty(ends[-1], np.uint8)
        starts = self._buffer.ctypes.data + np.append(0, ends)[:-1]
        pointers = np.where(batch.counts > 0, starts, 0).astype(np.uint64)
        copied = Batch(pointers, batch.counts, batch.dtypes, batch.rows)
        kernel.copy(batch, copied)
        # Without the tensors: between the hooks nothing of ours keeps a parameter alive.
        self._before = Gathered(copied, states, [])

    def drop_snapshot(self) -> None:
        """Let the copy go unused: the step did not come about."""
        self._before = None

    def is_skipped(self) -> bool:
        """Whether a fused optimizer was handed an overflow, and so will change nothing."""
        value = getattr(self._tracked.optimizer, "found_inf", None)
        return value is not None and number(value) > 0

    def updates(self, call: Call) -> None:
        """What the step changed and Adam's ratios, in one pass over memory."""
        before, self._before = self._before, None
        if before is None or not before.batch:
            return
        tracked, found = self._tracked, call.found
        parameters = tracked.tensors()
        after = gather(parameters, most=self._most)
        held = gather(tracked.gradients(), parameters, self._most)
        counts, states = after.batch.counts, np.maximum(before.states, after.states)
        keep = (states == State.MEASURED) & (before.batch.counts == counts)
        keep &= before.batch.dtypes == after.batch.dtypes
        states[~keep & (states == State.MEASURED)] = State.NOT_SAMPLED  # swapped during the step
        keep_gradient = keep & (held.batch.counts == counts)
        divided = _second_moments(tracked.optimizer) if Family.OPTIM in call.plan.due else {}
        adam = [divided.get(id(p), (None, 0.0, 0.0, 0.0)) for p in parameters]
        seconds = gather([each[0] for each in adam], parameters, self._most)
        beta, epsilon = np.array([each[2:] for each in adam], float).reshape(-1, 2).T
        correction = 1.0 - beta ** [number(each[1]) for each in adam]
        # A count of steps that makes no sense gives no correction, NaN or 0 or less.
        fits = keep_gradient & (seconds.batch.counts == counts) & (correction > 0)
        correction[~fits] = 1.0
        weights = _only(before, keep), _only(after, keep), _only(held, keep_gradient)
        divisors = _only(seconds, fits) if fits.any() else None
        records, ratios = kernel.step(*weights, divisors, correction=correction, eps=epsilon)
        if self._most:  # norms of the whole tensors, told by the samples
            for name in ("update_norm", "before_norm"):
                records[name] *= np.sqrt(self._sizes / np.maximum(counts, 1))
            states[keep & (self._sizes > counts)] = State.SAMPLED
        if call.skipped:
            states[:] = State.SKIPPED_STEP
        rows = update_rows(records, states)
        found.rows.append(StepRows(Family.UPDATE, found.step, tracked.ids, rows, states))
        if fits.any():
            # Without a gradient no ratio; one whose second moment cannot be read says so.
            without = np.where(held.states == State.MEASURED, State.UNSUPPORTED, held.states)
            own = np.where(fits | call.skipped, states, without).astype(np.uint8)
            rows = empty_rows(Family.OPTIM, len(own))
            rows["optim_ratio_rms"] = ratios["ratio_rms"]
            rows["optim_eps_fraction"] = ratios["eps_fraction"]
            blank(Family.OPTIM, rows, own)
            found.rows.append(StepRows(Family.OPTIM, found.step, tracked.ids, rows, own))


def _second_moments(optimizer: Any) -> dict[int, tuple[Tensor, Any, float, float]]:
    """Adam's, with the number of steps, β₂ and ε, by the parameter's id."""
    found = {}
    for group in () if optimizer is None else optimizer.param_groups:
        for parameter in group["params"] if "betas" in group else ():
            state = optimizer.state.get(parameter, {})
            second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
            if isinstance(second, Tensor):
                own = number(group["betas"][1]), number(group.get("eps", 0.0))
                found[id(parameter)] = (second, state.get("step"), *own)
    return found


def _only(gathered: Gathered, keep: NDArray[np.bool_]) -> Batch:
    """The batch with every other entry made empty, for good."""
    batch = gathered.batch
    batch.pointers[~keep] = batch.counts[~keep] = batch.rows[~keep] = 0
    return batch


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


def cpu_engine() -> dict[str, str]:
    """What measures on the CPU, as `run.info["engines"]` has it: the kernel in C or in numpy."""
    return {"cpu": "numpy" if kernel.instruction_set == kernel.NUMPY else "kernel"}


def free_memory() -> float:
    """Bytes of memory that are free for use; 0 where the system does not say."""
    try:
        known = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return 1024.0 * float((known.partition("MemAvailable:")[2].split() or "0")[0])
