"""Reading a simulated run of 1,024 ranks × 20 tensors × 1,000 steps: seconds and memory.

Every rank writes through the real writer; ranks hold shards of each tensor (2 groups of replicas).
We aim to open it in 4 s and read one merged statistic in 6 s, both within 1 GiB.
"""

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from gradwatch.run import Placement, Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import Writer, open_run

RANKS, TENSORS, STEPS, ROWS = 1024, 20, 1000, 512


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for rank in range(RANKS):
        shard, replica = rank % ROWS, rank // ROWS
        place = Placement((ROWS, 64), (shard, 0), (1, 64), replica)
        writer = Writer.create(folder, name="many", rank=rank, world=RANKS)
        ids = writer.declare(
            [
                Subject(
                    Kind.PARAMETER,
                    f"layer{i}.weight",
                    f"layer{i}",
                    (ROWS, 64),
                    "float32",
                    ROWS * 64,
                    0,
                    placement=place,
                )
                for i in range(TENSORS)
            ]
        )
        for step in range(STEPS):
            rows = np.zeros(TENSORS, row_dtype(Family.GRAD))
            rows[Stat.GRAD_COUNT] = 64
            rows[Stat.GRAD_NORM] = 8 * np.exp(0.1 * rng.normal(size=TENSORS))
            writer.put(Family.GRAD, step, ids, rows, np.zeros(TENSORS, np.uint8))
        writer.close(60.0)


def read(folder: Path) -> None:
    begin = time.perf_counter()
    run = open_run(folder)
    assert len(run.steps) == STEPS
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    norms = run.series[Stat.GRAD_NORM]
    merged = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"open {opened:.1f} s, read one merged statistic {merged:.1f} s, peak {peak:.2f} GiB")
    assert np.isfinite(norms).all()


def main() -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "many"
        begin = time.perf_counter()
        # In a process of its own: the memory that writing took must not count as reading's.
        writing = multiprocessing.get_context("spawn").Process(target=write, args=(folder,))
        writing.start()
        writing.join()
        taken = time.perf_counter() - begin
        print(f"written in {taken:.0f} s: {RANKS} ranks × {TENSORS} × {STEPS}")
        read(folder)


if __name__ == "__main__":
    main()
