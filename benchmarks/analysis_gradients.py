"""Gradient analysis, flow and diagnosis: seconds and memory for layers × steps, and their JSON.

The large shapes run in a process each, so that the peak of memory is their own.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gradwatch.analysis.flow import analyze_flow
from gradwatch.analysis.gradients import analyze_gradients
from gradwatch.diagnosis import diagnose
from gradwatch.jsonio import dumps
from gradwatch.run import Run

SIZES = ((250, 1000), (500, 1000), (1000, 1000))
LARGE = ((100_000, 50), (50, 1_000_000))
DOORS: dict[str, Callable[[Run], Any]] = {
    "gradients": analyze_gradients,
    "flow": analyze_flow,
    "diagnosis": diagnose,
}


def made(layers: int, steps: int) -> Run:
    """Steady gradients with noise, and a loss that falls."""
    rng = np.random.default_rng(0)
    norms = {f"layer{i}": np.exp(0.1 * rng.normal(size=steps)) for i in range(layers)}
    return Run.from_norms(norms, scalars={"loss": np.exp(-np.arange(steps) / 300)})


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it gave."""
    begin = time.perf_counter()
    result = action()
    return time.perf_counter() - begin, result


def best(door: str, layers: int, steps: int) -> tuple[float, float]:
    """Seconds of an analysis of a run nobody has looked at, and to JSON; the best of three."""
    seconds, to_json = [], []
    for _ in range(3):
        run = made(layers, steps)
        took, result = timed(lambda run=run: DOORS[door](run))  # type: ignore[misc]
        seconds.append(took)
        to_json.append(timed(lambda result=result: dumps(result.to_dict()))[0])  # type: ignore[misc]
    return min(seconds), min(to_json)


def peak() -> float:
    """The most memory this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def large(door: str, layers: int, steps: int) -> None:
    """One large shape: seconds, and the most memory the process had, run included."""
    run = made(layers, steps)
    took, _ = timed(lambda: DOORS[door](run))
    print(f"  {layers:6d} × {steps:<7d} {door:9s} {took:6.1f} s, {peak():5.0f} MB")


def main() -> None:
    """Print the table of the documentation."""
    print("layers × steps, seconds; in brackets those of its JSON (the original: 54 s)")
    for layers, steps in SIZES:
        cells = ((door, *best(door, layers, steps)) for door in DOORS)
        row = "   ".join(f"{door} {took:.2f} ({plain:.2f})" for door, took, plain in cells)
        print(f"  {layers:5d} × {steps}   {row}", flush=True)
    for layers, steps in LARGE:
        for door in DOORS:
            arguments = ["large", door, str(layers), str(steps)]
            subprocess.run([sys.executable, "-m", __spec__.name, *arguments], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["large"]:
        large(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
