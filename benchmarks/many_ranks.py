"""Reading a simulated run of 1,024 ranks × 1,000 tensors × 20 steps: seconds and memory.

Every rank writes through the real writer; ranks hold shards of each tensor (2 groups of replicas).
The issue's bar: under a minute and 4 GB.
"""

import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from gradwatch.run import Placement, Subject
from gradwatch.stats import Family, Kind, Stat, row_dtype
from gradwatch.store import Writer, open_run

RANKS, TENSORS, STEPS, ROWS = 1024, 1000, 20, 512


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
        rows = np.zeros(TENSORS, row_dtype(Family.GRAD))
        rows[Stat.GRAD_COUNT] = 64
        for step in range(STEPS):
            rows[Stat.GRAD_NORM] = 8 * np.exp(0.1 * rng.normal(size=TENSORS))
            writer.put(Family.GRAD, step, ids, rows, np.zeros(TENSORS, np.uint8))
        writer.close(60.0)


def main() -> None:
    folder = Path(tempfile.mkdtemp()) / "many"
    begin = time.perf_counter()
    write(folder)
    print(f"written in {time.perf_counter() - begin:.0f} s: {RANKS} ranks × {TENSORS} × {STEPS}")
    begin = time.perf_counter()
    run = open_run(folder)
    opened = time.perf_counter() - begin
    begin = time.perf_counter()
    norms = run.series[Stat.GRAD_NORM]
    read = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"open {opened:.1f} s, read one merged statistic {read:.1f} s, peak {peak:.2f} GiB")
    assert np.isfinite(norms).all()
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    main()
