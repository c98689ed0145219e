"""What is to be found out about the tensors of a step, and the table the kernels read it from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradwatch.record.backend_cpu import SAMPLE
from gradwatch.record.device.engine import DeviceDivisors, Snapshot
from gradwatch.record.device.triton_kernels import KINDS
from gradwatch.record.device.triton_launch import address_of
from gradwatch.record.device.triton_plan import COLUMNS, LaunchPlan, StepPart
from gradwatch.record.tensors import rows_lie_whole


def takes(tensor: Tensor) -> bool:
    """Whether the kernels can read this tensor where it lies."""
    return tensor.dtype in KINDS and (
        tensor.is_contiguous() or rows_lie_whole(tuple(tensor.shape), tensor.stride())
    )


@dataclass(frozen=True)
class Job:
    """What is to be found out about one tensor: its change, its ratio, or both at once."""

    index: int
    count: int
    before: Tensor | None
    after: Tensor
    gradient: Tensor | None = None
    second: Tensor | None = None
    picked: bool = False

    @property
    def aligned(self) -> bool:
        """Whether 16 bytes can be read at once, wherever neighbours are read."""
        neighbours = (self.before, self.after, self.gradient, self.second)
        some = neighbours[:1] if self.picked else neighbours
        return all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in some)

    @property
    def key(self) -> tuple[Any, ...]:
        """What the kernel is compiled for."""
        gradient = self.after if self.gradient is None else self.gradient
        second = gradient if self.second is None else self.second
        kinds = (self.after.dtype, gradient.dtype, second.dtype)
        update = self.before is not None
        return *kinds, self.aligned, update, self.picked, self.second is not None

    @property
    def part(self) -> StepPart:
        """What is needed to read its numbers; no tensor."""
        update, pulled = self.before is not None, self.gradient is not None
        return StepPart(self.index, self.count, update, pulled, self.second is not None)


def jobs_of(
    before: Snapshot | None,
    after: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
    divisors: DeviceDivisors | None,
) -> tuple[list[Job], list[int]]:
    """What the kernels can do, and the tensors that are left to the other engine."""
    jobs: list[Job] = []
    others = []
    seconds = [None] * len(after) if divisors is None else divisors.seconds
    for index, (now, gradient, second) in enumerate(zip(after, gradients, seconds, strict=True)):
        if now is None:
            continue
        moment = None if gradient is None else second
        some = [tensor for tensor in (now, gradient, moment) if tensor is not None]
        alike = all(t.shape == now.shape and t.stride() == now.stride() for t in some)
        if not alike or not all(map(takes, some)):
            others.append(index)
            continue
        old = None if before is None else before.copies[index]
        picked = before is not None and not before.whole
        count = sampled(now) if picked else now.numel()
        if old is not None and (old.numel() != count or old.dtype is not now.dtype):
            old = None
        if old is not None and (picked or moment is None):
            jobs.append(Job(index, count, old, now, gradient, None, picked))
            old = None
        if moment is not None:
            jobs.append(Job(index, now.numel(), old, now, gradient, moment))
    return jobs, others


def sampled(tensor: Tensor) -> int:
    """At how many of its coordinates a large tensor is compared."""
    return min(tensor.numel(), SAMPLE)


def rooms(tensors: list[Tensor], counts: list[int]) -> list[Tensor]:
    """Memory for a copy of so many elements of each, one stretch for all of a type."""
    found = list(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        some = [i for i, tensor in enumerate(tensors) if tensor.dtype is dtype]
        ends = np.cumsum([-(-counts[i] // 8) * 8 for i in some])  # 16 bytes of any type
        flat = torch.empty(int(ends[-1]), dtype=dtype, device=tensors[0].device)
        for i, end in zip(some, ends.tolist(), strict=True):
            begin = end - -(-counts[i] // 8) * 8
            found[i] = flat[begin : begin + counts[i]]
    return found


def step_table(
    plan: LaunchPlan,
    jobs: Sequence[Job],
    divisors: DeviceDivisors | None,
    coordinates: Callable[[Tensor], Tensor],
    hold: list[Tensor],
) -> NDArray[np.int64]:
    """The lines of all jobs, in the order of the plan."""
    ordered = [jobs[given] for given in plan.order]
    table = np.zeros((len(jobs), COLUMNS), np.int64)
    # Without a gradient something is read in its place, and what comes of it left out.
    table[:, :4] = [
        [
            0 if job.before is None else job.before.data_ptr(),
            after := job.after.data_ptr(),
            after if job.gradient is None else job.gradient.data_ptr(),
            0 if job.second is None else job.second.data_ptr(),
        ]
        for job in ordered
    ]
    table[:, 4] = [job.count for job in ordered]
    table[:, 5] = plan.starts
    table[:, 6] = [coordinates(job.after).data_ptr() if job.picked else 0 for job in ordered]
    lines = [line for line, job in enumerate(ordered) if job.second is not None]
    if divisors is None or not lines:
        return table
    indices = [ordered[line].index for line in lines]
    counts = [divisors.steps[index] for index in indices]
    there = [count if isinstance(count, Tensor) else None for count in counts]
    table[lines, 9] = [address_of(count, torch.float32, hold) for count in there]
    known = np.array([1.0 if isinstance(count, Tensor) else count for count in counts])
    betas, epsilons = divisors.betas[indices], divisors.epsilons[indices]
    with np.errstate(divide="ignore"):
        numbers = np.stack([epsilons, 1.0 / (1.0 - betas**known), betas], axis=1)
    table[np.ix_(lines, [7, 8, 10])] = numbers.view(np.int64)
    return table
