"""Weights and animation: how fast statistics, outliers with entropy, and one recorded step are.

The bars: statistics at 5 GB/s and 20 times numpy, with outliers and entropy at 1 GB/s, and
`record_step` of 24 × 10^6 float64 in no more than the original's 0.079 s. One thread; the figures
are those of the least disturbed rounds.
"""

import os
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from gradwatch import kernel
from gradwatch.analysis.animator import GradientFlowAnimator
from gradwatch.analysis.weights import analyze_weights
from gradwatch.checkpoints.scanning import scan_arrays

ROUNDS = int(os.environ.get("GRADWATCH_BENCH_ROUNDS", "7"))
ELEMENTS = 1 << 24
STEP_BAR = 0.079


def main() -> None:
    print(f"instruction set {kernel.instruction_set}, {ROUNDS} rounds, one thread")
    weights = {"w": np.random.default_rng(0).normal(0, 0.02, (4096, ELEMENTS // 4096))}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    size = sum(array.nbytes for array in weights.values())
    moments = best(lambda: scan_arrays(weights))
    whole = best(lambda: analyze_weights(weights))
    slow = best(lambda: numpy_moments(weights["w"]), rounds=2)
    report("weight statistics, GB/s", size / moments / 1e9, 5.0)
    report("weight statistics, times numpy", slow / moments, 20.0)
    report("with outliers and entropy, GB/s", size / whole / 1e9, 1.0)
    for what, array in others(weights["w"]).items():
        seconds = best(lambda given=array: analyze_weights({"w": given}))
        print(f"the same for {what}, GB/s: {array.nbytes / seconds / 1e9:.3g}")
    report("extra memory, share of the weights (at most)", memory(weights) / size, 0.1, most=True)
    gradients = {f"layer{i}": np.random.default_rng(i).normal(size=1_000_000) for i in range(24)}
    steps = iter(range(10_000))
    animator = GradientFlowAnimator(max_frames=100)
    seconds = best(lambda: animator.record_step(next(steps), gradients))
    report("record_step of 24 × 10^6 float64, s (at most)", seconds, STEP_BAR, most=True)


def others(array: np.ndarray) -> dict[str, np.ndarray]:
    """What could be slower than fp32: half the bytes, and one element that stretches the grid."""
    far = array.copy()
    far[0, 7] = 1000.0
    return {"fp16": array.astype(np.float16), "fp32 with one far outlier": far}


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Shortest thread time; the first round only warms up."""
    times = []
    for _ in range(rounds + 1):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times[1:])


def numpy_moments(array: np.ndarray) -> tuple[float, ...]:
    """The same statistics in numpy, without its slow powers."""
    x = array.astype(np.float64).ravel()
    mean, std = x.mean(), x.std()
    z = (x - mean) / std
    squares = z * z
    shape = ((squares * z).mean(), (squares * squares).mean() - 3)
    counts = (np.isnan(x).sum(), np.isinf(x).sum(), (x == 0).sum())
    return (mean, std, *shape, x.min(), x.max(), np.abs(x).mean(), np.sqrt(x @ x), *counts)


def memory(weights: dict[str, np.ndarray]) -> int:
    tracemalloc.start()
    analyze_weights(weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def report(what: str, value: float, bar: float, *, most: bool = False) -> None:
    met = value <= bar if most else value >= bar
    print(f"{what}: {value:.3g} (bar {bar:g}){'' if met else ' MISSED'}")


if __name__ == "__main__":
    main()
