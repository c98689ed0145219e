"""What the kernel costs beside reading the same memory once, in one thread and in two.

Every variant runs once per round, so a busy neighbour hits all of them. The figures are those of
the least disturbed rounds: the shortest thread time of each variant (with two threads: by the
clock on the wall).
"""

import os
import time
from collections.abc import Callable

import numpy as np

from benchmarks.floor import read
from gradwatch import kernel
from gradwatch.kernel import Batch, Dtype

ROUNDS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "15"))
LARGE = 1 << 24
BARS = {"moments": 1.3, "with histogram": 2.5}
"""Times the read floor, for fp32 and at least ten million elements."""
SMALL_BARS = {"moments": 2.0, "with histogram": 6.0}
"""The same for a thousand tensors of a thousand elements."""

Variants = dict[str, Callable[[], object]]


def main() -> None:
    print(
        f"instruction set {kernel.instruction_set}, {ROUNDS} rounds, one thread but where it says"
    )
    floats = gaussian(LARGE)
    halves = (floats.view(np.uint32) >> 16).astype(np.uint16)
    full = table("fp32, 16.8 M elements", floats, one(floats, Dtype.F32))
    brief = table("bf16, 16.8 M elements", halves, one(halves, Dtype.BF16))
    narrow = floats.astype(np.float16)
    table("fp16, 16.8 M elements", narrow, one(narrow, Dtype.F16))
    table("fp32, 1 M elements", floats[: 1 << 20], one(floats[: 1 << 20], Dtype.F32))
    many = split(floats[:1_000_000], 1000)
    small = table("fp32, 1000 tensors of 1000", floats[:1_000_000], many, rounds=10 * ROUNDS)
    looks(floats)
    steps(floats, 1)
    shared(floats)
    steps(floats, 2)
    for name, bar in BARS.items():
        verdict(name, "the read floor", full[name] / full["read"], bar)
    for name, bar in SMALL_BARS.items():
        verdict(f"1000 tensors, {name}", "the read floor", small[name] / small["read"], bar)
    for name in BARS:
        verdict(f"bf16 {name}", "fp32 per element", brief[name] / full[name], 1.0)


def verdict(name: str, unit: str, ratio: float, bar: float) -> None:
    print(f"{name}: {ratio:.2f} × {unit} (bar {bar:g}){'' if ratio <= bar else ' MISSED'}")


def gaussian(count: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(count, np.float32)) * np.float32(1e-3)


def one(array: np.ndarray, dtype: Dtype) -> Batch:
    rows = 1024 if array.size % 1024 == 0 else 0
    return Batch.of([array.ctypes.data], [array.size], [dtype], [rows])


def split(array: np.ndarray, size: int) -> Batch:
    starts = range(array.ctypes.data, array.ctypes.data + array.nbytes, size * array.itemsize)
    n = len(starts)
    return Batch.of(list(starts), [size] * n, [Dtype.F32] * n, [10] * n)


def table(title: str, memory: np.ndarray, batch: Batch, rounds: int = ROUNDS) -> dict[str, float]:
    offsets = np.zeros(len(batch), np.int64)
    return show(
        title,
        memory.size,
        {
            "read": lambda: read(memory),
            "moments": lambda: kernel.measure(batch).records,
            "with histogram": lambda: kernel.measure(batch, bins=True),
            "hashes": lambda: kernel.hashes(batch, offsets),
        },
        rounds=rounds,
    )


def looks(floats: np.ndarray) -> None:
    """Looking for NaN and infinities, as a forward hook does."""
    at, calls = floats.ctypes.data, 200
    for name, count, stride in (("4,096 neighbours", 4096, 1), ("4,096 of 16.8 M", LARGE, 4096)):
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.thread_time()
            for _ in range(calls):
                kernel.nonfinite(at, count, Dtype.F32, stride)
            best = min(best, (time.thread_time() - start) / calls)
        print(f"nonfinite, {name}: {best * 1e6:.2f} us a call")


def steps(floats: np.ndarray, threads: int) -> None:
    """What reads two to four tensors at once."""
    half = floats.size // 4
    arrays = [floats[i * half : (i + 1) * half] for i in range(3)]
    second, target = np.square(arrays[2]), np.zeros(half, np.float32)
    before, after, grads, moments, room = (one(x, Dtype.F32) for x in (*arrays, second, target))
    constants = {"correction": [0.1], "eps": [1e-8]}
    variants: Variants = {
        "read": lambda: read(arrays[0]),
        "update": lambda: kernel.step(before, after, grads)[0],
        "adam": lambda: kernel.step(None, None, grads, moments, **constants)[1],
        "step": lambda: kernel.step(before, after, grads, moments, **constants),
        "copy": lambda: kernel.copy(before, room),
    }
    show(
        f"fp32, 4.2 M elements per tensor (update reads 3, step 4), {threads} thread(s)",
        half,
        variants,
        threads,
    )


def shared(floats: np.ndarray) -> None:
    """The same passes over the whole, by two threads; the floor is read by one."""
    batch, zeros = one(floats, Dtype.F32), np.zeros(1, np.int64)
    variants: Variants = {
        "read": lambda: read(floats),
        "moments": lambda: kernel.measure(batch).records,
        "with histogram": lambda: kernel.measure(batch, bins=True),
        "hashes": lambda: kernel.hashes(batch, zeros),
    }
    show("fp32, 16.8 M elements, 2 threads", LARGE, variants, 2)


def show(
    title: str, elements: int, variants: Variants, threads: int = 1, rounds: int = ROUNDS
) -> dict[str, float]:
    best = interleaved(variants, threads, rounds)
    print(f"\n{title}")
    for name, seconds in best.items():
        nanoseconds, ratio = seconds / elements * 1e9, seconds / best["read"]
        print(f"  {name:<16}{seconds * 1e3:9.3f} ms {nanoseconds:7.3f} ns/element {ratio:6.2f} ×")
    return best


def interleaved(variants: Variants, threads: int, rounds: int) -> dict[str, float]:
    """The shortest time of each variant over rounds in which each runs once."""
    now = time.thread_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(variants, float("inf"))
    kernel.set_threads(threads)
    for _ in range(rounds):
        for name, call in variants.items():
            start = now()
            call()
            best[name] = min(best[name], now() - start)
    kernel.set_threads(1)
    return best


if __name__ == "__main__":
    main()
