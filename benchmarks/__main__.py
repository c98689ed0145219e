"""`python -m benchmarks` runs every benchmark; `python -m benchmarks kernel` runs one."""

import importlib
import sys

# Name on the command line → module with a `main()` that prints its figures.
BENCHMARKS = {
    "analysis_gradients": "benchmarks.analysis_gradients",
    "analysis_weights": "benchmarks.analysis_weights",
    "budget": "benchmarks.budget",
    "checkpoints": "benchmarks.checkpoints",
    "diagnosis": "benchmarks.diagnosis",
    "gpu": "benchmarks.gpu",
    "kernel": "benchmarks.kernel",
    "live_page": "benchmarks.live_page",
    "many_ranks": "benchmarks.many_ranks",
    "store": "benchmarks.store",
    "watch": "benchmarks.watch",
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"No benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    # The benchmark of devices is for those who have one, and gives a verdict.
    return max(
        importlib.import_module(BENCHMARKS[name]).main() or 0
        for name in names or [name for name in BENCHMARKS if name != "gpu"]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
