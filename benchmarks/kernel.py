"""What the kernel costs beside reading the same memory once, one thread.

Every variant runs once per round, so a busy neighbour hits all of them. The figures are those of
the least disturbed rounds: the shortest thread time of each variant.
"""

import os
import time
from collections.abc import Callable

import numpy as np

from gradwatch import kernel
from gradwatch.kernel import Batch, Dtype

ROUNDS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "15"))
LARGE = 1 << 24
BARS = {"moments": 1.3, "with histogram": 3.0}
"""Times the read floor, for fp32 and at least ten million elements."""

Variants = dict[str, Callable[[], object]]


def main() -> None:
    print(f"instruction set {kernel.instruction_set}, {ROUNDS} rounds, one thread")
    floats = gaussian(LARGE)
    halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
    full = table("fp32, 16.8 M elements", one(floats, Dtype.F32), LARGE)
    brief = table("bf16, 16.8 M elements", one(halves, Dtype.BF16), LARGE)
    small = floats.astype(np.float16)
    table("fp16, 16.8 M elements", one(small, Dtype.F16), LARGE)
    table("fp32, 1 M elements", one(floats[: 1 << 20], Dtype.F32), 1 << 20)
    many = split(floats[:1_000_000], 1000)
    table("fp32, 1000 tensors of 1000", many, 1_000_000)
    steps(floats)
    for name, bar in BARS.items():
        ratio = full[name] / full["read"]
        print(
            f"{name}: {ratio:.2f} × the read floor (bar {bar}){'' if ratio <= bar else ' MISSED'}"
        )
    for name in BARS:
        ratio = brief[name] / full[name]
        print(
            f"bf16 {name}: {ratio:.2f} × fp32 per element (bar 1){'' if ratio <= 1 else ' MISSED'}"
        )


def gaussian(count: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(count, np.float32)) * np.float32(1e-3)


def one(array: np.ndarray, dtype: Dtype) -> Batch:
    rows = 1024 if array.size % 1024 == 0 else 0
    return Batch.of([array.ctypes.data], [array.size], [dtype], [rows])


def split(array: np.ndarray, size: int) -> Batch:
    starts = range(array.ctypes.data, array.ctypes.data + array.nbytes, size * array.itemsize)
    n = len(starts)
    return Batch.of(list(starts), [size] * n, [Dtype.F32] * n, [10] * n)


def table(title: str, batch: Batch, elements: int) -> dict[str, float]:
    seeds, offsets = np.ones(len(batch), np.uint64), np.zeros(len(batch), np.int64)
    widths, firsts = np.full(len(batch), -14), np.full(len(batch), -128.0)
    limits = np.full(len(batch), 0.008)
    return show(
        title,
        elements,
        {
            "read": lambda: kernel.read(batch),
            "moments": lambda: kernel.measure(batch),
            "with histogram": lambda: kernel.measure_with_histograms(batch),
            "with sketch": lambda: kernel.measure_with_sketches(batch, seeds, offsets),
            "sketch alone": lambda: kernel.sketch(batch, seeds, offsets),
            "hashes": lambda: kernel.hashes(batch, offsets),
            "cells of a grid": lambda: kernel.count_cells(batch, widths, firsts, cells=256),
            "beyond limits": lambda: kernel.list_beyond(batch, -limits, limits, most=10),
        },
    )


def steps(floats: np.ndarray) -> None:
    """What reads two or three tensors at once."""
    half = floats.size // 4
    before, after, grads = (one(floats[i * half : (i + 1) * half], Dtype.F32) for i in range(3))
    second = np.square(floats[:half])
    moments = one(second, Dtype.F32)
    target = np.empty_like(second)
    variants: Variants = {
        "read": lambda: kernel.read(before),
        "update": lambda: kernel.update(before, after, grads),
        "adam": lambda: kernel.adam(grads, moments, correction=[0.1], eps=[1e-8]),
        "copy": lambda: kernel.copy(before, one(target, Dtype.F32)),
    }
    show("fp32, 4.2 M elements per tensor", half, variants)


def show(title: str, elements: int, variants: Variants) -> dict[str, float]:
    best = interleaved(variants)
    print(f"\n{title}")
    for name, seconds in best.items():
        nanoseconds, ratio = seconds / elements * 1e9, seconds / best["read"]
        print(f"  {name:<16}{seconds * 1e3:9.3f} ms {nanoseconds:7.3f} ns/element {ratio:6.2f} ×")
    return best


def interleaved(variants: Variants) -> dict[str, float]:
    """The shortest thread time of each variant over rounds in which each runs once."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(ROUNDS):
        for name, call in variants.items():
            start = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - start)
    return best


if __name__ == "__main__":
    main()
