"""The weights as they were before a step, to be compared with what the step made of them.

On the CPU; on a device the same is done at fixed coordinates, by `device/backend.py`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.kernel import Batch, Dtype
from gradwatch.record.tensors import Gathered, aligned, fixed_coordinates, gather, local, only
from gradwatch.stats import State

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
        sizes = batch.counts * _ITEMSIZE[batch.dtypes]
        starts = np.concatenate([[0], np.cumsum(-(-sizes // _ALIGN) * _ALIGN)])
        if starts[-1] > len(self._buffer):
            self._buffer = np.empty(int(starts[-1]), np.uint8)
        pointers = (starts[:-1] + self._buffer.ctypes.data).astype(np.uint64)
        return Batch(np.where(sizes > 0, pointers, 0), batch.counts, batch.dtypes, batch.rows)


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
