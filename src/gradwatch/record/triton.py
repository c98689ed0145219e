# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The other way to measure on a device: one Triton kernel that reads every element once.

Only where GRADWATCH_DEVICE_ENGINE=triton asks for it: no GPU has run it yet. Of float32, bfloat16
and float16 all moments and counts are exact; other types are left to torch's operations. A program
(a block of threads) measures a stretch of one tensor, tile by tile, and leaves one partial record;
the host merges them. Which program takes what is fixed by the sizes, and no program waits for
another's sums: the same numbers give the same bits every time.
"""

import os
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise, repeat

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from numpy.typing import NDArray
from torch import Tensor

import gradwatch.kernel as kernel
from gradwatch.record.device import SAMPLE, Finish, Seen, Take
from gradwatch.record.tensors import spread

KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.int16, torch.float16: tl.float16}
"""As what the kernel loads elements of these types."""
TILE, PROGRAMS = 4096, 1024
"""Elements that a program holds in registers at once, and about how many programs there are: enough
to fill a GPU, few enough to be merged on the host."""
OLDEST = (3, 2)
"""Older ones cannot make a pointer of a number."""
INF = tl.constexpr(float("inf"))
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}
"""How it is compiled."""


def hindrance(device: torch.device) -> str:
    """Why it cannot be used on this device; "" where it can."""
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "on a CPU it needs TRITON_INTERPRET=1, set before Python starts"
    return "" if device.type in ("cpu", "cuda") else "it is neither CUDA nor ROCm"


# -- the kernel: Triton's language, which looks like Python and is compiled for a device -----------


@triton.jit
def widened(raw):
    """float32 of what was loaded; bfloat16 comes as whole numbers, so that this is exact."""
    if raw.dtype == tl.int16:
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float32)


@triton.jit
def moved(n, s1, s2, s3, s4, by):
    """Sums of the second to the fourth power of (distance + by)."""
    t4 = s4 + by * (4.0 * s3 + by * (6.0 * s2 + by * (4.0 * s1 + by * n)))
    t3 = s3 + by * (3.0 * s2 + by * (3.0 * s1 + by * n))
    return s2 + by * (2.0 * s1 + by * n), t3, t4


@triton.jit
def measure(
    lines, programs, partial, touched,
    KIND: tl.constexpr, TILE: tl.constexpr, ALIGNED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Leave in partial[p] what stretch p of a tensor holds, and with ROWS mark its touched rows.

    Sums of a tile are taken in float32, about its mean and in units of its largest magnitude.
    """
    program = tl.program_id(0).to(tl.int64)
    line = lines + tl.load(programs + program * 3) * 3
    begin = tl.load(programs + program * 3 + 1)
    end = tl.load(programs + program * 3 + 2)
    at = tl.load(line).to(tl.pointer_type(KIND))
    zeros = (begin * 0).to(tl.int32)
    nan, pos, neg = zeros, zeros, zeros
    n = zeros.to(tl.float64)
    mean, s2, s3, s4, total = n, n, n, n, n
    low, high = n + INF, n - INF
    for start in range(begin, end, TILE):
        offsets = tl.arange(0, TILE)
        there = offsets < end - start
        tile = at + start
        if ALIGNED:
            tile = tl.multiple_of(tile, 16)
        if start + TILE <= end:  # without a mask, so that 16 bytes are read at once
            x = widened(tl.load(tile + offsets))
        else:
            x = widened(tl.load(tile + offsets, mask=there, other=0))
        finite = there & (tl.abs(x) < INF)
        zeros += tl.sum((there & (x == 0.0)).to(tl.int32), axis=0)
        nan += tl.sum((x != x).to(tl.int32), axis=0)
        pos += tl.sum((x == INF).to(tl.int32), axis=0)
        neg += tl.sum((x == -INF).to(tl.int32), axis=0)
        low = tl.minimum(low, tl.min(tl.where(finite, x, INF), axis=0).to(tl.float64))
        high = tl.maximum(high, tl.max(tl.where(finite, x, -INF), axis=0).to(tl.float64))
        y = tl.where(finite, x, 0.0)
        top = tl.max(tl.abs(y), axis=0).to(tl.int32, bitcast=True)
        exponent = tl.minimum(tl.maximum(top >> 23, 1), 253)  # with the bias of 127
        y = y * ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        unit = (exponent << 23).to(tl.float32, bitcast=True).to(tl.float64)
        here = tl.sum(finite.to(tl.int32), axis=0).to(tl.float64)
        some = tl.maximum(here, 1.0)
        centre = tl.sum(y, axis=0) / some.to(tl.float32)
        d = tl.where(finite, y - centre, 0.0)
        d2 = d * d
        d1 = tl.sum(d, axis=0).to(tl.float64) * unit  # what rounding left out of the centre
        t2 = tl.sum(d2, axis=0).to(tl.float64) * unit * unit
        t3 = tl.sum(d2 * d, axis=0).to(tl.float64) * unit * unit * unit
        t4 = tl.sum(d2 * d2, axis=0).to(tl.float64) * unit * unit * unit * unit
        # From here on in float64 and in the tensor's units: both parts about their joint mean.
        centre = centre.to(tl.float64) * unit
        joint = mean + (centre + d1 / some - mean) * (here / tl.maximum(n + here, 1.0))
        a2, a3, a4 = moved(n, 0.0, s2, s3, s4, mean - joint)
        b2, b3, b4 = moved(here, d1, t2, t3, t4, centre - joint)
        s2, s3, s4, mean, n = a2 + b2, a3 + b3, a4 + b4, joint, n + here
        total += tl.sum(tl.abs(y), axis=0).to(tl.float64) * unit
        if ROWS:
            length = tl.load(line + 1)
            if length > 0:
                row = start // length
                inside = (start - row * length).to(tl.int32) + offsets
                marks = touched + tl.load(line + 2) + row + inside // length.to(tl.int32)
                tl.store(marks, (inside * 0 + 1).to(tl.int8), mask=there & (x != 0.0))
    out = partial + program * 12
    tl.store(out, n)
    tl.store(out + 1, zeros.to(tl.float64))
    tl.store(out + 2, nan.to(tl.float64))
    tl.store(out + 3, pos.to(tl.float64))
    tl.store(out + 4, neg.to(tl.float64))
    tl.store(out + 5, mean)
    tl.store(out + 6, s2)
    tl.store(out + 7, s3)
    tl.store(out + 8, s4)
    tl.store(out + 9, total)
    tl.store(out + 10, low)
    tl.store(out + 11, high)


