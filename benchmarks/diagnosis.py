"""How long a diagnosis takes on a long, wide run: 10,000 steps × 500 tensors."""

import time

import numpy as np

from gradwatch.diagnosis import diagnose
from gradwatch.graph import Graph
from gradwatch.run import MemorySource, Run, Subject
from gradwatch.stats import Kind, Stat

STEPS, TENSORS = 10_000, 500


def long_run(steps: int = STEPS, tensors: int = TENSORS) -> Run:
    """A healthy run with every statistic of parameters and layers on every step."""
    random = np.random.default_rng(0)
    noise = np.exp(random.normal(0, 0.2, (steps, tensors)))
    layers = [f"block.{i}" for i in range(tensors)]
    usual = {
        Stat.UPDATE_RATIO: 1e-3,
        Stat.WEIGHT_NORM: 8.0,
        Stat.WEIGHT_STD: 0.1,
        Stat.WEIGHT_ROW_SPREAD: 1.0,
        Stat.ACT_ENTROPY: 0.8,
        Stat.PROBE_TRAINING: 1.0,
        Stat.GRAD_NORM: 1.0,
        Stat.ACT_STD: 1.0,
    }
    zero = np.zeros((steps, tensors))
    values = {
        stat: usual[stat] * noise if stat in usual else zero
        for stat in Stat
        if stat.width == 1 and stat.kind in (Kind.PARAMETER, Kind.LAYER)
    }
    values[Stat.WEIGHT_HASH] = np.broadcast_to(np.arange(steps, dtype=float)[:, None], noise.shape)
    weight = {"shape": (64, 64), "dtype": "float32", "count": 4096, "group": 0, "module": "Linear"}
    subjects = [Subject(Kind.PARAMETER, f"{n}.weight", n, **weight) for n in layers]
    subjects += [Subject(Kind.LAYER, n, n) for n in layers]
    scalars = {"loss": np.geomspace(5, 0.5, steps), "stale": np.zeros(steps)}
    source = MemorySource(
        np.arange(steps), subjects, values, scalars=scalars, graph=Graph.chain(layers)
    )
    return Run(source)


def seconds(repeats: int = 3) -> list[float]:
    """Time of whole diagnoses, a fresh run object each (facts are kept per run)."""
    made = long_run()
    taken = []
    for _ in range(repeats):
        run = Run(made.source)
        began = time.perf_counter()
        found = diagnose(run)
        taken.append(time.perf_counter() - began)
        assert not [s for s in found.skipped if "itself failed" in s.reason]
    return taken


def main() -> None:
    """Print the best and the worst of several."""
    taken = seconds()
    size = f"{STEPS} steps × {TENSORS} tensors"
    print(f"diagnose, {size}: best {min(taken):.2f} s, worst {max(taken):.2f} s")


if __name__ == "__main__":
    main()