# -- on the host -----------------------------------------------------------------------------------


def by_triton(tensors: list[Tensor], rows: bool) -> tuple[list[Tensor], Finish]:
    """The `Engine` of this module: one launch, and one more with `rows`."""
    device = tensors[0].device
    sizes = np.array([tensor.numel() for tensor in tensors])
    lengths = np.array([len(t) if rows and t.dim() > 1 else 0 for t in tensors])
    addresses, marks = np.array([tensor.data_ptr() for tensor in tensors]), _edges(lengths)
    # Each program takes as many tiles; the last of a tensor those that are left.
    stretch = TILE * max(-(-int((-(-sizes // TILE)).sum()) // PROGRAMS), 1)
    owners = _edges(-(-sizes // stretch))
    whose = np.repeat(np.arange(len(sizes)), np.diff(owners))
    begins = (np.arange(owners[-1]) - owners[whose]) * stretch
    inner = sizes // np.maximum(lengths, 1) * (lengths > 0)
    lines = np.stack([addresses, inner, marks[:-1]], axis=1)
    programs = np.stack([whose, begins, np.minimum(begins + stretch, sizes[whose])], axis=1)
    table = torch.from_numpy(np.concatenate([lines, programs], axis=None))
    if device.type != "cpu":
        # torch gives pinned memory to nobody else before the copy is done.
        table = table.pin_memory().to(device, non_blocking=True)
    partial = torch.empty((len(whose), 12), dtype=torch.float64, device=device)
    touched = torch.zeros(int(marks[-1]), dtype=torch.int8, device=device) if rows else table[:0]
    constants = {"KIND": KINDS[tensors[0].dtype], "TILE": TILE, "ROWS": rows, **OPTIONS}
    constants["ALIGNED"] = not (addresses % 16).any()
    if len(whose):  # Triton launches on the current device, and at least one program
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            measure[(len(whose),)](table, table[lines.size :], partial, touched, **constants)

    def finish(take: Take, multiplier: float) -> Iterable[Seen]:
        parts = _records(next(take).reshape(-1, 12).T, multiplier)
        records = [kernel.merge(parts[a:b]) for a, b in pairwise(owners)]
        there = next(take) != 0
        found = [there[a:b] if b > a else None for a, b in pairwise(marks)]
        samples = [next(take) * multiplier for _ in sizes]
        return map(Seen, records, repeat(True), samples, found)

    return [partial, touched, *(spread(tensor, SAMPLE) for tensor in tensors)], finish


def _edges(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)])


def _records(numbers: NDArray[np.float64], multiplier: float) -> NDArray[np.void]:
    """What programs left, as records of the kernel."""
    n, zeros, nan, pos, neg, mean, s2, s3, s4, total, low, high = numbers
    records = np.zeros(len(n), kernel.MOMENTS)
    for name, counts in (("zeros", zeros), ("nan", nan), ("pos_inf", pos), ("neg_inf", neg)):
        records[name] = counts
    records["count"] = n + nan + pos + neg
    with np.errstate(all="ignore"):  # without a finite element everything is NaN
        mean, variance = np.where(low == high, (low, n * 0), (mean, s2 / n))
        some = np.where(variance > 0, variance, np.nan)
        records["skewness"], records["kurtosis"] = s3 / n / some**1.5, s4 / n / some**2 - 3
        sums = np.sqrt(n * (variance + mean**2)), total / n
        found = mean, np.sqrt(variance), *sums, np.maximum(np.abs(low), np.abs(high)), low, high
        names = ("mean", "std", "norm", "abs_mean", "abs_max", "min", "max")
        for name, values in zip(names, found, strict=True):
            records[name] = np.where(n > 0, values * multiplier, np.nan)
    return records
